"""``shard`` keeps every n-th element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.checks import shard
from dml.data.schema import Schema
from dml.expr.facts import Length, ResumeCost, Rows
from dml.expr.node import Node, op

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Shard(Node):
    """Shard keeps the elements at places ``index``, ``index + num_shards``, ... (rows, or batches).

    The shards of one ``num_shards`` have each element once. Each shard reads all elements.
    """

    input: Node
    num_shards: int
    index: int

    rows: ClassVar[Rows] = Rows.SLICE
    total: bool = True

    def check(self) -> None:
        """Refuse a ``num_shards`` below 1, and an ``index`` that no shard has (PlanError)."""
        shard(self.num_shards, self.index)

    def infer(self) -> Schema:
        """Return the input's schema."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """Return the number of elements in the shard."""
        after = given[0] - self.index
        return max(0, after if after == math.inf else -(-after // self.num_shards))

    @property
    def held(self) -> ResumeCost:
        """Return the resumption cost: one number of state, no repeated work."""
        return ResumeCost(state_bytes=16)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that drops all but every n-th element."""
        return _Sharding(self, open_input, epoch, position)

    def shown(self) -> str:
        """Return the number of shards, and the index."""
        return f"{self.num_shards}, {self.index}"


class _Sharding:
    def __init__(
        self, node: Shard, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start = position or {"in": None, "before": node.index}
        self.step, self.batched = node.num_shards, node.batched
        self.before: int = start["before"]  # elements until the next one of this shard
        self.input = open_input(epoch, start["in"])

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements of the shard; None at the end."""
        while (block := self.input.pull(self._reach(most))) is not None:
            given = 1 if self.batched else block.n
            first = self.before
            self.before = (first - given) % self.step
            if first < given:
                return (
                    block
                    if given == 1
                    else block.take(np.arange(first, given, min(self.step, given)))
                )
        return None

    def _reach(self, most: int) -> int:
        """Return a number of elements among which at most ``most`` are of the shard."""
        return 1 if self.batched else self.before + (most - 1) * self.step + 1

    def position(self) -> Position:
        """Return the input's position, and the elements before the next one of the shard."""
        return {"in": self.input.position(), "before": self.before}

    def close(self) -> None:
        """Close the input."""
        self.input.close()
