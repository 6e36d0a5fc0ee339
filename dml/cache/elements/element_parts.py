"""Lay out consecutive cached blocks as one part of the store, and read them back.

A record batch of the part has the rows of one block, or of several small blocks; a few numbers
describe each block. Positions are long, so only some are stored; any other is a stored one and a
number of elements after it. The spans of all parts of a stream tell which part has an element.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dml.cache.parts.parts import PartRows
from dml.cache.parts.stored_blocks import StoredBlocks
from dml.data.block import Block, concat
from dml.data.block_copy import own
from dml.data.id_columns import FREE, PICKED, beside, form_of, picked
from dml.data.schema import Schema
from dml.data.schema_text import schema_of, schema_text
from dml.expr.flow import CachedBlock, Position
from dml.kernels.vec import Vec

VERSION = 2  # version of a part's description; parts of other versions are not read
# Bytes between two stored positions: a run that resumes between them recomputes at most these,
# once the elements are no longer cached.
MARK_BYTES = 256 << 10
# Bytes of entries that are written, mapped and sliced together: a call for each column of each
# entry takes as long as moving 20 kB.
GATHERED_BYTES = 1 << 20


class Packing:
    """Lays out cached blocks as one part, which begins with element ``first``."""

    def __init__(self, first: int, block: Block, form: int, *, batched: bool) -> None:
        self.first, self.schema, self.batched = first, block.schema, batched
        self.form = max(form, form_of(block.ids))
        self.before: Position | None = None
        self.waiting: list[Block] = []
        self.batches: list[int] = []  # number of entries in each record batch
        self.rows: list[int] = []
        self.starts: list[tuple[int, int]] = []
        self.marks: list[tuple[int, Position]] = []
        self.count = self.nbytes = self.unmarked = self.waiting_bytes = 0

    def takes(self, block: Block) -> bool:
        """Return True if the part can hold rows with this schema and this form of ids."""
        return form_of(block.ids) <= self.form and block.schema == self.schema

    def packed(self, entry: CachedBlock) -> Iterator[pa.RecordBatch]:
        """Add a cached block, and yield the record batches that it completes."""
        block, ids = entry.block, entry.block.ids
        if not self.rows:
            self.before = entry.before
        self.rows.append(block.n)
        self.starts.append((0, 0) if self.form == FREE else (int(ids.hi), int(ids.lo)))
        self.count += 1 if self.batched else block.n
        size = block.nbytes
        self._marked(entry.after, size)
        if size >= GATHERED_BYTES:
            yield from self.rest()
            self.waiting.append(block)
            yield from self.rest()
            return
        self.waiting.append(own(block))  # the consumer of the entry may write to it
        self.waiting_bytes += size
        if self.waiting_bytes >= GATHERED_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the small blocks that were added but not yielded, as one record batch."""
        blocks, self.waiting, self.waiting_bytes = self.waiting, [], 0
        if not blocks:
            return
        self.batches.append(len(blocks))
        columns: list[np.ndarray] = []
        if self.form == FREE:
            halves = zip(*(each.ids.arrays() for each in blocks), strict=True)
            columns = [np.concatenate(half) for half in halves]
        if self.form == PICKED:
            columns = [np.concatenate([picked(each.ids) for each in blocks])]
        yield beside(concat(blocks).to_arrow(), self.form, columns)

    def _marked(self, after: Position, nbytes: int) -> None:
        """Store position ``after``; stored positions are ``MARK_BYTES`` apart, except the last."""
        if self.unmarked:
            self.marks.pop()
        self.marks.append((len(self.rows), after))
        self.nbytes += nbytes
        self.unmarked += nbytes + 1
        if self.unmarked >= MARK_BYTES:
            self.unmarked = 0

    def about(self, schemas: Mapping[int, Schema], *, last: bool) -> dict[str, Any]:
        """Return the description committed with the rows; ``last`` if the stream ends here."""
        return {
            **empty_part(self.first, schemas, last=last),
            "before": self.before,
            "elements": self.count,
            "bytes": self.nbytes,
            "rows": self.rows,
            "batches": self.batches,
            "marks": self.marks,
            "ids": self.form,
            "starts": [] if self.form == FREE else self.starts,
            "schema": schema_text(self.schema),
        }


def empty_part(first: int, schemas: Mapping[int, Schema], *, last: bool) -> dict[str, Any]:
    """Describe a part without elements; ``last`` if the stream ends before element ``first``."""
    texts = {str(place): schema_text(schema) for place, schema in schemas.items()}
    return {"kept": VERSION, "first": first, "elements": 0, "bytes": 0, "last": last,
            "schemas": texts, "rows": [], "batches": []}  # fmt: skip


class PackedEntries:
    """The cached blocks of a stored part, as views of the part's memory."""

    def __init__(self, rows: PartRows, *, batched: bool) -> None:
        self.about, counts = rows.about, rows.about["rows"]
        self.mapped, self.came = not rows.loaded_bytes, rows.came
        elements = [1] * len(counts) if batched else counts
        self.places = list(itertools.accumulate(elements, initial=int(rows.about["first"])))
        self.first, self.end = self.places[0], self.places[-1]
        self.marks = [(0, rows.about.get("before")), *rows.about.get("marks", ())]
        self.marked = [number for number, _ in self.marks]
        form = rows.about.get("ids", FREE)
        firsts = rows.about["starts"] if form != FREE else [(0, 0)] * len(counts)
        schema = schema_of(rows.about["schema"]) if counts else Schema()
        self.blocks = StoredBlocks(list(_runs(rows)), form, firsts, schema, _freeze)

    @property
    def schemas(self) -> dict[int, Schema]:
        """The schemas that had settled when the elements were made, by operator number."""
        return {int(place): schema_of(text) for place, text in self.about["schemas"].items()}

    def entry(self, place: int) -> CachedBlock:
        """Return the cached block that holds element ``place``, which is in this part."""
        number = bisect_right(self.places, place) - 1
        since, before = self._mark(number)
        until, after = self._mark(number + 1)
        block = self.blocks.joined([number])
        return CachedBlock(self.places[number], before, block, after, since, until)  # type: ignore[arg-type]

    def _mark(self, number: int) -> tuple[int, Position | None]:
        """Return the element at the last mark up to block ``number``, and the position there."""
        entry, position = self.marks[bisect_right(self.marked, number) - 1]
        return self.places[entry], position


def _runs(rows: PartRows) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
    """Yield the record batches of a part, each with the row counts of its entries."""
    counts, entries = iter(rows.about["rows"]), iter(rows.about["batches"])
    for batch, stored in rows.runs:
        some = sum(itertools.islice(entries, len(stored)))
        yield batch, list(itertools.islice(counts, some))


def read(rows: PartRows, *, batched: bool) -> PackedEntries | None:
    """Return the cached blocks of a part; None if its description has another version."""
    stored = sum(len(counts) for _, counts in rows.runs)
    if rows.about.get("kept") != VERSION or len(rows.about["batches"]) != stored:
        return None
    return PackedEntries(rows, batched=batched)


def _freeze(block: Block) -> None:
    """Make the arrays of a block read-only, since several readers share them."""
    for column in block.columns:
        for array in column if isinstance(column, Vec) else ():
            if array is not None:
                array.flags.writeable = False


# ---------------------------------------------------------------------------------------- all parts


class PartSpan(NamedTuple):
    """The elements ``first`` to ``end - 1`` of a part; ``last`` is True if they end the stream."""

    first: int
    end: int
    last: bool
    nbytes: int

    @staticmethod
    def of(about: Mapping[str, Any]) -> PartSpan:
        """Return the span that the description of a part states."""
        first = int(about["first"])
        return PartSpan(first, first + int(about["elements"]), about["last"], int(about["bytes"]))


class Spans:
    """The spans of a stream's parts; each begins where the previous one ends, or earlier."""

    def __init__(self) -> None:
        self.of: dict[int, PartSpan] = {}
        self.firsts: list[tuple[int, int]] = []  # first element and part number, ascending
        self.ends: dict[int, int] = {}  # number of the part that ends before an element

    def know(self, number: int, span: PartSpan) -> None:
        """Add the span of the stored part ``number``."""
        self.forget(number)
        self.of[number] = span
        self.ends[span.end] = max(number, self.ends.get(span.end, 0))
        insort(self.firsts, (span.first, number))

    def forget(self, number: int) -> None:
        """Remove the span of part ``number``, which may no longer be stored."""
        span = self.of.pop(number, None)
        if span is None:
            return
        self.firsts.remove((span.first, number))
        if self.ends[span.end] == number:
            others = [n for n, each in self.of.items() if each.end == span.end]
            self.ends.update({span.end: max(others)} if others else {})
            if not others:
                del self.ends[span.end]

    def covering(self, place: int) -> int | None:
        """Return the number of the part that holds element ``place``, or None."""
        at = bisect_right(self.firsts, (place, 1 << 62)) - 1
        for first, number in reversed(self.firsts[max(0, at - 1) : at + 1]):
            if first <= place < self.of[number].end:
                return number
        return None

    def absent(self, place: int) -> int | None:
        """Return the number of the missing part that would begin with element ``place``, if any."""
        if place and place not in self.ends:
            return None
        number = self.ends[place] + 1 if place else 0
        return None if number in self.of else number

    def ended(self, place: int) -> bool:
        """Return True if the last part of the stream ends before element ``place``."""
        number = self.ends.get(place)
        return number is not None and self.of[number].last

    def reach(self) -> tuple[int, int, bool]:
        """Return the elements up to a gap, the bytes of all parts, and True if none is missing."""
        reach, whole = 0, False
        for first, number in self.firsts:
            span = self.of[number]
            if first <= reach <= span.end:
                reach, whole = span.end, span.last
        return reach, sum(span.nbytes for span in self.of.values()), whole
