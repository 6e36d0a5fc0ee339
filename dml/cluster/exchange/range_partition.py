"""Divide sorted runs into ranges of one total order, and merge each range from all runs.

The first keys of all batches are a sample of all rows, evenly spaced by bytes; the bounds of ranges
are chosen from these keys. To make a range, a task reads from each run the batches that overlap the
range, and cuts the first and the last of them. Rows of equal keys may fall into different ranges,
since their numbers (run, row) break ties. Where rows of equal keys must stay together, they all are
in one range, for which the runs are read in several passes (``RangePasses``).
"""

from __future__ import annotations

import dataclasses
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from dml.cluster.exchange.sorted_runs import (
    BYTES,
    NAME,
    PLACE,
    ROWS,
    SCHEMA,
    SHORT,
    BatchSpan,
    stored_bytes,
)
from dml.data.block import Block, concat, to_arrow
from dml.data.layouts import is_text_or_bytes
from dml.data.schema import Schema
from dml.errors import NonDeterminismError
from dml.kernels.vec import Vec
from dml.ops.sort.external_sort import Keys, ordered_by
from dml.ops.sort.row_order import Ordering

# Number of letters, or of bytes, to which long key values are cut.
LONGEST = 256
# The greatest code point, the greatest byte, and the code points of surrogates.
LAST_LETTER, LAST_BYTE, SURROGATES = 0x10FFFF, 0xFF, range(0xD800, 0xE000)


def bounded(value: Any, *, down: bool) -> Any:
    """Return ``value`` if it is short, else a short bound that sorts correctly with all other rows.

    The bound is a prefix of ``value``, which sorts before it. With ``down`` (descending order), it
    is the least value above all values with that prefix, or ``value`` itself if there is none.
    """
    if len(value) <= LONGEST:
        return value
    begin = value[:LONGEST]
    if not down:
        return begin
    above = _above_text(begin) if isinstance(begin, str) else _above_bytes(begin)
    return value if above is None else above


def _above_text(begin: str) -> str | None:
    begin = begin.rstrip(chr(LAST_LETTER))
    if not begin:
        return None
    letter = ord(begin[-1]) + 1
    return begin[:-1] + chr(SURROGATES.stop if letter in SURROGATES else letter)


def _above_bytes(begin: bytes) -> bytes | None:
    begin = begin.rstrip(bytes([LAST_BYTE]))
    return begin[:-1] + bytes([begin[-1] + 1]) if begin else None


KEY = "\0key"
# Bytes in memory for each byte of a range while it is made: as read, joined, and sorted.
HELD = 3


@dataclasses.dataclass(frozen=True)
class ByColumns(Ordering):
    """Order by columns; rows of equal values stay in order and, if ``together``, in one range."""

    together: bool = False
    by_run: ClassVar[bool] = True  # equal rows stay run by run

    def stored(self, block: Block) -> Block:
        """Return ``block`` unchanged, since its own columns are the keys."""
        return block

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Return the keys ``heads`` with long values cut, and the number of columns to compare by.

        These are the columns up to the first one with a cut value; 0 (all) if none was cut.
        """
        columns, first = list(heads.columns), 0
        for number, (name, down) in enumerate(zip(self.names, self.descending, strict=True)):
            at, kind = heads.schema.names.index(name), heads.schema[name]
            if not is_text_or_bytes(kind):
                continue
            values = to_arrow(columns[at], kind).to_pylist()
            cut = [value if value is None else bounded(value, down=down) for value in values]
            if cut != values:
                columns[at] = pa.array(cut, kind)
                first = first or number + 1
        return Block(heads.schema, tuple(columns), heads.ids), first

    def placing(self, count: int) -> ByColumns:
        """Return the order for comparing with bounds: by the first ``count`` columns, 0 for all."""
        if not count:
            return self
        names, down = self.names[:count], self.descending[:count]
        return dataclasses.replace(self, names=names, descending=down, together=True)


@dataclasses.dataclass(frozen=True)
class ByKey:
    """The order by 64-bit keys derived from row ids, then by ids.

    The keys are stored with the rows in a column; without ``keys``, that column must exist already.
    """

    keys: Keys | None
    together: bool = True
    names: tuple[str, ...] = (KEY,)
    by_run: ClassVar[bool] = False

    def check(self, given: Schema) -> None:
        """Accept any schema, since all rows have ids."""

    def stored(self, block: Block) -> Block:
        """Return the rows of ``block`` with a column of their keys, if this order has ``keys``."""
        if self.keys is None or KEY in block.schema:
            return block
        keys = Vec(self.keys(block.ids), None)
        kinds = Schema((*block.schema.items(), (KEY, pa.uint64())))
        return Block(kinds, (*block.columns, keys), block.ids)

    def order(self, block: Block) -> np.ndarray:
        """Return the row numbers of ``block`` in this order, int64."""
        return ordered_by(self.keyed(block), block.ids)

    def keyed(self, block: Block) -> np.ndarray:
        """Return the stored keys of the rows of ``block``, uint64."""
        return np.asarray(block[KEY][0])

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Return ``heads`` unchanged and 0, since numbers are never cut."""
        return heads, 0

    def placing(self, count: int) -> ByKey:
        """Return this order unchanged, since bounds contain whole keys."""
        del count
        return self


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
        short = [int(_numbers(each, SHORT)[0]) for each in told]
        return RunIndex(
            pickle.loads(_first(told[0], SCHEMA)),  # noqa: S301 (of a worker of this run)
            tuple(_first(each, NAME).hex() for each in told),
            tuple(int(_numbers(each, PLACE)[0]) for each in told),
            concat([each.select(by.names) for each in told]),
            np.repeat(np.arange(len(told)), counts),
            np.concatenate([np.cumsum(each) - each for each in rows]),
            np.concatenate(rows),
            np.concatenate([_numbers(each, BYTES) for each in told]),
            np.concatenate([[0], np.cumsum(counts)]),
            min(filter(None, short), default=0),
        )


def _first(block: Block, name: str) -> bytes:
    column: Any = block[name]
    return bytes(column[0].as_py())


def _numbers(block: Block, name: str) -> np.ndarray:
    return np.asarray(block[name][0])


def check_same(index: RunIndex, told: Sequence[Block]) -> None:
    """Raise NonDeterminismError if reports of rewritten runs have names that ``index`` lacks."""
    known = set(index.names)
    strange = [each for each in told if _first(each, NAME).hex() not in known]
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


class BatchReader(Protocol):
    """Reads batches of runs, on any worker."""

    def all(self, spans: Sequence[BatchSpan]) -> list[Block]:
        """Return for each span the rows of its batches, as one block."""


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

    def rows(self, number: int, reader: BatchReader) -> Iterator[Block]:
        """Yield the rows of range ``number`` in order, without the column of keys."""
        names = tuple(name for name in self.index.schema.names if name != KEY)
        for block in RangePasses(self, number, reader):
            yield block.select(names) if KEY in block.schema else block


# Divisors of ``most_bytes``: for the bytes read at once, and for the rows kept when trimming.
PORTION, REST = 4, 2


@dataclasses.dataclass(slots=True)
class _Strand:
    """The batches ``first`` up to ``stop`` of a run, whose rows before ``row`` were delivered."""

    run: int
    first: int
    stop: int
    row: int


@dataclasses.dataclass(slots=True)
class _Part:
    """The rows ``row`` up to ``row + count`` of a strand's run, which are in memory."""

    strand: _Strand
    row: int
    count: int


class _Held:
    """The rows in memory: for each of several runs its first undelivered rows, run by run.

    If rows at the end were dropped, ``last`` is the number of the row that is now the last one,
    ``key`` its key.
    """

    def __init__(self, by: Any) -> None:
        self.by = by
        self.blocks: list[Block] = []
        self.parts: list[_Part] = []
        self.nbytes = 0
        self.last: int | None = None
        self.key: Any = None

    def add(self, part: _Part, block: Block) -> None:
        """Add the next rows of the run of ``part.strand``, or the first rows of a later run."""
        self.parts.append(part)
        self.blocks.append(block)
        self.nbytes += stored_bytes(block)

    def _ordered(self) -> tuple[Block, np.ndarray]:
        """Return all rows as one block, and their numbers in order, up to row ``last``."""
        whole = concat(self.blocks)
        self.blocks.clear()
        order = self.by.order(whole)
        if self.last is not None:
            order = order[: int(np.flatnonzero(order == self.last)[0]) + 1]
        return whole, order

    def _keep(self, chosen: np.ndarray) -> None:
        """Reduce the counts of parts to the rows ``chosen``, which are ascending row numbers."""
        ends = np.cumsum([part.count for part in self.parts])
        counts = np.diff(np.searchsorted(chosen, ends), prepend=0)
        for part, count in zip(self.parts, counts.tolist(), strict=True):
            part.count = count

    def trim(self, most_bytes: int) -> None:
        """Drop rows from the end of the order until the others take at most ``most_bytes``."""
        if self.nbytes <= most_bytes or sum(part.count for part in self.parts) == 1:
            return
        whole, order = self._ordered()
        rest = most_bytes // REST
        count = max(1, min(len(order), len(order) * rest // self.nbytes))
        chosen = np.sort(order[:count])
        while stored_bytes(kept := whole.take(chosen)) > most_bytes and count > 1:
            count //= 2
            chosen = np.sort(order[:count])
        self._keep(chosen)
        self.blocks, self.nbytes = [kept], stored_bytes(kept)
        self.last = int(np.searchsorted(chosen, order[count - 1]))
        self.key = self.by.keyed(kept)[self.last]

    def take_rows(self) -> Block | None:
        """Return all rows in order, and mark them as delivered; None if there are none."""
        if not self.blocks:
            return None
        whole, order = self._ordered()
        self._keep(np.sort(order))
        for part in self.parts:
            if part.count:
                part.strand.row = part.row + part.count
        return whole.take(order)


class RangePasses:
    """Iterates over the rows of range ``number`` in order, in as many passes as memory requires.

    A pass reads all runs of the range, and keeps the first rows in the order that fit in memory.
    """

    def __init__(self, ranges: Ranges, number: int, reader: BatchReader) -> None:
        self.ranges, self.number, self.reader = ranges, number, reader
        self.index, self.by = ranges.index, ranges.by
        self.strands = [
            _Strand(span.run, span.first, span.stop, 0) for span in ranges.spans(number)
        ]

    def __iter__(self) -> Iterator[Block]:
        """Yield one block of rows for each pass."""
        going = True
        while going:
            held = _Held(self.by)
            for some in self._portions(held):
                self._read(some, held)
                held.trim(self.ranges.most_bytes)
            going = held.last is not None
            block = held.take_rows()
            held.parts.clear()
            if block is not None:
                yield block
                del block
            self._move_on()

    def _move_on(self) -> None:
        """Begin each strand at the batch of its first undelivered row; drop finished strands."""
        for strand in self.strands:
            base, end = self.index.offsets[strand.run : strand.run + 2]
            behind = int(np.searchsorted(self.index.row[base:end], strand.row, "right")) - 1
            whole = strand.row == self.index.row[end - 1] + self.index.rows[end - 1]
            strand.first = max(strand.first, strand.stop if whole else behind)
        self.strands = [strand for strand in self.strands if strand.first < strand.stop]

    def _portions(self, held: _Held) -> Iterator[list[tuple[_Strand, BatchSpan]]]:
        """Yield spans to read together, strand by strand, until all rows of the pass are read."""
        most = self.ranges.most_bytes // PORTION
        some, size = list[tuple[_Strand, BatchSpan]](), 0
        for strand in self.strands:
            at = strand.first
            while at < (reach := self._reach(strand, at, held)):
                stop, nbytes = self._fitting(strand.run, at, reach, most - size)
                if stop == at and not some:
                    stop, nbytes = at + 1, most
                if stop > at:
                    some.append((strand, BatchSpan(strand.run, at, stop)))
                    size += nbytes
                    at = stop
                if at < reach:
                    yield some
                    some, size = [], 0
        if some:
            yield some

    def _reach(self, strand: _Strand, at: int, held: _Held) -> int:
        """Return the end of a strand's batches, from ``at`` on, that may have rows of this pass."""
        if held.last is None:
            return strand.stop
        base = int(self.index.offsets[strand.run])
        heads = self.ranges.heads
        return int(self._find(heads, held.key, base + at, base + strand.stop)) - base

    @property
    def _find(self) -> Any:
        """The bisection that finds the end of the rows that may precede row ``last``.

        Rows of equal keys are ordered by run, or by their ids.
        """
        return bisect_left if self.by.by_run else bisect_right

    def _fitting(self, run: int, first: int, stop: int, most_bytes: int) -> tuple[int, int]:
        """Return the end of the batches from ``first`` on that fit ``most_bytes``; their bytes."""
        base = int(self.index.offsets[run])
        sizes = np.cumsum(self.index.nbytes[base + first : base + stop])
        count = int(np.searchsorted(sizes, most_bytes, "right"))
        return first + count, int(sizes[count - 1]) if count else 0

    def _read(self, some: list[tuple[_Strand, BatchSpan]], held: _Held) -> None:
        blocks = self.reader.all([span for _, span in some])
        blocks.reverse()
        for strand, span in some:
            block = blocks.pop()
            row = int(self.index.row[self.index.offsets[span.run] + span.first])
            start, stop = self.ranges.cut(self.number, span.run, block)
            start = max(start, strand.row - row)
            if held.last is not None and start < stop:
                stop = self._find(self.by.keyed(block), held.key, start, stop)
            if start < stop:
                part = block.slice(start, stop)
                if part.n < block.n:  # a view would keep the whole block in memory
                    part = part.take(np.arange(part.n))
                held.add(_Part(strand, row + start, part.n), part)
