"""``map_groups`` calls a user's function on the dict of arrays of each group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.data.block import Block
from dml.data.escape_analysis import ReferenceCounts
from dml.data.schema import Schema
from dml.expr.facts import Needs
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, each, raised
from dml.ops.function_node import FunctionNode
from dml.udfs.calling.array_results import as_block, fitted, views
from dml.udfs.calling.error_policy import RAISE

if TYPE_CHECKING:
    from dml.expr.flow import At

# Part of the key of row ids: "mapgroup" in ASCII.
MAP_GROUP = 0x6D617067726F7570


@op
class MapGroup(FunctionNode):
    """Replaces each batch, a dict of arrays, by the rows (or the one row) that ``fn`` returns.

    A dict of single values is one row. The inputs are read-only. With ``on_error="skip"`` a group
    for which ``fn`` raises is dropped.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    version: ClassVar[int] = 2

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the rows made of one group."""
        given = views(block)
        handed, out = ReferenceCounts(given).begun(), list[Any]()
        error = each(self.fn.call, [given], out)
        if error is not None and self.skips:
            self.lose(error, block.ids, 0, at, rows=block.n)
            return
        if error is not None:
            raise raised(error, self.fn, block.ids, 0, "group").located(self.label())
        safe = handed.safe(out)  # before anything else refers to it
        made = as_block(self, _rows(out[0]), block.ids, safe, MAP_GROUP)
        if made.n:
            yield fitted(self, made, at)


def _rows(made: Any) -> Any:
    """Return a dict of single values as a dict of arrays of length 1; any other value as it is."""
    if not isinstance(made, Mapping) or not made or any(map(_many, made.values())):
        return made
    return {name: _lone(value) for name, value in made.items()}


def _many(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _lone(value: Any) -> np.ndarray:
    if isinstance(value, str | bytes) or value is None:
        array = np.empty(1, object)
        array[0] = value
        return array
    return np.asarray([value])
