"""Divide sorted runs into ranges of one total order, and merge each range from all runs.

The first keys of all batches are a sample of all rows, evenly spaced by bytes; the bounds of ranges
are chosen from these keys. To make a range, a task reads from each run the batches that overlap the
range, cuts the first and the last of them, and sorts the rows together. Rows of equal keys may fall
into different ranges, as their numbers (run, row) break ties. Where rows of equal keys must stay
together, they all are in one range, which may exceed memory: then its sort uses the local disk.
"""

from __future__ import annotations

import dataclasses
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dml.cluster.exchange.sorted_runs import (
    BYTES,
    ROWS,
    RUN,
    BatchSpan,
    ByColumns,
    ByKey,
)
from dml.data.block import Block, concat
from dml.data.schema import Schema
from dml.errors import NonDeterminismError
from dml.ops.sort.external_sort import HELD, Sorted

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow

# Divisor of ``Ranges.most_bytes``: the bytes that are read at once.
PORTION = 4


@dataclasses.dataclass(frozen=True, eq=False)
class RunIndex:
    """All batches of all runs: run by run in the order of the stream, in order within a run.

    For each batch, ``heads`` has its first key, ``run`` the number of its run, ``row`` the number
    of its first row in the run, ``rows`` and ``nbytes`` its size. The batches of run j begin at
    ``offsets[j]``. For each run, ``names`` has its name and ``places`` the place of its partition
    in reading order. ``short`` is the number of key columns up to the first one with cut values; 0
    if no value was cut.
    """

    schema: Schema
    names: tuple[str, ...]
    places: tuple[int, ...]
    heads: Block
    run: np.ndarray
    row: np.ndarray
    rows: np.ndarray
    nbytes: np.ndarray
    offsets: np.ndarray
    short: int

    @property
    def total_bytes(self) -> int:
        """The bytes of all runs on disk."""
        return int(self.nbytes.sum())

    @property
    def batch_bytes(self) -> int:
        """The bytes of the largest batch on disk."""
        return int(self.nbytes.max(initial=1))

    @staticmethod
    def of(told: Sequence[Block], by: ByColumns | ByKey) -> RunIndex:
        """Build the index from the reports of runs, at least one; see ``sorted_runs.described``."""
        counts = np.array([each.n for each in told])
        rows = [_numbers(each, ROWS) for each in told]
        names, places, short, schemas = zip(*map(_about, told), strict=True)
        return RunIndex(
            *(schemas[0], names, places),
            concat([each.select(by.names) for each in told]),
            np.repeat(np.arange(len(told)), counts),
            np.concatenate([np.cumsum(each) - each for each in rows]),
            np.concatenate(rows),
            np.concatenate([_numbers(each, BYTES) for each in told]),
            np.concatenate([[0], np.cumsum(counts)]),
            min(filter(None, short), default=0),
        )


def _about(block: Block) -> Any:
    """Return the name, place, number of compared columns and schema of a run from its report."""
    column: Any = block[RUN]
    return pickle.loads(column[0].as_py())  # noqa: S301 (of a worker of this run)


def _numbers(block: Block, name: str) -> np.ndarray:
    return np.asarray(block[name][0])


def check_same(index: RunIndex, told: Sequence[Block]) -> None:
    """Raise NonDeterminismError if reports of rewritten runs have names that ``index`` lacks."""
    known = set(index.names)
    strange = [each for each in told if _about(each)[0] not in known]
    if strange:
        raise NonDeterminismError(
            "rows were made again since a worker was lost, and are not what they were",
            why=f"{len(strange)} of {len(told)} runs differ; some of the others were used already",
            try_="functions of their row alone, without clocks, counters or random numbers",
        )


def bounds_of(index: RunIndex, by: ByColumns | ByKey, range_bytes: int) -> tuple[int, ...]:
    """Return the bounds between ranges, ascending: the numbers of batches that begin a range.

    Ranges have about ``range_bytes``, or more where rows of equal keys must stay together.
    """
    by = by.placing(index.short)
    order = by.order(index.heads)
    before = np.cumsum(index.nbytes[order]) - index.nbytes[order]
    number = before // max(1, range_bytes)
    found = order[np.flatnonzero(number[1:] > number[:-1]) + 1].tolist()
    if not by.together:
        return tuple(found)
    # a range begins with the first row of a key; the least key is in the first range anyway
    keyed, kept = by.keyed(index.heads), list[int]()
    last = keyed[int(order[0])]
    for each in found:
        if keyed[each] != last:
            kept.append(each)
        last = keyed[each]
    return tuple(kept)


@dataclasses.dataclass(frozen=True, eq=False)
class Ranges:
    """The ranges of all runs: range r begins at ``bounds[r - 1]`` and ends before ``bounds[r]``.

    A bound is the first key of that batch in ``index``; rows in memory have up to ``most_bytes``.
    """

    index: RunIndex
    by: ByColumns | ByKey
    bounds: tuple[int, ...]
    range_bytes: int
    most_bytes: int

    def __len__(self) -> int:
        return len(self.bounds) + 1

    def __getstate__(self) -> dict[str, object]:
        """Return the fields without the cached properties, for pickling."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    @property
    def working_bytes(self) -> int:
        """The memory in bytes for making one range: rows in memory, or the batches of one read."""
        return HELD * max(self.most_bytes, 2 * self.index.batch_bytes)

    @cached_property
    def placing(self) -> ByColumns | ByKey:
        """The order by which rows are compared with bounds."""
        return self.by.placing(self.index.short)

    @cached_property
    def heads(self) -> Any:
        """The first keys of all batches, in a form that can be compared."""
        return self.placing.keyed(self.index.heads)

    @cached_property
    def _order(self) -> np.ndarray:
        return self.placing.order(self.index.heads)

    @cached_property
    def _before(self) -> list[int]:
        """For each bound, the number of first keys of batches that precede it in the order."""
        if self.placing.together:
            order, heads = self._order.tolist(), self.heads
            return [
                bisect_left(order, heads[bound], key=heads.__getitem__) for bound in self.bounds
            ]
        place = np.empty(len(self._order), "i8")
        place[self._order] = np.arange(len(place))
        return [int(place[bound]) for bound in self.bounds]

    def spans(self, number: int) -> list[BatchSpan]:
        """Return the batches of each run that may have rows of range ``number``."""
        base, end = self.index.offsets[:-1], self.index.offsets[1:]
        first, stop = base, end
        if number:
            bound = self.bounds[number - 1]
            place = base + self._counts(self._before[number - 1])
            # the last rows of the previous batch may belong here, unless its head is its only row
            reaching = (place > base) & (self.index.rows[np.maximum(place, 1) - 1] > 1)
            if not self.placing.together:
                reaching[self.index.run[bound]] = False
            first = place - reaching
        if number < len(self.bounds):
            stop = base + self._counts(self._before[number])
        return [
            BatchSpan(run, int(first[run] - base[run]), int(stop[run] - base[run]))
            for run in np.flatnonzero(stop > first).tolist()
        ]

    def _counts(self, before: int) -> np.ndarray:
        """Return for each run how many of the ``before`` first batch heads in order are in it."""
        runs = self.index.run[self._order[:before]]
        return np.bincount(runs, minlength=len(self.index.names))

    def cut(self, number: int, run: int, block: Block) -> tuple[int, int]:
        """Return the first and the end row number of range ``number`` in a run's ``block``."""
        keys, start, stop = self.placing.keyed(block), 0, block.n
        if number:
            start = self._place(self.bounds[number - 1], run, keys, 0)
        if number < len(self.bounds):
            stop = self._place(self.bounds[number], run, keys, stop)
        return start, stop

    def _place(self, bound: int, run: int, keys: Any, exact: int) -> int:
        """Return how many of the sorted ``keys``, from run ``run``, precede bound ``bound``.

        If the bound is the first key of a batch of the same run, the number is ``exact``.
        """
        own = int(self.index.run[bound])
        if run == own and not self.placing.together:
            return exact
        find = bisect_right if run < own and not self.placing.together else bisect_left
        return find(keys, self.heads[bound], 0, len(keys))

    def rows(
        self, number: int, read: Callable[[Sequence[BatchSpan]], list[Block]], at: At
    ) -> Sorted:
        """Return the flow of the rows of range ``number`` in order, with their key columns.

        ``read`` returns for each span the rows of its batches, as one block. Of more than
        ``most_bytes`` bytes, sorted runs are written to ``at.spill``.
        """
        flow = cast("Flow", RangeRows(self, number, read))
        at = dataclasses.replace(at, budget=HELD * self.most_bytes)
        return Sorted(lambda: flow, None, at, self.by)


class RangeRows:
    """The rows of range ``number`` as a flow for a sort: run by run, as ``read`` reads them."""

    def __init__(
        self, ranges: Ranges, number: int, read: Callable[[Sequence[BatchSpan]], list[Block]]
    ) -> None:
        self.ranges, self.number, self.read = ranges, number, read
        self.blocks = self._blocks()

    def pull(self, _most: int) -> Block | None:
        """Return the next rows, however many; None at the end."""
        return next(self.blocks, None)

    def close(self) -> None:
        """Read no more rows."""
        self.blocks = iter(())

    def _blocks(self) -> Iterator[Block]:
        for spans in self._portions():
            blocks = self.read(spans)
            blocks.reverse()
            for span in spans:
                block = blocks.pop()
                part = block.slice(*self.ranges.cut(self.number, span.run, block))
                if 0 < part.n < block.n:  # a view would keep the whole block in memory
                    part = part.take(np.arange(part.n))
                if part.n:
                    yield part

    def _portions(self) -> Iterator[list[BatchSpan]]:
        """Yield spans to read together: a batch or more, run by run, each run at most once."""
        index, most_bytes = self.ranges.index, self.ranges.most_bytes // PORTION
        some, size = list[BatchSpan](), 0
        for span in self.ranges.spans(self.number):
            first, base = span.first, int(index.offsets[span.run])
            for batch in range(span.first, span.stop):
                size += int(index.nbytes[base + batch])
                if size > most_bytes and (some or batch > first):
                    if batch > first:
                        some.append(BatchSpan(span.run, first, batch))
                    yield some
                    some, first, size = [], batch, int(index.nbytes[base + batch])
            some.append(BatchSpan(span.run, first, span.stop))
        if some:
            yield some
