"""This file holds ``map_groups``: a user's function of the dict of arrays of a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.expr.arrays import as_block, fitted, views
from dml.expr.block import Block
from dml.expr.calls import UserFunction, each, raised
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.schema import UNKNOWN, Schema
from dml.expr.skipping import RAISE, Skipping
from dml.expr.unshared import Handed

if TYPE_CHECKING:
    from dml.expr.flow import At

# Joins the key of ids: "mapgroup" in ASCII.
MAP_GROUP = 0x6D617067726F7570


@op
class MapGroup(Skipping):
    """Each batch replaced by what ``fn`` makes of its dict of arrays: of rows, or of one row.

    A dict of single values is one row. The inputs are read-only. With ``on_error="skip"`` a group
    for which ``fn`` raises is lost.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    version: ClassVar[int] = 2

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """One for one, but for groups that are lost."""
        return Rows.FEWER if self.skips else Rows.SAME

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The rows made of one group."""
        given = views(block)
        handed, out = Handed(given).begun(), list[Any]()
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

    def shown(self) -> str:
        """The function's name."""
        return f"{self.fn.name}{self.skipping}{self.needs.shown()}"


def _rows(made: Any) -> Any:
    """A dict of single values as a dict of arrays of one."""
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
