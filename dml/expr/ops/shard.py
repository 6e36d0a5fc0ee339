"""This file holds ``shard``: every n-th element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.errors import PlanError
from dml.expr.facts import Held, Length, Rows
from dml.expr.node import Node, op
from dml.expr.ops.take import count
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Shard(Node):
    """The elements at places ``index``, ``index + num_shards``, ... (rows, or batches).

    The shards of one ``num_shards`` have each element once. Each reads all elements.
    """

    input: Node
    num_shards: int
    index: int

    rows: ClassVar[Rows] = Rows.SLICE
    total: bool = True

    def check(self) -> None:
        """At least one shard, and one of them."""
        check_shard(self.num_shards, self.index)

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """Every ``num_shards``-th."""
        after = given[0] - self.index
        return max(0, after if after == math.inf else -(-after // self.num_shards))

    @property
    def held(self) -> Held:
        """One number."""
        return Held(state_bytes=16)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Drop all but every n-th element."""
        return _Sharding(self, open_input, epoch, position)

    def shown(self) -> str:
        """How many shards, and which."""
        return f"{self.num_shards}, {self.index}"


def check_shard(num_shards: int, index: int) -> None:
    """PlanError unless there are shards, and one has the number ``index``."""
    count("shard num_shards", num_shards, least=1)
    count("shard index", index)
    if index >= num_shards:
        raise PlanError(
            f"there is no shard {index} of {num_shards}",
            why=f"shards are counted from 0 to {num_shards - 1}",
            try_=f"shard({num_shards}, {num_shards - 1}) for the last one",
        )


class _Sharding:
    def __init__(
        self, node: Shard, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start = position or {"in": None, "before": node.index}
        self.step, self.batched = node.num_shards, node.batched
        self.before: int = start["before"]  # elements until the next one of this shard
        self.input = open_input(epoch, start["in"])

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` elements of the shard."""
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
        """Elements among which are no more than ``most`` of the shard."""
        return 1 if self.batched else self.before + (most - 1) * self.step + 1

    def position(self) -> Position:
        """The input's, and how many elements come before the next one of the shard."""
        return {"in": self.input.position(), "before": self.before}

    def close(self) -> None:
        """Close the input."""
        self.input.close()
