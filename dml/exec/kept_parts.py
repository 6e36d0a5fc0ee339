"""This file lays out entries that follow each other as one part of the store, and reads them back.

A batch of the part is the rows of an entry, or of several if they are small. What else an entry is
stands in a few numbers beside them; of positions, which are long, one stands here and there, and
the others are counted from it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dml.exec.ids_beside import FREE, PICKED, apart, beside, form_of, ids_of, picked
from dml.exec.own import own
from dml.exec.schema_text import schema_of, schema_text
from dml.exec.store.parts import Rows
from dml.expr.block import Block, concat
from dml.expr.flow import Entry, Position
from dml.expr.schema import Schema
from dml.kernels.ids import RowIds
from dml.kernels.vec import Vec

VERSION = 2  # of what is said of a part; parts of others are not read
# Between two positions that are written down: what a run computes again that goes on from between
# them, where nothing is kept any more.
MARK_BYTES = 256 << 10
# Less than this is written, mapped and taken apart with what follows it: a call for each column of
# each entry takes as long as moving 20 kB.
GATHERED_BYTES = 1 << 20


class Packing:
    """What is said of the entries that were put into a part, from element ``first`` on."""

    def __init__(self, first: int, block: Block, form: int, *, batched: bool) -> None:
        self.first, self.schema, self.batched = first, block.schema, batched
        self.form = max(form, form_of(block.ids))
        self.before: Position | None = None
        self.waiting: list[Block] = []
        self.batches: list[int] = []  # entries of each
        self.rows: list[int] = []
        self.starts: list[tuple[int, int]] = []
        self.marks: list[tuple[int, Position]] = []
        self.count = self.nbytes = self.unmarked = self.waiting_bytes = 0

    def takes(self, block: Block) -> bool:
        """True if rows of these types, with such ids, can be in the same part."""
        return form_of(block.ids) <= self.form and block.schema == self.schema

    def packed(self, entry: Entry) -> Iterator[pa.RecordBatch]:
        """What is to be written now that there is an entry more."""
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
        self.waiting.append(own(block))  # who gets it may write to it
        self.waiting_bytes += size
        if self.waiting_bytes >= GATHERED_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What waits to be written with more."""
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
        """Note a position; the one before goes if not much lies between it and another."""
        if self.unmarked:
            self.marks.pop()
        self.marks.append((len(self.rows), after))
        self.nbytes += nbytes
        self.unmarked += nbytes + 1
        if self.unmarked >= MARK_BYTES:
            self.unmarked = 0

    def about(self, schemas: Mapping[int, Schema], *, last: bool) -> dict[str, Any]:
        """What is committed with the rows; ``last`` if no element comes behind them."""
        return {
            **_about(self.first, schemas, last=last),
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


def of_nothing(first: int, schemas: Mapping[int, Schema]) -> dict[str, Any]:
    """What is said of a part without an entry: the stream ends before element ``first``."""
    return _about(first, schemas, last=True)


def _about(first: int, schemas: Mapping[int, Schema], *, last: bool) -> dict[str, Any]:
    texts = {str(place): schema_text(schema) for place, schema in schemas.items()}
    return {"kept": VERSION, "first": first, "elements": 0, "bytes": 0, "last": last,
            "schemas": texts, "rows": [], "batches": []}  # fmt: skip


class Packed:
    """Entries of a part; their blocks lie over the memory of its rows."""

    def __init__(self, rows: Rows, *, batched: bool) -> None:
        self.about, self.batches = rows.about, rows.batches
        self.mapped, self.came = not rows.loaded_bytes, rows.came
        self.places_in: list[tuple[int, int]] = []  # batch and row at which each entry begins
        self.totals: list[int] = []  # rows of each batch
        self.whole: tuple[int, Block, list[np.ndarray]] | None = None
        counts: list[int] = rows.about["rows"]
        elements = [1] * len(counts) if batched else counts
        self.places = list(itertools.accumulate(elements, initial=int(rows.about["first"])))
        self.first, self.end = self.places[0], self.places[-1]
        self.schema = schema_of(rows.about["schema"]) if counts else Schema()
        self.marks = [(0, rows.about.get("before")), *rows.about.get("marks", ())]
        self.marked = [number for number, _ in self.marks]
        left = iter(counts)
        for number, entries in enumerate(rows.about.get("batches", ())):
            ends = list(itertools.accumulate(itertools.islice(left, entries), initial=0))
            self.places_in += [(number, row) for row in ends[:-1]]
            self.totals.append(ends[-1])

    @property
    def schemas(self) -> dict[int, Schema]:
        """Types that had settled when these elements were made, by operator."""
        return {int(place): schema_of(text) for place, text in self.about["schemas"].items()}

    def entry(self, place: int) -> Entry:
        """The entry with element number ``place``, which is in this part."""
        number = bisect_right(self.places, place) - 1
        since, before = self._mark(number)
        until, after = self._mark(number + 1)
        return Entry(self.places[number], before, self._block(number), after, since, until)  # type: ignore[arg-type]

    def _mark(self, number: int) -> tuple[int, Position | None]:
        """The last position that is known before entry ``number``, and the element it is before."""
        entry, position = self.marks[bisect_right(self.marked, number) - 1]
        return self.places[entry], position

    def _block(self, number: int) -> Block:
        count, form = self.about["rows"][number], self.about["ids"]
        batch, row = self.places_in[number]
        whole, columns = self._whole(batch, form)
        first = (0, 0) if form == FREE else self.about["starts"][number]
        ids = ids_of(form, [each[row : row + count] for each in columns], count, first)
        return Block(self.schema, whole.slice(row, row + count).columns, ids)

    def _whole(self, number: int, form: int) -> tuple[Block, list[np.ndarray]]:
        """The rows of a batch, and columns of their ids; of the last one that was asked for."""
        known = self.whole
        if known is None or known[0] != number:
            plain, columns = apart(self.batches[number], form)
            whole = Block.from_arrow(plain, RowIds.run(0, 0, self.totals[number]), self.schema)
            _freeze(whole)
            known = self.whole = number, whole, columns
        return known[1], known[2]


def read(rows: Rows, *, batched: bool) -> Packed | None:
    """The entries of a part; None if it is not one that this version writes."""
    if rows.about.get("kept") != VERSION or len(rows.about["batches"]) != len(rows.batches):
        return None
    return Packed(rows, batched=batched)


def _freeze(block: Block) -> None:
    """Let nobody write to what others have, too: bits were unpacked into memory of their own."""
    for column in block.columns:
        for array in column if isinstance(column, Vec) else ():
            if array is not None:
                array.flags.writeable = False
