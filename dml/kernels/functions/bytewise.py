"""Text functions are computed on bytes, for many rows together.

Each step returns exactly the bytes that its text function returns, or None if it cannot.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dml.kernels.functions.byte_sets import ASCII, ByteSet, of_characters, set_of

# A row with so many characters to strip at one end, or with more, is left to pyarrow.
STRIPPED = 32

CASE_BIT = 32

# If fewer than one row in so many is cut, the rows between cut ones are copied in one piece.
SPARSE = 8


class Bytes(NamedTuple):
    """Consecutive rows in UTF-8: row i is ``data[edges[i] : edges[i + 1]]``.

    ``ascii`` is true only if every byte is below 128. ``data`` is never written to.
    """

    data: np.ndarray
    edges: np.ndarray
    ascii: bool


def bytes_of(text: pa.Array) -> Bytes:
    """Return the rows of a column of text; the bytes under nulls may be anything."""
    if not len(text):
        return Bytes(np.zeros(0, "u1"), np.zeros(1, "i8"), ascii=True)
    _, ends, data = text.buffers()
    width = "i8" if pa.types.is_large_string(text.type) else "i4"
    edges = np.frombuffer(ends, width)[text.offset : text.offset + len(text) + 1].astype("i8")
    held = np.frombuffer(data or b"", "u1")[edges[0] : edges[-1]]
    return Bytes(held, edges - edges[0], ascii=False)


def text_of(rows: Bytes, kind: pa.DataType, valid: pa.Array | None = None) -> pa.Array:
    """Return rows as a column of text of type ``kind``, null where ``valid`` is false."""
    edges = rows.edges.astype("i8" if pa.types.is_large_string(kind) else "i4", copy=False)
    present = None if valid is None else valid.buffers()[1]
    buffers = [present, pa.py_buffer(edges), pa.py_buffer(rows.data)]
    return pa.Array.from_buffers(kind, len(edges) - 1, buffers)


# A function that returns changed rows; None if it cannot give the exact result for these rows.
Step = Callable[[Bytes], Bytes | None]


def step_of(name: str, params: tuple[Any, ...]) -> Step | None:
    """Return the step over bytes of text function ``name``; None if it has none."""
    maker = MAKERS.get(name)
    return None if maker is None else maker(*params)


# ---------------------------------------------------------------------------------------- letters


@dataclasses.dataclass(frozen=True, slots=True)
class Letters:
    """Change the case of the 26 ASCII letters from ``first`` on."""

    first: int

    def __call__(self, rows: Bytes) -> Bytes | None:
        if not rows.ascii:
            return None
        found = np.subtract(rows.data, self.first, dtype="u1")
        bits = np.less(found, 26, out=found.view(bool)).view("u1")
        np.multiply(bits, CASE_BIT, out=bits)
        return rows._replace(data=np.bitwise_xor(rows.data, bits, out=bits))


LOWERED, RAISED = Letters(ord("A")), Letters(ord("a"))


# --------------------------------------------------------------------------------------- patterns


@dataclasses.dataclass(frozen=True, slots=True)
class Replaced:
    """Replace matches of ``members`` by ``byte``, or remove them if ``byte`` is None.

    With ``lead`` or ``trail``, ``byte`` is also stripped from the start or the end of rows. In that
    case ``members`` include ``byte``, so that two adjacent ones never remain.
    """

    members: ByteSet
    byte: int | None
    lead: bool = False
    trail: bool = False

    def __call__(self, rows: Bytes) -> Bytes | None:
        if self.members.others and not rows.ascii:
            return None
        found = self.members.within(rows.data)
        if self.byte is None:
            return _select_bytes(rows, ~found)
        dropped = self.dropped(rows, found) if self.members.runs else None
        made = rows._replace(data=_filled(rows.data, found, self.byte))
        return made if dropped is None else _select_bytes(made, ~dropped)

    def dropped(self, rows: Bytes, found: np.ndarray) -> np.ndarray:
        """Mask the bytes to drop: in each run of ``found`` bytes all but the first.

        With ``lead`` or ``trail``, the run at the start or the end of a row is dropped entirely.
        """
        after = np.empty(len(found) + 1, bool)
        after[1:] = found
        after[rows.edges[:-1]] = self.lead
        dropped = np.logical_and(after[:-1], found, out=after[:-1])
        if self.trail:
            starts, ends = rows.edges[:-1], rows.edges[1:]
            ending = np.flatnonzero(found[ends - 1] & (starts < ends)) if len(found) else ends[:0]
            dropped[_run_starts(found, starts[ending], ends[ending])] = True
        return np.asarray(dropped)


def _run_starts(found: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return where each row's last run of ``found`` begins: (rows,) indices of bytes.

    Row i is ``starts[i]`` to ``ends[i]``, and its last byte is ``found``.
    """
    firsts = ends - 1
    going = np.arange(len(ends))
    for _ in range(STRIPPED):
        going = going[firsts[going] > starts[going]]
        going = going[found[firsts[going] - 1]]
        if not len(going):
            return firsts
        firsts[going] -= 1
    others = np.flatnonzero(~found)
    places = np.searchsorted(others, ends[going]) - 1
    last = np.append(others, -1)[places]
    firsts[going] = np.maximum(last + 1, starts[going])
    return firsts


def _replace(pattern: str, value: str, literal: bool, n: int | None) -> Step | None:  # noqa: FBT001
    if n is not None or len(value) > 1 or not value.isascii() or (value == "\\" and not literal):
        return None
    members = set_of(pattern, literal)
    return None if members is None else Replaced(members, ord(value) if value else None)


def _filled(data: np.ndarray, found: np.ndarray, byte: int) -> np.ndarray:
    """Return ``data`` with ``byte`` where ``found``, computed by bit operations, for speed."""
    every = np.negative(found.view("u1"))
    turned = np.bitwise_xor(data, np.uint8(byte))
    np.bitwise_and(turned, every, out=turned)
    return np.asarray(np.bitwise_xor(turned, data, out=turned))


# ------------------------------------------------------------------------------------ ends of rows


@dataclasses.dataclass(frozen=True, slots=True)
class Stripped:
    """Strip ``members`` from the ends of rows."""

    members: ByteSet
    lead: bool
    trail: bool

    def __call__(self, rows: Bytes) -> Bytes | None:
        table = self.members.table
        starts, ends = rows.edges[:-1].copy(), rows.edges[1:].copy()
        done = not self.lead or _moved(rows.data, table, starts, (starts, ends), 1)
        done = done and (not self.trail or _moved(rows.data, table, ends, (starts, ends), -1))
        return _between(rows, starts, ends) if done else None


def _moved(
    data: np.ndarray,
    table: np.ndarray,
    moving: np.ndarray,
    row: tuple[np.ndarray, np.ndarray],
    by: int,
) -> bool:
    """Move one end of each row, ``moving``, past bytes whose ``table`` entry is true, in place.

    ``by`` is 1 or -1. Return False if a row has ``STRIPPED`` or more bytes to skip.
    """
    starts, ends = row
    going = np.arange(len(moving))
    for _ in range(STRIPPED):
        going = going[starts[going] < ends[going]]
        going = going[table[data[moving[going] - (by < 0)]]]
        if not len(going):
            return True
        moving[going] += by
    return False


def _strip(characters: str | None, *, lead: bool = True, trail: bool = True) -> Step | None:
    # None stands for Unicode white space, which has more characters than ASCII's
    members = of_characters(characters) if characters else None
    return None if members is None else Stripped(members, lead, trail)


# ------------------------------------------------------------------------------------------- lists


@dataclasses.dataclass(frozen=True, slots=True)
class Same:
    """Keep the bytes of each row, as a list."""

    def __call__(self, rows: Bytes) -> Bytes | None:
        return rows


@dataclasses.dataclass(frozen=True, slots=True)
class SlicedBytes:
    """Slice the bytes of each row as a list: ``list[offset:][:size]``."""

    offset: int
    size: int | None

    def __call__(self, rows: Bytes) -> Bytes | None:
        starts, ends = rows.edges[:-1], rows.edges[1:]
        first = np.minimum(starts + self.offset, ends)
        last = ends if self.size is None else np.minimum(first + self.size, ends)
        return _between(rows, first, last)


def _slice(offset: int, size: int | None) -> Step | None:
    return SlicedBytes(offset, size) if offset >= 0 else None


MAKERS: dict[str, Callable[..., Step | None]] = {
    "str.to_lowercase": lambda: LOWERED,
    "str.to_uppercase": lambda: RAISED,
    "str.replace": _replace,
    "str.strip_chars": _strip,
    "str.strip_chars_start": functools.partial(_strip, trail=False),
    "str.strip_chars_end": functools.partial(_strip, lead=False),
    "str.tokenize_bytes": Same,
    "list.slice": _slice,
}


# --------------------------------------------------------------------------------- fewer bytes


def joined(first: Step, second: Step) -> Step | None:
    """Return one step for ``first`` and ``second``; None if they cannot be merged.

    A replacement of runs can be merged with a strip of the replacing byte.
    """
    match first, second:
        case Replaced(members, int(byte), False, False), Stripped(stripped, lead, trail):
            made = ((byte, byte),)
            if members.runs and stripped.ranges == made and members.table[byte]:
                return Replaced(members, byte, lead, trail)
    return None


def _between(rows: Bytes, starts: np.ndarray, ends: np.ndarray) -> Bytes:
    """Shorten row i to ``data[starts[i] : ends[i]]``, which is a part of it."""
    lengths = ends - starts
    changed = np.flatnonzero(lengths < np.diff(rows.edges))
    if not len(changed):
        return rows
    edges = np.zeros(len(lengths) + 1, "i8")
    np.cumsum(lengths, out=edges[1:])
    if len(changed) * SPARSE < len(lengths):
        return Bytes(_spliced(rows, changed, starts, ends), edges, rows.ascii)
    pieces = np.stack((starts - rows.edges[:-1], lengths, rows.edges[1:] - ends), axis=1)
    flags = np.tile([False, True, False], len(lengths))
    return Bytes(rows.data[flags.repeat(pieces.ravel())], edges, rows.ascii)


def _spliced(rows: Bytes, changed: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Copy the bytes of all rows; of each row in ``changed``, copy only its start to its end."""
    pieces: list[np.ndarray] = []
    after = 0
    spans = (rows.edges[changed], starts[changed], ends[changed], rows.edges[changed + 1])
    for begin, first, last, end in np.stack(spans, axis=1).tolist():
        pieces += (rows.data[after:begin], rows.data[first:last])
        after = end
    return np.concatenate([*pieces, rows.data[after:]])


def _select_bytes(rows: Bytes, flags: np.ndarray) -> Bytes:
    """Keep the bytes for which ``flags`` are true."""
    before = counted(flags, rows.edges)
    if before[-1] == len(flags):
        return rows
    return Bytes(rows.data[flags], before, rows.ascii)


def counted(flags: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the number of true flags before each index in ``places``; 64 are counted at once."""
    words = np.zeros(len(flags) // 64 + 1, "<u8")
    bits = np.packbits(flags, bitorder="little")
    words.view("u1")[: len(bits)] = bits
    running = np.zeros(len(words), "i8")
    np.cumsum(np.bitwise_count(words)[:-1], out=running[1:])
    word = places >> 6
    below = (np.uint64(1) << (places & 63).astype("u8")) - np.uint64(1)
    return np.asarray(running[word] + np.bitwise_count(words[word] & below))


def is_ascii(data: np.ndarray) -> bool:
    """Return True if every byte is below 128."""
    return not len(data) or int(data.max()) < ASCII
