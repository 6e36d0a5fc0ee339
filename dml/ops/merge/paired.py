"""``Paired`` replaces a zip of one input with itself, and derives the row ids of the zip."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At


@op
class Paired(SameColumns):
    """Gives each row the id that it would have in a zip of the input with itself.

    ``sides`` is the number of inputs of that zip, and ``mark`` the key from which it derives ids. A
    rewrite rule creates this operator; users do not write it.
    """

    input: Node
    sides: int
    mark: int

    rows: ClassVar[Rows] = Rows.MORE
    parameters_format = "{self.sides} sides"
    keeps_length: ClassVar[bool] = True
    total: bool = True

    def run(self, block: Block, _at: At) -> Iterator[Block]:
        """Yield the same columns, with ids derived from those of every side."""
        own = block.ids.arrays()
        ids = block.ids
        for _ in range(self.sides - 1):
            ids = ids.derive(*own)
        yield dataclasses.replace(block, ids=ids.derive(self.mark, 0), rows=None)
