"""This file cuts what functions of rows make into blocks by its bytes, so that large rows are few.

Nobody knows how large a row will be before the function has made it. So a function is called on a
few rows first, then on four times as many, as long as what it made allows it; where rows are
numbers alone, their size is known. How a block is cut follows from the rows of that block alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from dml.expr.block import Block, concat
from dml.expr.layouts import TEXTS
from dml.expr.schema import Schema, code_of

# Rows that are dicts at one time: few enough to stay in the processor's cache.
CALLS = 16384
# Bytes of one block of made rows, but for its last row.
PART_BYTES = 2 << 20
# Rows that a function is called on before what it made is weighed: at first, and at most.
FIRST_STEP, GROWTH, MOST_STEP = 1, 4, 4096
# First rows by which the types of what a function returns settle, where those are not known, and
# bytes of what it returned that are enough (SEMANTICS, "Values").
SETTLING_ROWS, SETTLING_BYTES = 64, 4 << 20
# Expressions that would make more of a block than that see it in parts which give so much less; of
# text, some rows tell how much that is.
LARGE_BYTES, LARGE_PART_BYTES, SAMPLED_ROWS = 32 << 20, 8 << 20, 64
# Of what one task may gather, a row that a function returned may be one part in so many.
ROW_SHARE = 2
# What takes no bytes to speak of beside its place in a row.
PLAIN = frozenset({int, float, bool, type(None)})
PLAIN_BYTES = 16


def row_bytes(schema: Schema) -> int | None:
    """Bytes of the values of one row; None where rows differ, or nothing is known."""
    if not schema.known or any(code == "arrow" for code, _ in schema.forms):
        return None
    return sum(int(code[1]) * math.prod(shape) for code, shape in schema.forms)


class Pace:
    """On how many rows a function is called next; ``schema`` is that of the rows it makes."""

    def __init__(self, schema: Schema | None) -> None:
        each = None if schema is None else row_bytes(schema)
        self.known, self.each_bytes = each is not None, each or 0.0
        few = -(-PART_BYTES // max(1, each or 1))  # as many as make a block
        self.step = FIRST_STEP if each is None else max(1, min(CALLS, few))
        self.most = MOST_STEP if each is None else self.step

    def made(self, rows: int, nbytes: int) -> None:
        """So many rows took so many bytes: no next ones are expected to take less."""
        if self.known:
            return
        self.each_bytes = max(self.each_bytes, nbytes / max(1, rows))
        allowed = int(PART_BYTES // max(1.0, self.each_bytes))
        self.step = max(1, min(GROWTH * self.step, self.most, allowed))


def by_weight(
    n: int,
    schema: Schema,
    work: Callable[[int, int], Iterator[Block]],
    edge: Callable[[int], int | None] = lambda _: None,
) -> Iterator[Block]:
    """What ``work`` makes of ``n`` rows, in blocks of ``CALLS`` of them, fewer where they weigh.

    ``work`` is given the first and the last of some rows, one behind the other, and makes rows of
    ``schema`` of each by itself. What was made before it raises comes first. A block that begins at
    some row ends at its ``edge``, if there is one.
    """
    pace, start = Pace(schema), 0
    while start < n:
        made, end = _Weighing(), min(n, start + CALLS, edge(start) or n)
        try:
            while start < end and made.weight < PART_BYTES:
                stop = min(start + pace.step, end)
                before = made.weight
                made.extend(work(start, stop))
                pace.made(stop - start, made.weight - before)
                start = stop
        except Exception:
            yield from made.whole()
            raise
        yield from made.whole()


class _Weighing:
    """Blocks that are held, and their weight."""

    def __init__(self) -> None:
        self.blocks, self.weight = list[Block](), 0

    def extend(self, blocks: Iterator[Block]) -> None:
        for block in blocks:
            self.blocks.append(block)
            self.weight += block.weight

    def whole(self) -> Iterator[Block]:
        """All as one block, none of none; who waits for what follows holds no parts of it."""
        if self.blocks:
            made = concat(self.blocks) if len(self.blocks) > 1 else self.blocks[0]
            self.blocks.clear()
            yield made


class Weighing:
    """Whether rows that come one by one are ``PART_BYTES`` together: weighed when ``due``."""

    def __init__(self) -> None:
        self.step, self.each_bytes = FIRST_STEP, 1.0
        self.begin()

    def begin(self) -> None:
        """No rows are held; those that come may be as heavy as any that came."""
        self.rows = self.nbytes = 0
        self.due = self.step

    def enough(self, rows: Sequence[Any]) -> bool:
        """Weigh those of ``rows`` that came since the last time."""
        new = rows[self.rows :]
        if not new:
            return False
        weight = weighed(new)
        self.nbytes, self.rows = self.nbytes + weight, len(rows)
        self.each_bytes = max(self.each_bytes, weight / len(new))
        self.step = max(1, min(GROWTH * self.step, MOST_STEP, int(PART_BYTES // self.each_bytes)))
        self.due = self.rows + self.step
        return self.nbytes >= PART_BYTES


class Rows:
    """The rows of ``blocks``, by their numbers, which only grow; made when they are asked for."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self.blocks = blocks
        self.at_hand: Block | None = None

    def look(self) -> None:
        """Have the first of them made."""
        if self.at_hand is None:
            self.at_hand = next(self.blocks, None)

    def take(self, rows: int) -> Iterator[Block]:
        """The next ``rows`` rows, in as many blocks as it takes; fewer only at the end."""
        while rows:
            block = self.at_hand or next(self.blocks, None)
            if block is None:
                return
            self.at_hand = block.slice(rows, block.n) if block.n > rows else None
            rows -= min(rows, block.n)
            yield block.slice(0, block.n - (self.at_hand.n if self.at_hand else 0))


def in_parts(block: Block, schema: Schema, sample: Callable[[Block], int]) -> Iterator[Block]:
    """``block`` as a whole, or in parts if rows of ``schema`` made of it would be large.

    ``sample`` says what some rows become, in bytes, where ``schema`` does not.
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
    """The largest of some made rows, and its bytes, if it is larger than ``most_bytes``.

    None if it is not, and all together are at most twice as much, or what types settle by.
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
    """Bytes of rows of ``schema``; of text alone where nothing else differs in size."""
    kinds = [] if schema is None else [n for n, k in schema.items() if code_of(k) == "arrow"]
    try:
        if kinds and all(schema[n] in TEXTS for n in kinds if schema is not None):
            return sum(sum(map(len, map(itemgetter(name), values))) for name in kinds)
    except (KeyError, TypeError, IndexError):  # a null, or what others complain of
        pass
    return weighed(values)


def weighed(values: Sequence[Any]) -> int:
    """About how many bytes some rows take: dicts of values, or anything."""
    first = values[0] if values else None
    if not isinstance(first, Mapping):
        return sum(map(held_bytes, values))
    try:
        columns = [list(map(itemgetter(name), values)) for name in first]
    except Exception:  # noqa: BLE001 - a row that does not fit, which others complain of
        return sum(map(held_bytes, values))
    return sum(map(_weighed, columns))


def _weighed(column: list[Any]) -> int:
    kinds = frozenset(map(type, column))
    if kinds <= PLAIN:
        return PLAIN_BYTES * len(column)
    return sum(map(len if kinds in LENGTHS else held_bytes, column))


LENGTHS = (frozenset({str}), frozenset({bytes}))


def held_bytes(value: Any) -> int:
    """About how many bytes a value takes, with all that is in it."""
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
