"""This file holds ``map``: a user's function from row to row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from dml.expr import rows as convert
from dml.expr.block import Block
from dml.expr.calls import UserFunction, blamed, each, raised
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.schema import UNKNOWN, Schema

if TYPE_CHECKING:
    from dml.expr.flow import At


def returned(node: Node, fn: UserFunction, out: list[Any], block: Block, at: At) -> Block:
    """Rows that ``fn`` returned for the first rows of ``block``, settling the schema if need be.

    Shared by the operators that call a function per row; ``node`` keys the settled schema.
    """
    key = node.digest.hex()
    schema = node.schema if node.schema.known else at.schemas.get(key)
    try:
        made = convert.to_block(out, schema, block.ids.slice(0, len(out)))
    except convert.UnfitError as unfit:
        raise blamed(unfit.as_error(fn.name).located(node.label()), block.ids, unfit.row) from None
    at.schemas.setdefault(key, made.schema)
    return made


@op
class MapRows(Node):
    """Each row replaced by the dict that ``fn`` makes of its dict.

    Called once per row in runs without failures. The output schema is ``declared`` or settled by
    the first rows in source order; later rows must fit it. UDFError names the row.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None

    rows: ClassVar[Rows] = Rows.SAME

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The mapped rows; where the function raises, the rows before it, then the error."""
        if not block.n:
            return
        out: list[Any] = []
        error = each(self.fn.call, convert.to_rows(block), out)
        if out:
            yield returned(self, self.fn, out, block, at)
        if error is not None:
            raise raised(error, self.fn, block.ids, len(out)).located(self.label())

    def shown(self) -> str:
        """The function's name."""
        return self.fn.name
