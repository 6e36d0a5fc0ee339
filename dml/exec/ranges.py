"""This file divides sorted runs into ranges of one order, and merges a range of all of them.

The first keys of all batches are a sample of all rows, evenly spaced by bytes: bounds of ranges are
taken from them. A range takes from each run the batches that reach into it, and cuts the first and
the last. Rows of equal keys may be parted, as the place of a row (run, row) goes on where keys
end; where they must stay together, all of them are in one range, which is then merged a few
batches of each run at a time.
"""

from __future__ import annotations

import dataclasses
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dml.errors import NonDeterminismError
from dml.exec.runs import BYTES, NAME, PLACE, ROWS, SCHEMA
from dml.expr.block import Block, concat
from dml.expr.ordering import Keyed, Ordering
from dml.expr.schema import Schema
from dml.expr.sorting import Keys, ordered_by
from dml.kernels.vec import Vec

KEY = "\0key"
# Bytes that a range takes while it is made, for each byte of it: its batches, joined, and sorted.
HELD = 3
# A range that is larger than planned by more than this is merged a few batches at a time.
LARGER = 2


@dataclasses.dataclass(frozen=True)
class ByColumns:
    """By values of columns; equal rows stay as they came, or ``together`` in one range."""

    ordering: Ordering
    together: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.ordering.names

    def check(self, given: Schema) -> None:
        """SchemaError unless there are all columns, and their values have an order."""
        self.ordering.check(given)

    def stored(self, block: Block) -> Block:
        """The rows as they are."""
        return block

    def order(self, block: Block) -> np.ndarray:
        """The order of the rows of ``block``."""
        return self.ordering.order(block)

    def keyed(self, block: Block) -> Keyed:
        """What rows compare by."""
        return self.ordering.keyed(block)

    def merged(self, runs: list[Iterator[Block]], at_once: int) -> Iterator[Block]:
        """Rows of sorted runs in one order."""
        return self.ordering.merged(runs, at_once)


@dataclasses.dataclass(frozen=True)
class ByKey:
    """By numbers that follow from ids, then by ids; the numbers are stored as a column."""

    keys: Keys | None
    together: bool = True
    names: tuple[str, ...] = (KEY,)

    def check(self, given: Schema) -> None:
        """All rows have ids."""

    def stored(self, block: Block) -> Block:
        """The rows with their keys."""
        if self.keys is None or KEY in block.schema:
            return block
        keys = Vec(self.keys(block.ids), None)
        kinds = Schema((*block.schema.items(), (KEY, pa.uint64())))
        return Block(kinds, (*block.columns, keys), block.ids)

    def order(self, block: Block) -> np.ndarray:
        """The order of the rows of ``block``."""
        return ordered_by(self.keyed(block), block.ids)

    def keyed(self, block: Block) -> np.ndarray:
        """The numbers."""
        return np.asarray(block[KEY][0])

    def merged(self, runs: list[Iterator[Block]], at_once: int) -> Iterator[Block]:
        """Rows of sorted runs in one order: keys are spread evenly, so no range is large."""
        parts = [block for run in runs for block in run]
        if parts:
            whole = concat(parts)
            yield whole.take(self.order(whole))


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
    """All batches of all runs, run by run in the order of the stream.

    ``heads`` are the first keys of batches, with the number of the run (``run``) and of the row in
    it (``row``), ``rows`` and ``nbytes`` the size; those of run j begin at ``offsets[j]``.
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

    @property
    def total_bytes(self) -> int:
        """Bytes of all runs."""
        return int(self.nbytes.sum())

    @property
    def slack_bytes(self) -> int:
        """Bytes of a batch of each run: as much may a range read too much."""
        return int(self.nbytes.max(initial=0)) * len(self.names)

    @staticmethod
    def of(told: Sequence[Block], by: ByColumns | ByKey) -> Index:
        """From what was told of each run; there is at least one."""
        counts = np.array([each.n for each in told])
        rows = [_numbers(each, ROWS) for each in told]
        return Index(
            pickle.loads(_first(told[0], SCHEMA)),  # noqa: S301 (of a worker of this run)
            tuple(_first(each, NAME).hex() for each in told),
            tuple(int(_numbers(each, PLACE)[0]) for each in told),
            concat([each.select(by.names) for each in told]),
            np.repeat(np.arange(len(told)), counts),
            np.concatenate([np.cumsum(each) - each for each in rows]),
            np.concatenate(rows),
            np.concatenate([_numbers(each, BYTES) for each in told]),
            np.concatenate([[0], np.cumsum(counts)]),
        )


def _first(block: Block, name: str) -> bytes:
    column: Any = block[name]
    return bytes(column[0].as_py())


def _numbers(block: Block, name: str) -> np.ndarray:
    return np.asarray(block[name][0])


def check_same(index: Index, told: Sequence[Block]) -> None:
    """NonDeterminismError if runs that were made again are not among those of ``index``."""
    known = set(index.names)
    strange = [each for each in told if _first(each, NAME).hex() not in known]
    if strange:
        raise NonDeterminismError(
            "rows were made again since a worker was lost, and are not what they were",
            why=f"{len(strange)} of {len(told)} runs differ; some of the others were used already",
            try_="functions of their row alone, without clocks, counters or random numbers",
        )


def bounds_of(index: Index, by: ByColumns | ByKey, range_bytes: int) -> tuple[int, ...]:
    """The batches whose first rows begin the second range, the third, and so on.

    Ranges have about ``range_bytes``, but for rows that must stay together.
    """
    order = by.order(index.heads)
    before = np.cumsum(index.nbytes[order]) - index.nbytes[order]
    number = before // max(1, range_bytes)
    found = order[np.flatnonzero(number[1:] > number[:-1]) + 1].tolist()
    if not by.together:
        return tuple(found)
    # one of the rows of a key begins a range of all of them; the least key is in the first anyway
    keyed, kept = by.keyed(index.heads), list[int]()
    last = keyed[int(order[0])]
    for each in found:
        if keyed[each] != last:
            kept.append(each)
        last = keyed[each]
    return tuple(kept)


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Batches ``first`` to ``stop`` of run ``run``, of which rows at either end may be left out."""

    run: int
    first: int
    stop: int


class Reader(Protocol):
    """Reads batches of runs, wherever they lie."""

    def all(self, spans: Sequence[Span]) -> list[Block]:
        """The rows of each span."""

    def each(self, span: Span) -> Iterator[Block]:
        """The batches of one, a few of them in memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ranges:
    """The ranges of all runs; range r begins at ``bounds[r - 1]`` and ends at ``bounds[r]``."""

    index: Index
    by: ByColumns | ByKey
    bounds: tuple[int, ...]
    range_bytes: int

    def __len__(self) -> int:
        return len(self.bounds) + 1

    def __getstate__(self) -> dict[str, object]:
        """What another process needs."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    @property
    def working_bytes(self) -> int:
        """Bytes that making a range takes: it, and a batch too much of each run."""
        return HELD * (self.range_bytes + self.index.slack_bytes)

    @cached_property
    def _keyed(self) -> Any:
        return self.by.keyed(self.index.heads)

    def spans(self, number: int) -> list[Span]:
        """What range ``number`` reads of each run."""
        found = []
        for run in range(len(self.index.names)):
            base, end = (int(each) for each in self.index.offsets[run : run + 2])
            first, stop = base, end
            if number:
                bound = self.bounds[number - 1]
                place = self._place(bound, run, self._keyed, base, end)
                first = place if self._exact(bound, run) else max(base, place - 1)
            if number < len(self.bounds):
                stop = self._place(self.bounds[number], run, self._keyed, base, end)
            if stop > first:
                found.append(Span(run, first - base, stop - base))
        return found

    def _exact(self, bound: int, run: int) -> bool:
        """True if a bound is the first row of a batch of this run, and nothing but that."""
        return not self.by.together and int(self.index.run[bound]) == run

    def _place(self, bound: int, run: int, keys: Any, low: int, high: int) -> int:
        """How many of sorted ``keys`` of a run, from ``low`` to ``high``, come before a bound."""
        own = int(self.index.run[bound])
        if self._exact(bound, run):
            return bound
        find = bisect_right if run < own and not self.by.together else bisect_left
        return find(keys, self._keyed[bound], low, high)

    def _cut(self, number: int, run: int, block: Block) -> Block:
        """The rows of a run's ``block`` that are in range ``number``."""
        start, stop = 0, block.n
        keys = self.by.keyed(block)
        if number and not self._exact(self.bounds[number - 1], run):
            start = self._place(self.bounds[number - 1], run, keys, 0, block.n)
        if number < len(self.bounds) and not self._exact(self.bounds[number], run):
            stop = self._place(self.bounds[number], run, keys, 0, block.n)
        return block.slice(start, max(start, stop))

    def rows(self, number: int, reader: Reader) -> Iterator[Block]:
        """The rows of range ``number`` in order, with the columns that came in."""
        spans = self.spans(number)
        starts = self.index.offsets
        nbytes = sum(
            int(self.index.nbytes[starts[s.run] + s.first : starts[s.run] + s.stop].sum())
            for s in spans
        )
        made = self._streamed if nbytes > LARGER * self.working_bytes // HELD else self._at_once
        names = tuple(name for name in self.index.schema.names if name != KEY)
        for block in made(number, spans, reader):
            yield block.select(names) if KEY in block.schema else block

    def _at_once(self, number: int, spans: list[Span], reader: Reader) -> Iterator[Block]:
        pairs = zip(spans, reader.all(spans), strict=True)
        parts = [self._cut(number, span.run, block) for span, block in pairs]
        parts = [part for part in parts if part.n]
        if parts:
            whole = concat(parts)
            parts.clear()
            yield whole.take(self.by.order(whole))

    def _streamed(self, number: int, spans: list[Span], reader: Reader) -> Iterator[Block]:
        runs = [self._of(number, span, reader) for span in spans]
        row_bytes = 1 + self.index.total_bytes // int(self.index.rows.sum())
        yield from self.by.merged(runs, max(1, self.range_bytes // row_bytes // HELD))

    def _of(self, number: int, span: Span, reader: Reader) -> Iterator[Block]:
        for block in reader.each(span):
            part = self._cut(number, span.run, block)
            if part.n:
                yield part
