"""Rows that functions return are cut into blocks by bytes, so that a block has few large rows.

The size of a row is unknown before the function returns it. So a function is called on a few rows
first, then on four times as many, as long as the bytes returned so far allow it; the size of rows
of numbers alone is known. How a block is cut depends on the rows of that block alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from dml.data.block import Block, concat
from dml.data.layouts import TEXTS
from dml.data.schema import Schema, code_of

# Most rows that exist as dicts at a time: few enough to stay in the processor's cache.
CALLS = 16384
# Bytes of one block of returned rows, without its last row; and of rows that have a place in memory
# which outlives the block.
PART_BYTES, PLACED_BYTES = 2 << 20, 8 << 20
# Rows that a function is called on before its result is measured: at first, and at most.
FIRST_STEP, GROWTH, MOST_STEP = 1, 4, 4096
# Number of first rows from which unknown types of returned columns are inferred, and the bytes of
# returned rows that are enough (SEMANTICS, "Values").
SETTLING_ROWS, SETTLING_BYTES = 64, 4 << 20
# A block from which an expression would make more than LARGE_BYTES is computed in parts with
# results of about LARGE_PART_BYTES; for text, the size is estimated from SAMPLED_ROWS rows.
LARGE_BYTES, LARGE_PART_BYTES, SAMPLED_ROWS = 32 << 20, 8 << 20, 64
# A returned row may take at most one ROW_SHARE-th of the bytes that a task may gather.
ROW_SHARE = 2
# Types whose values take no bytes to speak of besides their slot in a row.
PLAIN = frozenset({int, float, bool, type(None)})
PLAIN_BYTES = 16


def row_bytes(schema: Schema) -> int | None:
    """Return the bytes of the values of one row; None if they differ by row, or are unknown."""
    if not schema.known:
        return None
    total = 0
    for code, shape in schema.forms:
        if code == "arrow":
            return None
        total += int(code[1]) * math.prod(shape)
    return total


class CallPace:
    """Chooses ``step``, the number of rows for the next call of a function, by result size.

    ``schema`` is the schema of the results, or None if it is unknown. Results may be ``placed`` in
    memory that outlives their block.
    """

    def __init__(self, schema: Schema | None, *, placed: bool = False) -> None:
        each = None if schema is None else row_bytes(schema)
        self.known, self.each_bytes = each is not None, each or 0.0
        few = -(-PART_BYTES // max(1, each or 1))  # as many as make a block
        if placed:
            few = max(few, PLACED_BYTES // max(1, each or 1))
        self.step = FIRST_STEP if each is None else max(1, min(CALLS, few))
        self.most = MOST_STEP if each is None else self.step

    def record(self, rows: int, nbytes: int) -> None:
        """Record the bytes of the last rows; later rows are expected to be as large."""
        if self.known:
            return
        self.each_bytes = max(self.each_bytes, nbytes / max(1, rows))
        allowed = int(PART_BYTES // max(1.0, self.each_bytes))
        self.step = max(1, min(GROWTH * self.step, self.most, allowed))


def by_weight(
    n: int,
    schema: Schema,
    work: Callable[[int, int], Iterator[Block]],
    edge: Callable[[int], int] | None = None,
) -> Iterator[Block]:
    """Run ``work`` on ``n`` rows, in blocks of ``CALLS`` rows, fewer where rows are large.

    ``work(start, stop)`` is called for consecutive ranges of rows, and yields blocks of ``schema``,
    computed from each row separately. If it raises, its earlier results are yielded first. With
    ``edge``, rows have places in memory that outlives their blocks, and a block that begins at row
    i ends at row ``edge(i)`` at the latest.
    """
    pace, start = CallPace(schema, placed=edge is not None), 0
    while start < n:
        made, end = _Weighing(), min(n, start + CALLS, n if edge is None else edge(start))
        try:
            while start < end and made.weight < PART_BYTES:
                stop = min(start + pace.step, end)
                before = made.weight
                made.extend(work(start, stop))
                pace.record(stop - start, made.weight - before)
                start = stop
        except Exception:
            yield from made.whole()
            raise
        yield from made.whole()


class _Weighing:
    """Blocks gathered so far, and ``weight``, the sum of their ``Block.weight``."""

    def __init__(self) -> None:
        self.blocks, self.weight = list[Block](), 0

    def extend(self, blocks: Iterator[Block]) -> None:
        for block in blocks:
            self.blocks.append(block)
            self.weight += block.weight

    def whole(self) -> Iterator[Block]:
        """Yield all blocks joined to one, if there are any, and drop the references to them."""
        if self.blocks:
            made = concat(self.blocks)
            self.blocks.clear()
            yield made


class Weighing(CallPace):
    """Detects when rows reach ``PART_BYTES``; call ``enough`` as soon as there are ``due`` rows."""

    def __init__(self) -> None:
        super().__init__(None)
        self.begin()

    def begin(self) -> None:
        """Begin a new block, whose rows may be as large as any before."""
        self.rows = self.nbytes = 0
        self.due = self.step

    def enough(self, rows: Sequence[Any]) -> bool:
        """Measure the ``rows`` new since the last call; return True if the block is full."""
        new = rows[self.rows :]
        if not new:
            return False
        weight = weighed(new)
        self.nbytes, self.rows = self.nbytes + weight, len(rows)
        self.record(len(new), weight)
        self.due = self.rows + self.step
        return self.nbytes >= PART_BYTES


class NumberedRows:
    """Reads a given number of rows at a time from ``blocks``, an iterator that computes blocks."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self.blocks = blocks
        self.at_hand: Block | None = None

    def look(self) -> None:
        """Compute the next block, unless rows of the current block are left."""
        if self.at_hand is None:
            self.at_hand = next(self.blocks, None)

    def take(self, rows: int) -> Iterator[Block]:
        """Yield the next ``rows`` rows, in one or more blocks; fewer only at the end."""
        while rows:
            block = self.at_hand or next(self.blocks, None)
            if block is None:
                return
            self.at_hand = block.slice(rows, block.n) if block.n > rows else None
            rows -= min(rows, block.n)
            yield block.slice(0, block.n - (self.at_hand.n if self.at_hand else 0))


def in_parts(block: Block, schema: Schema, sample: Callable[[Block], int]) -> Iterator[Block]:
    """Yield ``block`` whole, or in parts if the results computed from it would be large.

    Results have ``schema``. If rows of ``schema`` have no fixed size, ``sample`` is called with the
    first rows, and returns the bytes of their results.
    """
    each: float | None = row_bytes(schema)
    if each is None and block.n > SAMPLED_ROWS:
        each = sample(block.slice(0, SAMPLED_ROWS)) / SAMPLED_ROWS
    if each is None or each * block.n <= LARGE_BYTES:
        yield block
        return
    step = max(1, int(LARGE_PART_BYTES // each))
    for start in range(0, block.n, step):
        yield block.slice(start, start + step)


def unfit(values: Sequence[Any], schema: Schema | None, most_bytes: int) -> tuple[int, int] | None:
    """Return index and bytes of the largest row, if it has more than ``most_bytes``.

    If only the sum of all rows is too large, return the sum in place of the row's bytes. The sum is
    too large beyond twice the greater of ``most_bytes`` and ``SETTLING_BYTES``. Return None if
    nothing is too large.
    """
    each = None if schema is None else row_bytes(schema)
    nbytes = _of_text(values, schema) if each is None else each * len(values)
    if nbytes <= most_bytes:
        return None
    sizes = [held_bytes(value) if each is None else each for value in values]
    heaviest = max(sizes)
    if heaviest <= most_bytes and nbytes <= 2 * max(most_bytes, SETTLING_BYTES):
        return None
    return sizes.index(heaviest), heaviest if heaviest > most_bytes else nbytes


def _of_text(values: Sequence[Any], schema: Schema | None) -> int:
    """Return the bytes of rows of ``schema``; if only texts vary in size, those of texts alone."""
    kinds = [] if schema is None else [n for n, k in schema.items() if code_of(k) == "arrow"]
    try:
        if kinds and all(schema[n] in TEXTS for n in kinds if schema is not None):
            return sum(sum(map(len, map(itemgetter(name), values))) for name in kinds)
    except (KeyError, TypeError, IndexError):  # a null, or a bad row, which is reported elsewhere
        pass
    return weighed(values)


def weighed(values: Sequence[Any]) -> int:
    """Estimate the bytes of some rows, which are dicts of values, or any objects."""
    first = values[0] if values else None
    if not isinstance(first, Mapping):
        return sum(map(held_bytes, values))
    try:
        columns = [list(map(itemgetter(name), values)) for name in first]
    except Exception:  # noqa: BLE001 - a row that does not fit, which is reported elsewhere
        return sum(map(held_bytes, values))
    return sum(map(_weighed, columns))


def _weighed(column: list[Any]) -> int:
    kinds = frozenset(map(type, column))
    if kinds <= PLAIN:
        return PLAIN_BYTES * len(column)
    if kinds == {list} and PLAIN.issuperset(type(value[0]) for value in column if value):
        return PLAIN_BYTES * sum(map(len, column))
    return sum(map(len if kinds in LENGTHS else held_bytes, column))


LENGTHS = (frozenset({str}), frozenset({bytes}))


def held_bytes(value: Any) -> int:
    """Estimate the bytes of a value, with all nested values."""
    try:
        if isinstance(value, str | bytes | bytearray):
            return len(value)
        if isinstance(value, np.ndarray):
            return int(value.nbytes)
        if isinstance(value, Mapping):
            return sum(map(held_bytes, value.values()))
        if isinstance(value, list | tuple):
            plain = not value or type(value[0]) in PLAIN
            return PLAIN_BYTES * len(value) if plain else sum(map(held_bytes, value))
    except Exception:  # noqa: BLE001 - an object of the user's, of which no column can be made either
        return PLAIN_BYTES
    return PLAIN_BYTES
