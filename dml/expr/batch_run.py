"""A batch run is several consecutive batches in one block, which a flow returns together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from dml.data.block import Block
from dml.expr.flow import Position

Between: TypeAlias = Callable[[int], Position]
"""Returns the flow's position after a number of rows of the block; cheap, and always callable."""

Fits: TypeAlias = Callable[[Block], bool]
"""True if batches may be slices of a block; called before any batch is made of it."""


class BatchRun(NamedTuple):
    """Two or more batches of ``n`` rows each, whose rows are those of ``block``.

    ``between(rows)`` returns the flow's position after the first ``rows`` rows of ``block``.
    """

    block: Block
    n: int
    between: Between


class SliceableFlow(Protocol):
    """A flow that can return slices of a block that it has already read."""

    def at_hand(self) -> tuple[Block, int] | None:
        """Return the block that the next rows come from, and how many of its rows are left.

        Return None if the flow has not read that block yet.
        """

    def between(self) -> Between:
        """Return a function that gives the position after a number of rows of the current block."""

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, as ``Flow.pull`` does."""
