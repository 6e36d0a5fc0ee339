"""This file sorts a stream of rows by a key of their ids, within a budget of bytes.

Rows collect in memory; when they exceed the budget they leave as a sorted run, and at the end all
runs are merged. Keys are functions of row ids, so that runs need not carry them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from dml.expr.block import Block, concat
from dml.expr.flow import CHUNK
from dml.kernels.ids import RowIds

if TYPE_CHECKING:
    from dml.expr.flow import At, Opener, Position, Spill

Keys = Callable[[RowIds], np.ndarray]


def sorted_block(blocks: list[Block], keys: Keys) -> Block:
    """All rows of ``blocks`` by (key, id)."""
    whole = concat(blocks)
    return whole.take(order_of(whole.ids, keys))


def order_of(ids: RowIds, keys: Keys) -> np.ndarray:
    """The order of rows by (key, id)."""
    high, low = ids.arrays()
    return np.lexsort((low, high, keys(ids)))


class Sorted:
    """The input's rows in order of their keys; a Flow that reads all of its input first."""

    def __init__(
        self, open_input: Opener, epoch: int, position: Position | None, at: At, keys: Keys
    ) -> None:
        self.keys, self.at = keys, at
        self.input = open_input(epoch, None)
        self.spill: Spill | None = None
        self.out: Iterator[Block] | None = None
        self.rest: Block | None = None
        self.given = 0
        left: int = (position or {"given": 0})["given"]
        while left:
            block = self.pull(left)
            left -= block.n if block is not None else left

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows."""
        if self.out is None:
            self.out = self._collect()
        while self.rest is None or not self.rest.n:
            self.rest = next(self.out, None)
            if self.rest is None:
                return None
        block = self.rest.slice(0, min(most, self.rest.n))
        self.rest = self.rest.slice(block.n, self.rest.n)
        self.given += block.n
        return block

    def _collect(self) -> Iterator[Block]:
        """Read the input to its end; sorted rows, from memory or merged from runs."""
        held: list[Block] = []
        held_bytes = 0
        while (block := self.input.pull(CHUNK)) is not None:
            held.append(block)
            held_bytes += block.nbytes + 16 * block.n
            if 3 * held_bytes > self.at.budget:
                self._leave(held)
                held, held_bytes = [], 0
        self.input.close()
        if self.spill is None:
            return self._in_memory(held)
        if held:
            self._leave(held)
        return merged(self.spill.runs(), self.keys)

    def _in_memory(self, held: list[Block]) -> Iterator[Block]:
        if not held:
            return
        whole = concat(held)
        order = order_of(whole.ids, self.keys)
        for start in range(0, whole.n, CHUNK):
            yield whole.take(order[start : start + CHUNK])

    def _leave(self, held: list[Block]) -> None:
        if self.spill is None:
            self.spill = self.at.spill(held[0].schema)
        self.spill.write(self._in_memory(held))

    def position(self) -> Position:
        """How many rows were given."""
        return {"given": self.given}

    def close(self) -> None:
        """Drop everything."""
        self.input.close()
        self.out, self.rest = iter(()), None
        if self.spill is not None:
            self.spill.close()


def merged(runs: list[Iterator[Block]], keys: Keys) -> Iterator[Block]:
    """Rows of sorted ``runs`` in one order: at most one block of each run is held.

    In each round every row is given that cannot come after a row still unread, that is, rows up to
    the least last key of the blocks at hand; the run that sets that bound advances.
    """
    heads = [(run, block) for run in runs if (block := next(run, None)) is not None]
    while heads:
        lasts = [_last(block, keys) for _, block in heads]
        bound = min(lasts)
        ready: list[Block] = []
        rest: list[tuple[Iterator[Block], Block]] = []
        for run, block in heads:
            count = _up_to(block, keys, bound)
            if count:
                ready.append(block.slice(0, count))
            left: Block | None = block.slice(count, block.n)
            if left is not None and not left.n:
                left = next(run, None)
            if left is not None:
                rest.append((run, left))
        heads = rest
        yield sorted_block(ready, keys)


def _last(block: Block, keys: Keys) -> tuple[int, int, int]:
    ids = block.ids.slice(block.n - 1, block.n)
    high, low = ids.arrays()
    return int(keys(ids)[0]), int(high[0]), int(low[0])


def _up_to(block: Block, keys: Keys, bound: tuple[int, int, int]) -> int:
    """How many leading rows of a sorted block have (key, id) <= bound."""
    key = keys(block.ids)
    high, low = block.ids.arrays()
    k, h, w = (np.uint64(part) for part in bound)
    after = (key > k) | (key == k) & ((high > h) | (high == h) & (low > w))
    return int(block.n - np.count_nonzero(after))
