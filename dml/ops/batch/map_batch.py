"""``map`` after ``batch`` calls a user's function on each batch, a dict of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.data.block import Block
from dml.data.schema import Schema
from dml.expr.facts import Needs
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction
from dml.ops.function_node import FunctionNode
from dml.udfs.calling.array_results import called, fitted, is_padded, views
from dml.udfs.calling.error_policy import RAISE

if TYPE_CHECKING:
    from dml.expr.flow import At


MAP_BATCH = 0x6D61705F62617463


@op
class MapBatch(FunctionNode):
    """Replaces each batch, a dict of arrays, by the dict of arrays that ``fn`` returns for it.

    The inputs are read-only; all returned arrays have one length, that of the new batch. With
    ``on_error="skip"`` a batch for which ``fn`` raises is dropped.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    version: ClassVar[int] = 3

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the mapped batch, unless it is empty or dropped."""
        made = called(self, views(block), block.ids, MAP_BATCH, at)
        if made is not None and made.n:
            yield fitted(self, made, at, padded=is_padded(block.schema))
