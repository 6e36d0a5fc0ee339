"""``Sieve`` drops rows by place within a range, for a slice that is split around a function."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dml.expr.facts import Length
from dml.expr.node import Node, op
from dml.ops.slice.counting_flow import CountingFlow, PlaceSlice

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Sieve(PlaceSlice):
    """Keeps rows outside ``begin`` to ``stop``, and inside those at ``index`` modulo ``step``.

    Without an ``index``, none of the rows in the range; without a ``stop``, the range has no end.
    Rules make sieves of ``shard`` and ``skip``: one below a function spares it the rows that are
    not wanted, but for the first, by which its types settle; one above it drops those.
    """

    input: Node
    begin: int
    stop: int | None
    step: int
    index: int | None

    total: bool = True

    def length(self, *given: Length) -> Length | None:
        """Return the number of rows outside the range, and of kept rows in it."""
        if given[0] == math.inf:
            return None if self.stop is None and self.index is None else math.inf
        n = int(given[0])
        stop = n if self.stop is None else min(self.stop, n)
        begin = min(self.begin, stop)
        return n - (stop - begin) + self._up_to(stop) - self._up_to(begin)

    def _up_to(self, row: int) -> int:
        """Return how many of the first ``row`` rows are at kept places."""
        return 0 if self.index is None else max(0, -(-(row - self.index) // self.step))

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that drops rows by place."""
        return _Sieving(self, 0, open_input, epoch, position)

    def shown(self) -> str:
        """Return the range and the kept places."""
        inside = "none" if self.index is None else f"every {self.step}th from {self.index}"
        return f"{inside} of {self.begin} to {'the end' if self.stop is None else self.stop}"


class _Sieving(CountingFlow[Sieve]):
    """Counts how many rows came."""

    key = "row"

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` of the kept rows; None at the end."""
        while (block := self.input.pull(self._reach(most))) is not None:
            places = np.arange(self.count, self.count + block.n)
            self.count += block.n
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
        """Return a number of rows of which at most ``most`` are kept."""
        node, row = self.node, self.count
        if row < node.begin:
            return min(most, node.begin - row)
        if node.stop is not None and row >= node.stop:
            return most
        inside = most if node.index is None else most * node.step
        return inside if node.stop is None else min(inside, node.stop - row)
