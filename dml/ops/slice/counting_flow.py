"""Operators that select elements by position share their facts and a flow that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from dml.expr.facts import ResumeCost, Rows
from dml.expr.node import Node
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import Opener, Position

N = TypeVar("N", bound=Node)


def elements(block: Block, batched: bool) -> int:  # noqa: FBT001 - a fact, passed on
    """Return the number of elements in a pulled block: its rows, or one batch."""
    return 1 if batched else block.n


class PlaceSlice(SameColumns):
    """The base of operators that keep elements by their position in the stream."""

    rows: ClassVar[Rows] = Rows.SLICE
    # One number is saved, nothing is repeated.
    resume_cost = ResumeCost(state_bytes=16)


class CountingFlow(Generic[N]):
    """The base of flows whose state is one number: ``count``, which is ``first`` at the start.

    A position has the input's position, and ``count`` under ``key``.
    """

    key: ClassVar[str]

    def __init__(
        self, node: N, first: int, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start = position or {"in": None, self.key: first}
        self.node, self.batched = node, node.batched
        self.count: int = start[self.key]
        self.input = open_input(epoch, start["in"])

    def position(self) -> Position:
        """Return the input's position, and ``count``."""
        return {"in": self.input.position(), self.key: self.count}

    def close(self) -> None:
        """Close the input."""
        self.input.close()
