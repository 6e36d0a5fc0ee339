"""This file holds ``map`` after ``batch``: a user's function of a dict of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from dml.expr.arrays import as_block, fitted
from dml.expr.block import Block
from dml.expr.calls import UserFunction, each, raised
from dml.expr.delivery import arrays_of
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.schema import UNKNOWN, Schema

if TYPE_CHECKING:
    from dml.expr.flow import At


MAP_BATCH = 0x6D61705F62617463


@op
class MapBatch(Node):
    """Each batch replaced by the dict of arrays that ``fn`` makes of its dict of arrays.

    The inputs are read-only; all returned arrays have one length, the new batch's.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()

    rows: ClassVar[Rows] = Rows.SAME

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The mapped batch."""
        arrays = arrays_of(block, nulls="keep")
        for array in arrays.values():
            array.flags.writeable = False
        out: list[Any] = []
        error = each(self.fn.call, [arrays], out)
        if error is not None:
            raise raised(error, self.fn, block.ids, 0, "batch").located(self.label())
        given = {id(array) for array in arrays.values()}
        made = as_block(self, out[0], block.ids, given, MAP_BATCH)
        if made.n:
            yield fitted(self, made, at)

    def shown(self) -> str:
        """The function's name, and what it needs."""
        return f"{self.fn.name}{self.needs.shown()}"
