"""This file sorts a stream of rows by a key of their ids, within a budget of bytes.

Rows collect in memory; when they exceed the budget they leave as a sorted run, and at the end all
runs are merged, in several passes if they are many. Keys are functions of row ids, so that runs
need not carry them.
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

# Bytes that rows take while they are sorted, for each byte of theirs: they and their sorted copy.
HELD = 3
ID_BYTES = 16
# A merge holds a block of each run, and about three copies of what is ready; blocks are a small
# part of the budget, so that a hundred runs are merged at once, but worth a read of their own.
MERGE_HELD = 4
LEAST_BLOCK, MOST_BLOCK = 64 << 10, 1 << 20
LEAST_RUNS = 8


def sorted_block(blocks: list[Block], keys: Keys) -> Block:
    """All rows of ``blocks`` by (key, id)."""
    whole = concat(blocks)
    return whole.take(order_of(whole.ids, keys))


def order_of(ids: RowIds, keys: Keys) -> np.ndarray:
    """The order of rows by (key, id)."""
    key = keys(ids)
    order = np.argsort(key)
    ordered = key[order]
    if (ordered[1:] != ordered[:-1]).all():
        return order
    high, low = ids.arrays()  # two rows of one key are a rare event
    return np.lexsort((low, high, key))


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
            held_bytes += block.nbytes + ID_BYTES * block.n
            if HELD * held_bytes > self.at.budget:
                self._leave(held)
                held_bytes = 0
        self.input.close()
        if self.spill is None:
            return self._in_memory(held, CHUNK)
        if held:
            self._leave(held)
        return self._merged(self.spill)

    def _in_memory(self, held: list[Block], rows: int) -> Iterator[Block]:
        """The rows of ``held`` in order, which is emptied."""
        if not held:
            return
        whole = concat(held)
        held.clear()
        order = order_of(whole.ids, self.keys)
        for start in range(0, whole.n, rows):
            yield whole.take(order[start : start + rows])

    def _leave(self, held: list[Block]) -> None:
        """Write the rows of ``held`` as one sorted run."""
        if self.spill is None:
            self.spill = self.at.spill(held[0].schema)
        row_bytes = sum(block.nbytes for block in held) // sum(block.n for block in held)
        rows = self._block_bytes() // (row_bytes + ID_BYTES)
        self.spill.write(self._in_memory(held, max(1, min(rows, CHUNK))))

    def _block_bytes(self) -> int:
        return max(LEAST_BLOCK, min(self.at.budget // 256, MOST_BLOCK))

    def _merged(self, spill: Spill) -> Iterator[Block]:
        """All runs in one order; as many at once as the budget holds a block of each."""
        most = max(LEAST_RUNS, self.at.budget // (MERGE_HELD * self._block_bytes()))
        while spill.count > most:
            spill.write(merged(spill.runs(most), self.keys))
        return merged(spill.runs(most), self.keys)

    def position(self) -> Position:
        """How many rows were given."""
        return {"given": self.given}

    def close(self) -> None:
        """Drop everything."""
        self.input.close()
        self.out, self.rest = iter(()), None
        if self.spill is not None:
            self.spill.close()


class _Head:
    """The block at hand of one sorted run, with its keys."""

    def __init__(self, run: Iterator[Block], block: Block, keys: Keys) -> None:
        self.run, self.key_of, self.start = run, keys, 0
        self._hold(block)

    def _hold(self, block: Block) -> None:
        self.block, self.keys, self.start = block, self.key_of(block.ids), 0
        self.high, self.low = block.ids.arrays()
        self.last = (int(self.keys[-1]), int(self.high[-1]), int(self.low[-1]))

    def up_to(self, bound: tuple[int, int, int]) -> Block | None:
        """The rows not given yet that have (key, id) <= ``bound``."""
        key, high, low = (np.uint64(part) for part in bound)
        stop = int(np.searchsorted(self.keys, key, "left"))
        after = int(np.searchsorted(self.keys, key, "right"))
        if stop < after:
            highs, lows = self.high[stop:after], self.low[stop:after]
            stop += int(np.count_nonzero((highs < high) | (highs == high) & (lows <= low)))
        start, self.start = self.start, max(stop, self.start)
        return self.block.slice(start, stop) if stop > start else None

    def goes_on(self) -> bool:
        """Turn to the next block if this one is used up; False at the end of the run."""
        if self.start < self.block.n:
            return True
        block = next(self.run, None)
        if block is not None:
            self._hold(block)
        return block is not None


def merged(runs: list[Iterator[Block]], keys: Keys) -> Iterator[Block]:
    """Rows of sorted ``runs`` in one order: at most one block of each run is held.

    In each round every row is given that cannot come after a row still unread, that is, rows up to
    the least last key of the blocks at hand; the run that sets that bound advances.
    """
    heads = [_Head(run, block, keys) for run in runs if (block := next(run, None)) is not None]
    while heads:
        bound = min(head.last for head in heads)
        ready = [block for head in heads if (block := head.up_to(bound)) is not None]
        yield sorted_block(ready, keys)
        heads = [head for head in heads if head.goes_on()]
