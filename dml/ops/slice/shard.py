"""``shard`` keeps every n-th element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dml.checks import shard
from dml.expr.facts import Length
from dml.expr.node import Node, op
from dml.ops.slice.counting_flow import CountingFlow, PlaceSlice

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Shard(PlaceSlice):
    """Keeps elements number ``index``, ``index + num_shards``, ... (rows, or batches).

    Each element is in exactly one of the ``num_shards`` shards. Each shard reads all elements.
    """

    input: Node
    num_shards: int
    index: int

    total: bool = True
    parameters_format = "{self.num_shards}, {self.index}"

    def check(self) -> None:
        """Raise PlanError if ``num_shards`` is below 1, or ``index`` is out of range."""
        shard(self.num_shards, self.index)

    def length(self, *given: Length) -> Length | None:
        """Return the number of elements in the shard."""
        after = given[0] - self.index
        return max(0, after if after == math.inf else -(-after // self.num_shards))

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that drops all but every n-th element."""
        return _Sharding(self, self.index, open_input, epoch, position)


class _Sharding(CountingFlow[Shard]):
    """A flow of a shard's elements; before the next one, ``count`` input elements are dropped."""

    key = "before"

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements of the shard; None at the end."""
        step = self.node.num_shards
        while (block := self.input.pull(self._reach(most, step))) is not None:
            given = 1 if self.batched else block.n
            first = self.count
            self.count = (first - given) % step
            if first < given == 1:
                return block
            if first < given:
                return block.take(np.arange(first, given, min(step, given)))
        return None

    def _reach(self, most: int, step: int) -> int:
        """Return how many elements to pull so that at most ``most`` are of the shard."""
        return 1 if self.batched else self.count + (most - 1) * step + 1
