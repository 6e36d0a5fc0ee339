"""Batches that a flow returns in other forms than one block each, so that rows are copied once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from dml.data.block import Block, concat
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


class ScatteredBatch(NamedTuple):
    """One batch whose rows are still in the blocks of ``parts``, in order.

    A part is a block and the indices of its rows in the batch; None stands for all its rows.
    """

    parts: tuple[tuple[Block, np.ndarray | None], ...]

    @property
    def n(self) -> int:
        """Number of rows."""
        return sum(block.n if index is None else len(index) for block, index in self.parts)

    @property
    def value_bytes(self) -> int:
        """Bytes of the batch as one block, which is made to find out."""
        return self.block().value_bytes

    def select(self, names: Sequence[str]) -> ScatteredBatch:
        """Return the columns ``names``, in that order, without a copy."""
        return ScatteredBatch(tuple((block.select(names), index) for block, index in self.parts))

    def block(self) -> Block:
        """Return the batch as one block."""
        return concat([b if index is None else b.take(index) for b, index in self.parts])


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
