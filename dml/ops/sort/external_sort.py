"""A stream of rows is sorted within a memory budget, by keys of ids or by columns.

Rows are buffered in memory; when they exceed the budget, they are written to disk as a sorted run.
At the end all runs are merged, in several passes if there are many. A ``RowOrder`` compares rows:
``ById`` by keys that are functions of row ids, so that runs need not store them, and ``Ordering``
(in ``row_order``) by columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dml.data.block import Block, concat
from dml.expr.flow import CHUNK, Again
from dml.kernels.rows.ids import RowIds

if TYPE_CHECKING:
    from dml.data.schema import Schema
    from dml.expr.flow import At, Flow, Position, Spill

Keys = Callable[[RowIds], np.ndarray]

# Memory per byte of rows while they are sorted: the rows and their sorted copy.
HELD = 3
ID_BYTES = 16
# A merge spends half of the budget on a block of each run, and half on rows that are ready: as they
# came, joined, sorted, and as they leave. Blocks are small, so that a hundred runs are merged at
# once, but worth a read of their own; of few runs, several are read at once.
MERGE_HELD = 4
AT_HAND = 6
LEAST_BLOCK, MOST_BLOCK = 64 << 10, 1 << 20
LEAST_RUNS = 8
MOST_KEY = 2**64 - 1
# Bytes that are sorted together at most: texts of a column are joined, and Arrow counts their
# letters with 31 bits.
MOST_HELD = 1 << 30


class RowOrder(Protocol):
    """An order of rows."""

    def check(self, given: Schema) -> None:
        """Raise SchemaError if rows of the schema ``given`` cannot be ordered in this way."""

    def order(self, block: Block) -> np.ndarray:
        """Return the indices (n,) that sort the rows of ``block``."""

    def merged(self, runs: list[Iterator[Block]], at_once: int) -> Iterator[Block]:
        """Yield the rows of sorted ``runs`` merged in this order, about ``at_once`` at a time.

        Rows that are equal in this order are yielded in the order of their runs.
        """


@dataclasses.dataclass(frozen=True)
class ById:
    """The order by (key, id), where keys are functions of ids."""

    keys: Keys

    def check(self, given: Schema) -> None:
        """Accept all schemas: every row has an id."""

    def order(self, block: Block) -> np.ndarray:
        """Return the indices (n,) that sort the rows of ``block``."""
        return order_of(block.ids, self.keys)

    def merged(self, runs: list[Iterator[Block]], at_once: int) -> Iterator[Block]:
        """Yield the rows of sorted ``runs`` merged in this order, about ``at_once`` at a time."""
        return merged(runs, lambda block: self.keys(block.ids), at_once)


def order_of(ids: RowIds, keys: Keys) -> np.ndarray:
    """Return the indices (n,) that sort rows with ``ids`` by (key, id)."""
    return ordered_by(keys(ids), ids)


def ordered_by(key: np.ndarray, ids: RowIds) -> np.ndarray:
    """Return the indices (n,) that sort rows by ``key`` (n,), then by id."""
    order = np.argsort(key)
    ordered = key[order]
    if (ordered[1:] != ordered[:-1]).all():
        return order
    high, low = ids.arrays()  # needed rarely: two rows seldom have one key
    return np.lexsort((low, high, key))


class Sorted(Again):
    """A flow of the input's rows in order, which reads the whole input first.

    With ``most``, only the first ``most`` rows are returned, and about twice as many are in memory.
    """

    def __init__(
        self,
        open_input: Callable[[], Flow],
        position: Position | None,
        at: At,
        by: RowOrder,
        most: int | None = None,
    ) -> None:
        self.by, self.at, self.most = by, at, most
        self.spill: Spill | None = None
        self.row_bytes = 1
        super().__init__(open_input, self._collect, position)

    def _collect(self, input_: Flow) -> Iterator[Block]:
        """Read the input to its end; yield sorted rows, from memory or merged from runs."""
        held: list[Block] = []
        rows = held_bytes = 0
        while (block := input_.pull(CHUNK)) is not None:
            if not held:
                self.by.check(block.schema)
            held.append(block)
            rows += block.n
            held_bytes += block.nbytes + ID_BYTES * block.n
            if self.most is not None and rows > 2 * self.most + CHUNK:
                held = [self._first(held, self.most)]
                rows, held_bytes = held[0].n, held[0].nbytes + ID_BYTES * held[0].n
            if HELD * held_bytes > min(self.at.budget, HELD * MOST_HELD):
                self._leave(held)
                rows = held_bytes = 0
        input_.close()
        if self.spill is None:
            yield from self._in_memory(held, CHUNK)
            return
        if held:
            self._leave(held)
        yield from self._merged(self.spill)

    def _first(self, held: list[Block], most: int) -> Block:
        """Return the first ``most`` rows of ``held`` in order."""
        whole = concat(held)
        return whole.take(self.by.order(whole)[:most])

    def _in_memory(self, held: list[Block], rows: int) -> Iterator[Block]:
        """Yield the rows of ``held`` in order, ``rows`` at a time, and clear the list."""
        if not held:
            return
        whole = concat(held)
        held.clear()
        order = self.by.order(whole)
        for start in range(0, whole.n, rows):
            yield whole.take(order[start : start + rows])

    def _leave(self, held: list[Block]) -> None:
        """Write the rows of ``held`` to disk as one sorted run."""
        if self.spill is None:
            self.spill = self.at.spill(held[0].schema)
        row_bytes = sum(block.nbytes for block in held) // sum(block.n for block in held)
        self.row_bytes = max(self.row_bytes, row_bytes + ID_BYTES)
        rows = block_bytes(self.at.budget) // self.row_bytes
        self.spill.write(self._in_memory(held, max(1, min(rows, CHUNK))))

    def _merged(self, spill: Spill) -> Iterator[Block]:
        """Merge all runs, in several passes if a block of each exceeds half of the budget.

        A pass merges neighbouring runs, so that runs stay in the order of their input rows.
        """
        each = max(block_bytes(self.at.budget), self.row_bytes)
        most = max(LEAST_RUNS, self.at.budget // (2 * each))
        while (runs := spill.count) > most:
            for _ in range(-(-runs // most)):
                together = min(most, runs)
                runs -= together
                spill.write(self._cut(self._joined(spill.runs(together))))
        return self._joined(spill.runs())

    def _joined(self, runs: list[Iterator[Block]]) -> Iterator[Block]:
        """Yield the rows of ``runs`` merged into one sorted sequence."""
        at_once = self.at.budget // (2 * MERGE_HELD * self.row_bytes)
        each = max(block_bytes(self.at.budget), self.row_bytes)
        portion = self.at.budget // (AT_HAND * len(runs) * each)
        return self.by.merged([portions(run, max(1, portion)) for run in runs], at_once)

    def _cut(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Yield the rows of ``blocks``, in blocks as small as those of a run."""
        rows = max(1, min(block_bytes(self.at.budget) // self.row_bytes, CHUNK))
        for block in blocks:
            for start in range(0, block.n, rows):
                yield block.slice(start, start + rows)

    def close(self) -> None:
        """Close the input and delete all rows, in memory and on disk."""
        super().close()
        if self.spill is not None:
            self.spill.close()


def block_bytes(budget: int) -> int:
    """Return the bytes of one block of a run: 1/256 of ``budget``, between 64 KiB and 1 MiB."""
    return max(LEAST_BLOCK, min(budget // 256, MOST_BLOCK))


def portions(run: Iterator[Block], blocks: int) -> Iterator[Block]:
    """Yield the rows of ``run``, with every ``blocks`` consecutive blocks joined into one."""
    while parts := list(islice(run, blocks)):
        yield concat(parts)


class RunHead:
    """The current block of one sorted run, with its keys; the block is None at the end of the run.

    ``fresh`` is True until a row is taken from the block, ``over`` once it is known that no block
    follows. ``size`` is the number of rows in the run's first block.
    """

    def __init__(self, run: Iterator[Block], keyed: Callable[[Block], Any]) -> None:
        self.run, self.keyed = run, keyed
        self.block: Block | None = None
        self.keys: Any = ()
        self.last: Any = None
        self.over = False
        self._next()
        self.size = len(self.keys)

    def _next(self) -> None:
        self._set(next(self.run, None))

    def _set(self, block: Block | None) -> None:
        self.block, self.start, self.fresh = block, 0, True
        if block is not None:
            self.keys = self.keyed(block)
            self.last = self.keys[len(self.keys) - 1]

    def more(self, rows: int) -> None:
        """Append the run's next blocks, of about ``rows`` rows together, to the current block."""
        if self.block is None:
            return
        parts = [self.block.slice(self.start, self.block.n)]
        while rows > 0 and (block := next(self.run, None)) is not None:
            parts.append(block)
            rows -= block.n
        self.over = rows > 0
        if len(parts) > 1:
            self._set(concat(parts))

    def take(self, stop: int) -> Block | None:
        """Remove and return the rows before index ``stop``; None if there are none."""
        if self.block is None or stop == self.start:
            return None
        part = self.block.slice(self.start, stop)
        self.start, self.fresh = stop, False
        if stop == self.block.n:
            self._next()
        return part

    @property
    def span(self) -> tuple[int, int]:
        """Return the numeric keys of the first and the last remaining row of the block."""
        return int(self.keys[self.start]), int(self.last)

    @property
    def rows(self) -> int:
        """Return the number of remaining rows of the block."""
        return len(self.keys) - self.start

    def up_to(self, bound: int) -> Iterator[tuple[Block, np.ndarray]]:
        """Take the remaining rows with numeric keys up to ``bound``, and yield them with keys."""
        going = True
        while going and self.block is not None:
            stop = int(np.searchsorted(self.keys, np.uint64(bound), "right"))
            keys = self.keys[self.start : stop]
            part = self.take(stop)
            going = part is not None and self.fresh
            if part is not None:
                yield part, keys


def merged(
    runs: list[Iterator[Block]], keyed: Callable[[Block], np.ndarray], at_once: int
) -> Iterator[Block]:
    """Yield the rows of sorted ``runs`` merged by (key, id), about ``at_once`` at a time.

    Each round takes the rows up to one key from every run. The key is chosen so that these are
    about ``at_once`` rows, by the density of keys in the current blocks: keys are hashes or ranks,
    evenly spread. A round consumes at least one block, so the merge advances for any keys.
    """
    found = (RunHead(run, keyed) for run in runs)
    heads = [head for head in found if head.block is not None]
    while heads:
        bound = _bound(heads, at_once)
        parts = [part for head in heads for part in head.up_to(bound)]
        whole = concat([block for block, _ in parts])
        yield whole.take(ordered_by(np.concatenate([key for _, key in parts]), whole.ids))
        heads = [head for head in heads if head.block is not None]


def _bound(heads: list[RunHead], at_once: int) -> int:
    spans = [head.span for head in heads]
    pairs = zip(heads, spans, strict=True)
    per_key = sum(head.rows / (last - first + 1) for head, (first, last) in pairs)
    wanted = min(first for first, _ in spans) + int(at_once / per_key)
    return max(min(last for _, last in spans), min(wanted, MOST_KEY))
