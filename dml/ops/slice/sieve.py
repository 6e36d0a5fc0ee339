"""``Sieve`` drops rows by number within a range, for a slice that is moved past a function."""

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
    """Keeps the rows outside ``begin`` to ``stop``, and every ``step``-th row within this range.

    Within the range, a row is kept if its number in the stream is ``index`` modulo ``step``; no row
    is kept if ``index`` is None. Without a ``stop``, the range has no end. Rules replace ``shard``
    and ``skip`` by two sieves around a function. The sieve before the function drops rows that are
    not needed, except the first rows, by which the types of the function settle. The sieve after
    the function drops the results of these first rows.
    """

    input: Node
    begin: int
    stop: int | None
    step: int
    index: int | None

    total: bool = True

    def length(self, *given: Length) -> Length | None:
        """Return the number of rows outside the range plus kept rows inside; None if unknown."""
        if given[0] == math.inf:
            return None if self.stop is None and self.index is None else math.inf
        n = int(given[0])
        stop = n if self.stop is None else min(self.stop, n)
        begin = min(self.begin, stop)
        return n - (stop - begin) + self._up_to(stop) - self._up_to(begin)

    def _up_to(self, row: int) -> int:
        """Return how many of the first ``row`` rows have a number that is kept."""
        return 0 if self.index is None else max(0, -(-(row - self.index) // self.step))

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that drops rows by their number."""
        return _Sieving(self, 0, open_input, epoch, position)

    def parameters_text(self) -> str:
        """Return the range and the kept row numbers as text."""
        inside = "none" if self.index is None else f"every {self.step}th from {self.index}"
        return f"{inside} of {self.begin} to {'the end' if self.stop is None else self.stop}"


class _Sieving(CountingFlow[Sieve]):
    """A flow of the kept rows; ``count`` is the number of input rows pulled."""

    key = "row"

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` of the kept rows; None at the end."""
        while (block := self.input.pull(self._reach(most))) is not None:
            places = np.arange(self.count, self.count + block.n)
            self.count += block.n
            kept = np.flatnonzero(self._passing(places))
            if len(kept):
                return block.take(kept) if len(kept) < block.n else block
        return None

    def _passing(self, places: np.ndarray) -> np.ndarray:
        node = self.node
        outside = places < node.begin
        if node.stop is not None:
            outside |= places >= node.stop
        return outside if node.index is None else outside | (places % node.step == node.index)

    def _reach(self, most: int) -> int:
        """Return how many rows to pull so that at most ``most`` of them are kept."""
        node, row = self.node, self.count
        if row < node.begin:
            return min(most, node.begin - row)
        if node.stop is not None and row >= node.stop:
            return most
        inside = most if node.index is None else most * node.step
        return inside if node.stop is None else min(inside, node.stop - row)
