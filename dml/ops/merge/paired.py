"""``Paired`` replaces a zip whose sides are one input, and derives the zip's row ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import Length, Rows
from dml.expr.node import Node, op
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At


@op
class Paired(SameColumns):
    """Paired gives each row of the input the id that a zip of ``sides`` times that row gives it.

    ``mark`` is the key from which that zip derives ids. A rule makes it; users do not write it.
    """

    input: Node
    sides: int
    mark: int

    rows: ClassVar[Rows] = Rows.MORE
    total: bool = True

    def length(self, *given: Length) -> Length | None:
        """Return the input's length."""
        return given[0]

    def run(self, block: Block, _at: At) -> Iterator[Block]:
        """Yield the same columns, with ids made of those of every side."""
        own = block.ids.arrays()
        ids = block.ids
        for _ in range(self.sides - 1):
            ids = ids.derive(*own)
        yield dataclasses.replace(block, ids=ids.derive(self.mark, 0), rows=None)

    def shown(self) -> str:
        """Return the number of sides."""
        return f"{self.sides} sides"
