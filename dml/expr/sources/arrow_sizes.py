"""This file reads from the headers of an Arrow file what its record batches unpack to.

Nothing is unpacked for it: a header says where buffers lie, and a packed one begins with its size.
Headers are flatbuffers: tables whose fields are found through a list of places, all little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

CONTINUED = 0xFFFFFFFF
# Numbers of the fields of the tables that are read here.
DICTIONARIES, BATCHES = 2, 3
KIND, HEADER = 1, 2
DICTIONARY, BATCH, INSIDE = 2, 3, 1
LENGTH, BUFFERS, PACKED = 0, 2, 3
PLACE, BUFFER = struct.Struct("<qi4xq"), struct.Struct("<qq")
SIZE = 8  # bytes of the size before packed ones; -1 says that they are not
FAULTS = (ValueError, struct.error)

Fetch = Callable[[Sequence[tuple[int, int]]], Sequence[bytes]]
"""The bytes of ranges (start, stop) of a file."""


class Sizes(NamedTuple):
    """Rows of every record batch, and its bytes when it is unpacked, dictionaries included."""

    rows: tuple[int, ...]
    nbytes: tuple[int, ...]


class Table(NamedTuple):
    """A table in ``data``; ValueError or struct.error for places that are not inside."""

    data: bytes
    at: int

    def field(self, number: int) -> int:
        """Where a field is; 0 if it is not there."""
        places = self.at - self.number("<i", self.at)
        if 6 + 2 * number > self.number("<H", places):
            return 0
        place = self.number("<H", places + 4 + 2 * number)
        return self.at + place if place else 0

    def number(self, form: str, at: int) -> int:
        """The number at a place."""
        if at < 0:
            raise ValueError("a header leads out of itself")
        return int(struct.unpack_from(form, self.data, at)[0])

    def inner(self, number: int) -> Table:
        """The table in a field."""
        at = self.field(number)
        return Table(self.data, at + self.number("<I", at)) if at else Table(self.data, -1)

    def items(self, number: int, form: struct.Struct) -> list[tuple[int, ...]]:
        """The structs in the list in a field."""
        at = self.field(number)
        if not at:
            return []
        at += self.number("<I", at)
        stop = at + 4 + self.number("<I", at) * form.size
        if stop > len(self.data):
            raise ValueError("a list in a header is longer than the header")
        return list(form.iter_unpack(self.data[at + 4 : stop]))


def sizes_in(footer: bytes, size: int, fetch: Fetch) -> Sizes:
    """What is in a file of ``size`` bytes that ends with ``footer``; FAULTS for damage."""
    root = Table(footer, struct.unpack_from("<I", footer)[0])
    kinds = (DICTIONARIES, DICTIONARY), (BATCHES, BATCH)
    found = [(kind, *place) for number, kind in kinds for place in root.items(number, PLACE)]
    for _, start, length, body in found:
        if min(start, length, body) < 0 or start + length + body > size:
            raise ValueError("a record batch lies outside of the file")
    heads = fetch([(start, start + length) for _, start, length, _ in found])
    tables = [_batch(head, kind) for head, (kind, *_) in zip(heads, found, strict=True)]
    starts = [(start + length, body) for _, start, length, body in found]
    packed = [_packed(*pair) for pair in zip(tables, starts, strict=True)]
    said = iter(fetch([(at, at + SIZE) for places in packed for at, _ in places]))
    nbytes = [
        sum(_unpacked(next(said), length) for _, length in places) if places else body
        for places, (_, body) in zip(packed, starts, strict=True)
    ]
    first = sum(kind == DICTIONARY for kind, *_ in found)
    shared = sum(nbytes[:first])
    return Sizes(tuple(map(_rows, tables[first:])), tuple(n + shared for n in nbytes[first:]))


def _batch(head: bytes, kind: int) -> Table:
    """The table of a record batch in a message, which may be that of a dictionary."""
    start = 8 if struct.unpack_from("<I", head)[0] == CONTINUED else 4
    message = Table(head[start:], struct.unpack_from("<I", head, start)[0])
    if message.number("<B", message.field(KIND)) != kind:
        raise ValueError("a message is not of the kind that the footer says")
    header = message.inner(HEADER)
    return header.inner(INSIDE) if kind == DICTIONARY else header


def _rows(table: Table) -> int:
    at = table.field(LENGTH)
    rows = table.number("<q", at) if at else 0
    if rows < 0:
        raise ValueError(f"a record batch has {rows} rows")
    return rows


def _packed(table: Table, place: tuple[int, int]) -> list[tuple[int, int]]:
    """Where the packed buffers of a batch begin in the file, and their bytes there."""
    if not table.field(PACKED):
        return []
    start, body = place
    found = [each for each in table.items(BUFFERS, BUFFER) if each[1]]
    if any(at < 0 or length < SIZE or at + length > body for at, length in found):
        raise ValueError("a buffer lies outside of its record batch")
    return [(start + at, length) for at, length in found]


def _unpacked(said: bytes, length: int) -> int:
    size = int.from_bytes(said, "little", signed=True)
    if size < -1:
        raise ValueError(f"a buffer has {size} bytes")
    return length - SIZE if size == -1 else size
