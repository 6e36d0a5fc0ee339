"""This file holds the run: batches that lie side by side in one block, handed over together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from dml.expr.block import Block
from dml.expr.flow import Position

Between: TypeAlias = Callable[[int], Position]
"""Where a flow was after so many rows of a block that it gave; cheap, and for as long as wanted."""


class Run(NamedTuple):
    """Two or more batches of ``n`` rows each, all rows of ``block``."""

    block: Block
    n: int
    between: Between


class Fits(Protocol):
    """Says whether batches may be given as parts of a block; asked before any is."""

    def __call__(self, block: Block) -> bool:
        """True if they may."""


class Sliced(Protocol):
    """A flow that gives parts of blocks that it has at hand."""

    def at_hand(self) -> tuple[Block, int] | None:
        """The block that the next rows come from, and how many of its rows are left."""

    def between(self) -> Between:
        """Positions from here on, within the block at hand."""

    def pull(self, most: int) -> Block | None:
        """As every flow does."""
