"""This file holds the sieve: a slice that leaves some of the rows to another one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.expr.facts import Held, Length, Rows
from dml.expr.node import Node, op
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Sieve(Node):
    """Of the rows ``begin`` to ``stop`` those at places ``index`` modulo ``step``; all others.

    Without an ``index``, none of them; without a ``stop``, to the end. Rules make sieves of
    ``shard`` and ``skip``: one below a function spares it the rows that nobody asked for, but for
    the first, by which its types settle; one above it drops those.
    """

    input: Node
    begin: int
    stop: int | None
    step: int
    index: int | None

    rows: ClassVar[Rows] = Rows.SLICE
    total: bool = True

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """Those outside, and every ``step``-th of those inside."""
        if given[0] == math.inf:
            return None if self.stop is None and self.index is None else math.inf
        n = int(given[0])
        stop = n if self.stop is None else min(self.stop, n)
        begin = min(self.begin, stop)
        return n - (stop - begin) + self._up_to(stop) - self._up_to(begin)

    def _up_to(self, row: int) -> int:
        """How many of the first rows stand at the places that are kept."""
        return 0 if self.index is None else max(0, -(-(row - self.index) // self.step))

    @property
    def held(self) -> Held:
        """One number."""
        return Held(state_bytes=16)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Pull, and drop."""
        return _Sieving(self, open_input, epoch, position)

    def shown(self) -> str:
        """Which rows."""
        inside = "none" if self.index is None else f"every {self.step}th from {self.index}"
        return f"{inside} of {self.begin} to {'the end' if self.stop is None else self.stop}"


class _Sieving:
    def __init__(
        self, node: Sieve, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start = position or {"in": None, "row": 0}
        self.node = node
        self.row: int = start["row"]
        self.input = open_input(epoch, start["in"])

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows of those that stay."""
        while (block := self.input.pull(self._reach(most))) is not None:
            places = np.arange(self.row, self.row + block.n)
            self.row += block.n
            kept = np.flatnonzero(self._kept(places))
            if len(kept):
                return block.take(kept) if len(kept) < block.n else block
        return None

    def _kept(self, places: np.ndarray) -> np.ndarray:
        node = self.node
        outside = places < node.begin
        if node.stop is not None:
            outside |= places >= node.stop
        return outside if node.index is None else outside | (places % node.step == node.index)

    def _reach(self, most: int) -> int:
        """Rows of which no more than ``most`` stay."""
        node, row = self.node, self.row
        if row < node.begin:
            return min(most, node.begin - row)
        if node.stop is not None and row >= node.stop:
            return most
        inside = most if node.index is None else most * node.step
        return inside if node.stop is None else min(inside, node.stop - row)

    def position(self) -> Position:
        """The input's, and how many rows came."""
        return {"in": self.input.position(), "row": self.row}

    def close(self) -> None:
        """Close the input."""
        self.input.close()
