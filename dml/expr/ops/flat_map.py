"""This file holds ``flat_map``: a user's function from a row to any number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.expr import rows as convert
from dml.expr.block import Block
from dml.expr.calls import Raised, UserFunction, children, raised
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.ops.map_rows import returned
from dml.expr.schema import UNKNOWN, Schema, code_of, shape_of
from dml.expr.skipping import RAISE, Skipping

if TYPE_CHECKING:
    from dml.expr.flow import At

# Output rows of one block, and bytes after which it ends: they bound what a growing function holds.
OUT_ROWS, OUT_BYTES = 4096, 1 << 20
SIZED = frozenset({np.ndarray, bytes, str, list})
FLAT_MAP = 0x666C61745F6D6170


def _heavy(row: Any) -> int:
    """Bytes of the values of a row that may be large, about."""
    if type(row) is not dict:
        return 0
    return sum(
        value.nbytes if type(value) is np.ndarray else len(value)
        for value in row.values()
        if type(value) in SIZED
    )


@op
class FlatMap(Skipping):
    """Each row replaced by the dicts that ``fn`` gives for it, in order; none is fine.

    Row ids are made of the input row's id, this operator and the child's index. With
    ``on_error="skip"`` a row is left where ``fn`` raises: what it gave before stays.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    rows: ClassVar[Rows] = Rows.MORE

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The children, in blocks of at most 4096 rows that end with their first mebibyte.

        Errors come after the rows before them.
        """
        out: list[Any] = []
        parents: list[int] = []
        child: list[int] = []
        room, weighing = OUT_BYTES, self._unlike(at)
        for parent, row in enumerate(convert.to_rows(block)):
            for index, made in enumerate(children(self.fn.call, row)):
                if isinstance(made, Raised) and self.skips:
                    self.lose(made.error, block.ids, parent, at)
                    break
                if isinstance(made, Raised):
                    if out:
                        yield from self._blocks(block, out, parents, child, at)
                    error = raised(made.error, self.fn, block.ids, parent)
                    raise error.located(self.label())
                out.append(made)
                parents.append(parent)
                child.append(index)
                room -= _heavy(made) if weighing else 0
                if len(out) == OUT_ROWS or room <= 0:
                    yield from self._blocks(block, out, parents, child, at)
                    out, parents, child, room = [], [], [], OUT_BYTES
                    weighing = self._unlike(at)
        if out:
            yield from self._blocks(block, out, parents, child, at)

    def _unlike(self, at: At) -> bool:
        """True unless all children are as heavy as each other, and light: numbers alone."""
        schema = self.schema if self.schema.known else at.schemas.get(self.digest.hex(), UNKNOWN)
        kinds = schema.values()
        return not schema.known or any(code_of(k) == "arrow" or shape_of(k) for k in kinds)

    def _blocks(
        self, block: Block, out: list[Any], parents: list[int], child: list[int], at: At
    ) -> Iterator[Block]:
        rows = block.ids.take(np.array(parents))
        ids = rows.derive(FLAT_MAP + self.level, np.array(child, dtype=np.uint64))
        return returned(self, self.fn, out, ids, at, parents=rows)

    def shown(self) -> str:
        """The function's name, and what it needs."""
        return f"{self.fn.name}{self.skipping}{self.needs.shown()}"
