"""This file merges a range of sorted runs within a bound of bytes, in as many passes as that takes.

A pass reads the runs one after the other, a few batches at a time, and keeps no more rows than the
bound: when there are more, those that come last are dropped, and nothing that comes behind the last
row kept is read any more. What is left are the first rows of the range. The next pass begins behind
them; most often there is none, as a range is planned to fit.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dml.exec.runs import Span, stored_bytes
from dml.expr.block import Block, concat

if TYPE_CHECKING:
    from dml.exec.ranges import Ranges, Reader

# What is read at once, of what is kept; and what is kept of it once it is too much.
PORTION, REST = 4, 2


@dataclasses.dataclass(slots=True)
class _Strand:
    """Batches ``first`` to ``stop`` of a run, whose rows before ``row`` were handed on."""

    run: int
    first: int
    stop: int
    row: int


@dataclasses.dataclass(slots=True)
class _Part:
    """Rows ``row`` to ``row + count`` of a strand, in memory."""

    strand: _Strand
    row: int
    count: int


class _Held:
    """The first rows of several runs, run by run.

    ``last`` is the number of the last of them in the order, and ``key`` its key, once others that
    come later were dropped.
    """

    def __init__(self, by: Any) -> None:
        self.by = by
        self.blocks: list[Block] = []
        self.parts: list[_Part] = []
        self.nbytes = 0
        self.last: int | None = None
        self.key: Any = None

    def add(self, part: _Part, block: Block) -> None:
        """Keep rows that come behind those here in their run, or are of a later one."""
        self.parts.append(part)
        self.blocks.append(block)
        self.nbytes += stored_bytes(block)

    def _ordered(self) -> tuple[Block, np.ndarray]:
        """All rows, and the order of those up to the last one."""
        whole = concat(self.blocks)
        self.blocks.clear()
        order = self.by.order(whole)
        if self.last is not None:
            order = order[: int(np.flatnonzero(order == self.last)[0]) + 1]
        return whole, order

    def _keep(self, chosen: np.ndarray) -> None:
        """Only the rows ``chosen``, which are sorted numbers, stay: first ones of each strand."""
        ends = np.cumsum([part.count for part in self.parts])
        counts = np.diff(np.searchsorted(chosen, ends), prepend=0)
        for part, count in zip(self.parts, counts.tolist(), strict=True):
            part.count = count

    def trim(self, most_bytes: int) -> None:
        """Drop the rows that come last where all take more than ``most_bytes``."""
        if self.nbytes <= most_bytes or sum(part.count for part in self.parts) == 1:
            return
        whole, order = self._ordered()
        rest = most_bytes // REST
        count = max(1, min(len(order), len(order) * rest // self.nbytes))
        kept = whole.take(np.sort(order[:count]))
        while stored_bytes(kept) > most_bytes and count > 1:
            count //= 2
            kept = whole.take(np.sort(order[:count]))
        chosen = np.sort(order[:count])
        self._keep(chosen)
        self.blocks, self.nbytes = [kept], stored_bytes(kept)
        self.last = int(np.searchsorted(chosen, order[count - 1]))
        self.key = self.by.keyed(kept)[self.last]

    def taken(self) -> Block | None:
        """All rows in order, which are given from now on; None if there are none."""
        if not self.blocks:
            return None
        whole, order = self._ordered()
        self._keep(np.sort(order))
        for part in self.parts:
            if part.count:
                part.strand.row = part.row + part.count
        return whole.take(order)


class Passes:
    """The rows of range ``number`` in order, read by ``reader``."""

    def __init__(self, ranges: Ranges, number: int, reader: Reader) -> None:
        self.ranges, self.number, self.reader = ranges, number, reader
        self.index, self.by = ranges.index, ranges.by
        self.strands = [
            _Strand(span.run, span.first, span.stop, 0) for span in ranges.spans(number)
        ]

    def __iter__(self) -> Iterator[Block]:
        """The rows, a block of each pass."""
        going = True
        while going:
            held = _Held(self.by)
            for some in self._portions(held):
                self._read(some, held)
                held.trim(self.ranges.most_bytes)
            going = held.last is not None
            block = held.taken()
            held.parts.clear()
            if block is not None:
                yield block
                del block
            self._move_on()

    def _move_on(self) -> None:
        """Begin each strand with the batch of the first row that was not handed on."""
        for strand in self.strands:
            base, end = self.index.offsets[strand.run : strand.run + 2]
            behind = int(np.searchsorted(self.index.row[base:end], strand.row, "right")) - 1
            whole = strand.row == self.index.row[end - 1] + self.index.rows[end - 1]
            strand.first = max(strand.first, strand.stop if whole else behind)
        self.strands = [strand for strand in self.strands if strand.first < strand.stop]

    def _portions(self, held: _Held) -> Iterator[list[tuple[_Strand, Span]]]:
        """What to read at once: neighbouring strands, each once."""
        most = self.ranges.most_bytes // PORTION
        some, size = list[tuple[_Strand, Span]](), 0
        for strand in self.strands:
            at = strand.first
            while at < (reach := self._reach(strand, at, held)):
                stop, nbytes = self._fitting(strand.run, at, reach, most - size)
                if stop == at and not some:
                    stop, nbytes = at + 1, most
                if stop > at:
                    some.append((strand, Span(strand.run, at, stop)))
                    size += nbytes
                    at = stop
                if at < reach:
                    yield some
                    some, size = [], 0
        if some:
            yield some

    def _reach(self, strand: _Strand, at: int, held: _Held) -> int:
        """The first batch of a strand, from ``at`` on, that is not read."""
        if held.last is None:
            return strand.stop
        base = int(self.index.offsets[strand.run])
        heads = self.ranges.heads
        return int(self._find(heads, held.key, base + at, base + strand.stop)) - base

    @property
    def _find(self) -> Any:
        """Finds rows that may come before the last one: of equal keys, an id may decide."""
        return bisect_left if self.by.by_run else bisect_right

    def _fitting(self, run: int, first: int, stop: int, most_bytes: int) -> tuple[int, int]:
        """How far batches from ``first`` on take at most ``most_bytes``, and what they take."""
        base = int(self.index.offsets[run])
        sizes = np.cumsum(self.index.nbytes[base + first : base + stop])
        count = int(np.searchsorted(sizes, most_bytes, "right"))
        return first + count, int(sizes[count - 1]) if count else 0

    def _read(self, some: list[tuple[_Strand, Span]], held: _Held) -> None:
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
                if part.n < block.n:  # a view would keep all of it
                    part = part.take(np.arange(part.n))
                held.add(_Part(strand, row + start, part.n), part)
