"""This file divides sorted runs into ranges of one order, and merges a range of all of them.

The first keys of all batches are a sample of all rows, evenly spaced by bytes: bounds of ranges are
taken from them. A range takes from each run the batches that reach into it, and cuts the first and
the last. Rows of equal keys may be parted, as the place of a row (run, row) goes on where keys
end; where they must stay together, all of them are in one range, which is then made in several
passes (``passes``).
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

from dml.errors import NonDeterminismError
from dml.exec.heads import shortened
from dml.exec.passes import Passes
from dml.exec.runs import BYTES, NAME, PLACE, ROWS, SCHEMA, SHORT, Span
from dml.expr.block import Block, concat
from dml.expr.ordering import Keyed, Ordering
from dml.expr.schema import Schema
from dml.expr.sorting import Keys, ordered_by
from dml.kernels.vec import Vec

KEY = "\0key"
# Bytes that a range takes while it is made, for each byte kept of it: as read, joined, and sorted.
HELD = 3


@dataclasses.dataclass(frozen=True)
class ByColumns:
    """By values of columns; equal rows stay as they came, or ``together`` in one range."""

    ordering: Ordering
    together: bool = False
    by_run: ClassVar[bool] = True  # equal rows stay run by run

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

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Keys without long texts."""
        return shortened(heads, self.ordering)

    def placing(self, count: int) -> ByColumns:
        """What places are told by where only bounds are known of values of column ``count``."""
        if not count:
            return self
        names, down = self.ordering.names[:count], self.ordering.descending[:count]
        fewer = dataclasses.replace(self.ordering, names=names, descending=down)
        return ByColumns(fewer, together=True)


@dataclasses.dataclass(frozen=True)
class ByKey:
    """By numbers that follow from ids, then by ids; the numbers are stored as a column."""

    keys: Keys | None
    together: bool = True
    names: tuple[str, ...] = (KEY,)
    by_run: ClassVar[bool] = False

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

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Numbers are short."""
        return heads, 0

    def placing(self, count: int) -> ByKey:
        """The same."""
        del count
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
    """All batches of all runs, run by run in the order of the stream.

    ``heads`` are the first keys of batches, with the number of the run (``run``) and of the row in
    it (``row``), ``rows`` and ``nbytes`` the size; those of run j begin at ``offsets[j]``.
    ``short`` is the number of columns that decide, up to the first that was cut; 0 if none was.
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
        """Bytes of all runs."""
        return int(self.nbytes.sum())

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch."""
        return int(self.nbytes.max(initial=1))

    @staticmethod
    def of(told: Sequence[Block], by: ByColumns | ByKey) -> Index:
        """From what was told of each run; there is at least one."""
        counts = np.array([each.n for each in told])
        rows = [_numbers(each, ROWS) for each in told]
        short = [int(_numbers(each, SHORT)[0]) for each in told]
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
            min(filter(None, short), default=0),
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
    by = by.placing(index.short)
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


class Reader(Protocol):
    """Reads batches of runs, wherever they lie."""

    def all(self, spans: Sequence[Span]) -> list[Block]:
        """The rows of each span."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ranges:
    """The ranges of all runs; range r begins at ``bounds[r - 1]`` and ends at ``bounds[r]``.

    Rows of ``most_bytes`` may be kept while a range is made.
    """

    index: Index
    by: ByColumns | ByKey
    bounds: tuple[int, ...]
    range_bytes: int
    most_bytes: int

    def __len__(self) -> int:
        return len(self.bounds) + 1

    def __getstate__(self) -> dict[str, object]:
        """What another process needs."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    @property
    def working_bytes(self) -> int:
        """Bytes that making a range takes: rows that are kept, or batches that are read."""
        return HELD * max(self.most_bytes, 2 * self.index.batch_bytes)

    @cached_property
    def placing(self) -> ByColumns | ByKey:
        """What compares rows with bounds."""
        return self.by.placing(self.index.short)

    @cached_property
    def heads(self) -> Any:
        """The keys of all heads."""
        return self.placing.keyed(self.index.heads)

    @cached_property
    def _order(self) -> np.ndarray:
        return self.placing.order(self.index.heads)

    @cached_property
    def _before(self) -> list[int]:
        """Of each bound, how many heads of all runs come before it."""
        if self.placing.together:
            order, heads = self._order.tolist(), self.heads
            return [
                bisect_left(order, heads[bound], key=heads.__getitem__) for bound in self.bounds
            ]
        place = np.empty(len(self._order), "i8")
        place[self._order] = np.arange(len(place))
        return [int(place[bound]) for bound in self.bounds]

    def spans(self, number: int) -> list[Span]:
        """What range ``number`` reads of each run."""
        base, end = self.index.offsets[:-1], self.index.offsets[1:]
        first, stop = base, end
        if number:
            bound = self.bounds[number - 1]
            place = base + self._counts(self._before[number - 1])
            # rows of the batch before may reach in, unless its head is its only row
            reaching = (place > base) & (self.index.rows[np.maximum(place, 1) - 1] > 1)
            if not self.placing.together:
                reaching[self.index.run[bound]] = False
            first = place - reaching
        if number < len(self.bounds):
            stop = base + self._counts(self._before[number])
        return [
            Span(run, int(first[run] - base[run]), int(stop[run] - base[run]))
            for run in np.flatnonzero(stop > first).tolist()
        ]

    def _counts(self, before: int) -> np.ndarray:
        """Of the first heads in the order, how many each run has."""
        runs = self.index.run[self._order[:before]]
        return np.bincount(runs, minlength=len(self.index.names))

    def cut(self, number: int, run: int, block: Block) -> tuple[int, int]:
        """From where to where the rows of a run's ``block`` are in range ``number``."""
        keys, start, stop = self.placing.keyed(block), 0, block.n
        if number:
            start = self._place(self.bounds[number - 1], run, keys, 0)
        if number < len(self.bounds):
            stop = self._place(self.bounds[number], run, keys, stop)
        return start, stop

    def _place(self, bound: int, run: int, keys: Any, exact: int) -> int:
        """How many of sorted ``keys`` of a run come before a bound.

        That of a row that begins a batch of the same run is ``exact``.
        """
        own = int(self.index.run[bound])
        if run == own and not self.placing.together:
            return exact
        find = bisect_right if run < own and not self.placing.together else bisect_left
        return find(keys, self.heads[bound], 0, len(keys))

    def rows(self, number: int, reader: Reader) -> Iterator[Block]:
        """The rows of range ``number`` in order, with the columns that came in."""
        names = tuple(name for name in self.index.schema.names if name != KEY)
        for block in Passes(self, number, reader):
            yield block.select(names) if KEY in block.schema else block
