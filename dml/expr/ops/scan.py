"""This file holds ``scan``: a user's function of a state and each row, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from dml.errors import DmlError, PlanError, UDFError
from dml.expr import rows as convert
from dml.expr.block import Block
from dml.expr.calls import UserFunction, blamed, caught, raised
from dml.expr.carried import MOST_BYTES, NotCarriedError, kept, of_json, to_json
from dml.expr.facts import Held, Length, Rows
from dml.expr.flow import CHUNK, Blockwise, LocalFlow, settling
from dml.expr.node import Node, op
from dml.expr.ops.map_rows import returned
from dml.expr.schema import UNKNOWN, Schema
from dml.expr.trays import Copies
from dml.kernels.ids import RowIds

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

SHOWN_LETTERS = 40


def written(state: Any) -> str:
    """The initial state that a user gave, as text; PlanError if it cannot be carried."""
    try:
        return json.dumps(to_json(kept(state)))
    except NotCarriedError as error:
        raise PlanError(
            f"scan cannot begin with {error.what}", why=error.why, try_=error.try_
        ) from None


@op
class Scan(Node):
    """Each row replaced by the dict in ``(state, dict)``, which ``fn(state, row)`` returns.

    The state that a call returns is given to the next one, ``initial`` (JSON) to the first of an
    epoch. Called once per row in runs without failures, in order. UDFError names the row.
    """

    input: Node
    initial: str
    fn: UserFunction
    declared: Schema | None

    version: ClassVar[int] = 2
    # one row out per row in, but none without those before it
    rows: ClassVar[Rows] = Rows.RUNS

    def check(self) -> None:
        """Rows below."""
        if self.input.batched:
            raise PlanError(
                "scan after batch",
                why="it works on rows, and its input is batches",
                try_="scan before .batch()",
            )

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    def length(self, *given: Length) -> Length | None:
        """A row for each."""
        return given[0]

    @property
    def held(self) -> Held:
        """The state where a piece began, whose rows are made again."""
        return Held(state_bytes=MOST_BYTES, work_rows=CHUNK, work=f"at most {CHUNK} rows")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Call row by row."""
        return _Scanning(self, open_input, epoch, position, at)

    def shown(self) -> str:
        """The function's name, and what it begins with."""
        more = "..." if len(self.initial) > SHOWN_LETTERS else ""
        return f"{self.initial[:SHOWN_LETTERS]}{more}, {self.fn.name}"


class _Scanning:
    """``before`` is the state where the piece at hand began."""

    def __init__(
        self, node: Scan, open_input: Opener, epoch: int, position: Position | None, at: At
    ) -> None:
        start = position or {"in": None, "drop": 0, "state": json.loads(node.initial)}
        self.node, self.at = node, at
        self.state = self.before = of_json(start["state"])
        self.pieces = Blockwise(self)
        self.rows = LocalFlow(self._begin, open_input, epoch, start)

    def settling(self) -> int:
        """Rows that settle types together."""
        return settling(self.node, self.at)

    def _begin(self, input_: Flow) -> Iterator[Block] | None:
        self.before = kept(self.state)
        return self.pieces(input_)

    def run(self, block: Block) -> Iterator[Block]:
        """The rows made of one block; where one cannot be, those before it, then the error."""
        out = Copies()
        error = caught(self._each, convert.to_rows(block), out)
        try:
            if out:
                yield from returned(self.node, self.node.fn, out, block.ids, self.at)
            if error is not None:
                raise self._error(error, block.ids, len(out)).located(self.node.label())
        except DmlError as wrong:
            raise wrong.under(self.node.label()) from wrong.__cause__

    def _each(self, rows: list[Any], out: list[Any]) -> None:
        call = self.node.fn.call
        for row in rows:
            made = call(self.state, row)
            if type(made) is not tuple or len(made) != 2:
                raise NotCarriedError(
                    f"a {type(made).__name__} in place of a pair",
                    why="the state goes to the next call, the row goes on",
                    try_="return state, row",
                )
            # a copy: what a later call does to its state changes no row that was made before
            self.state = kept(made[0])
            out.append(made[1])

    def _error(self, error: BaseException, ids: RowIds, row: int) -> DmlError:
        fn = self.node.fn
        if not isinstance(error, NotCarriedError):
            return raised(error, fn, ids, row)
        found = UDFError(
            f"{fn.name} returned {error.what}", why=error.why, try_=error.try_, operator=fn.name
        )
        return blamed(found, ids, row)

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows."""
        return self.rows.pull(most)

    def position(self) -> Position:
        """Where the piece began, how many of its rows were given, and the state there."""
        return {**self.rows.position(), "state": to_json(self.before)}

    def close(self) -> None:
        """Close the input."""
        self.rows.close()
