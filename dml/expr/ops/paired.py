"""This file holds what remains of a zip whose sides are one input: the ids that it gives rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import Length, Rows
from dml.expr.node import Node, op
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At


@op
class Paired(Node):
    """The rows of the input, each with the id that a zip of ``sides`` times that row gives it.

    ``mark`` is what that zip makes ids with. A rule makes it; users do not write it.
    """

    input: Node
    sides: int
    mark: int

    rows: ClassVar[Rows] = Rows.MORE
    total: bool = True

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """As many as there are."""
        return given[0]

    def run(self, block: Block, _at: At) -> Iterator[Block]:
        """The same columns; ids are made of those of every side."""
        own = block.ids.arrays()
        ids = block.ids
        for _ in range(self.sides - 1):
            ids = ids.derive(*own)
        yield dataclasses.replace(block, ids=ids.derive(self.mark, 0), rows=None)

    def shown(self) -> str:
        """How many sides were one."""
        return f"{self.sides} sides"
