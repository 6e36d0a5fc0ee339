"""``zip`` puts the columns of several inputs side by side, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dml.data.block import Block, block_of, concat
from dml.data.schema import UNKNOWN, Schema
from dml.errors import DmlError, PlanError, SchemaError
from dml.expr.facts import Length, Rows
from dml.expr.flow import pass_over
from dml.expr.node import Node, op
from dml.ops.merge.merge import Portion

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

ZIP = int.from_bytes(b"zip", "big")


@op
class Zip(Node):
    """Puts row i of every input side by side into one row; the shortest input ends the output.

    Row ids are derived from the ids of all inputs.
    """

    input: Node
    others: tuple[Node, ...]

    rows: ClassVar[Rows] = Rows.MERGED
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for a batched input."""
        if any(node.batched for node in self.inputs):
            raise PlanError(
                "zip of batches",
                why="rows are put side by side, and batches of differing lengths have none",
                try_=".zip(...) before .batch()",
            )

    def infer(self) -> Schema:
        """Return all columns, in input order; raise SchemaError for a name in two inputs."""
        schemas = [node.schema for node in self.inputs]
        columns: dict[str, Any] = {}
        for number, schema in enumerate(schemas, 1):
            for name, kind in schema.items():
                if name in columns:
                    raise _twice(name, number)
                columns[name] = kind
        return Schema(columns) if all(s.known for s in schemas) else UNKNOWN

    @property
    def endless(self) -> bool:
        """True if all inputs are endless."""
        return all(node.endless for node in self.inputs)

    def length(self, *given: Length) -> Length | None:
        """Return the length of the shortest input."""
        return min(given)

    def merge(
        self, openers: Sequence[Opener], epoch: int, position: Position | None, at: At
    ) -> Flow:
        """Open a flow that reads all sides in step."""
        return _Aligned(self, openers, epoch, position, at)

    def parameters_text(self) -> str:
        """Return the sources of the other inputs as text."""
        return ", ".join(node.chain()[0].title() for node in self.inputs[1:])


def _twice(name: str, number: int) -> SchemaError:
    return SchemaError(
        f"zip gives two columns the name {name!r}",
        why=f"input {number} has it, and one before",
        try_=f".rename({{{name!r}: ...}}) or .drop({name!r}) on one side",
    )


class _Aligned:
    """A flow that reads all inputs in step; ``before`` has the inputs' positions at one same row.

    If an input fails, the rows before its error are still returned. A run that resumes after these
    rows reads all inputs again from ``before``.
    """

    def __init__(
        self, node: Zip, openers: Sequence[Opener], epoch: int, position: Position | None, at: At
    ) -> None:
        start = position or {"in": [None] * len(openers), "drop": 0, "over": False}
        self.node = node
        self.sides = [
            opener(epoch, place) for opener, place in zip(openers, start["in"], strict=True)
        ]
        self.before, self.aligned = self._places(), True
        self.given, self.over, self.portion = 0, start["over"], Portion(at)
        self.error: DmlError | None = None
        pass_over(self, start["drop"])

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, as many as every input has at once; None at the end."""
        if self.error is not None:
            raise self.error
        if self.over:
            return None
        self.before, self.given = self._places(), 0
        first = self.sides[0].pull(min(most, self.portion.rows))
        if first is None:
            self.over = True
            return None
        found = [(first, None), *(_read(side, first.n) for side in self.sides[1:])]
        rows = min(0 if part is None else part.n for part, _ in found)
        self.aligned = rows == first.n
        if not self.aligned:
            self.given = rows
            # the first input without a row decides: the output ends, or raises the input's error
            short = (error for part, error in found if (0 if part is None else part.n) == rows)
            self.error = next(short)
            self.over = self.error is None
        if not rows:
            return self.pull(most)
        made = self._joined([part.slice(0, rows) for part, _ in found if part is not None])
        self.portion.learn(made)
        return made

    def _joined(self, parts: list[Block]) -> Block:
        columns: dict[str, Any] = {}
        ids = parts[0].ids
        for number, part in enumerate(parts, 1):
            for name, kind in part.schema.items():
                if name in columns:
                    raise _twice(name, number)
                columns[name] = kind, part[name]
            ids = ids if number == 1 else ids.derive(*part.ids.arrays())
        return block_of(columns, ids.derive(ZIP + self.node.level, 0))

    def _places(self) -> list[Any]:
        return [side.position() for side in self.sides]

    def position(self) -> Position:
        """Return the inputs' last positions at one same row, and the rows returned since."""
        if self.aligned:
            return {"in": self._places(), "drop": 0, "over": self.over}
        return {"in": self.before, "drop": self.given, "over": self.over}

    def close(self) -> None:
        """Close all sides."""
        for side in self.sides:
            side.close()


def _read(side: Flow, rows: int) -> tuple[Block | None, DmlError | None]:
    """Return up to ``rows`` rows of an input (None: none), and the error after them, if any."""
    found: list[Block] = []
    while rows:
        try:
            block = side.pull(rows)
        except DmlError as error:
            return (concat(found) if found else None), error
        if block is None:
            break
        found.append(block)
        rows -= block.n
    return (concat(found) if found else None), None
