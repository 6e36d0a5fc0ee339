"""This file lays out Arrow's file format so that every buffer begins at a multiple of 64 bytes.

Arrow's own writer pads to 8. Messages, schema and footer are Arrow's; where bodies and buffers
begin is written into them anew: numbers of a fixed width, at places that FlatBuffers tell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

ALIGN = 64
BATCH_BYTES = 4 << 20  # of a record batch: some, so that parts of a large blob can be read
ROOM_BYTES = 64 << 10  # for what is not batches: schema and footer
MAGIC, ENDS = b"ARROW1\0\0", b"\xff\xff\xff\xff\0\0\0\0"
DICTIONARY_BATCH = 2  # a message's header, by its number in Message.fbs
ZEROS = memoryview(bytes(2 * ALIGN))


class _Table(NamedTuple):
    """A table of FlatBuffers: its bytes and where it begins."""

    data: bytearray
    at: int

    def field(self, number: int) -> int:
        """Where a field lies; 0 if it has its default."""
        vtable = self.at - _number("<i", self.data, self.at)
        place = 4 + 2 * number
        if place >= _number("<H", self.data, vtable):
            return 0
        offset = _number("<H", self.data, vtable + place)
        return self.at + offset if offset else 0

    def below(self, number: int) -> _Table:
        """A table that a field points to."""
        return _Table(self.data, _pointed(self.data, self.field(number)))

    def vector(self, number: int, width: int) -> range:
        """Where the structs of a vector lie."""
        place = self.field(number)
        if not place:
            return range(0)
        start = _pointed(self.data, place)
        return range(start + 4, start + 4 + width * _number("<I", self.data, start), width)


def _number(form: str, data: bytes | bytearray | memoryview, at: int) -> int:
    return int(struct.unpack_from(form, data, at)[0])


def _pointed(data: bytearray, at: int) -> int:
    return at + _number("<I", data, at)


def _root(data: bytearray) -> _Table:
    return _Table(data, _pointed(data, 0))


def _padding(count: int) -> int:
    return -count % ALIGN


def pieces(table: pa.Table) -> Iterator[memoryview]:
    """The file of a table, in order; only what is not rows is made anew."""
    table = table.unify_dictionaries()  # a file has one of each
    rows = max(1, BATCH_BYTES * table.num_rows // max(table.nbytes, 1) // ALIGN * ALIGN or ALIGN)
    data = memoryview(_file(table, rows))
    length = _number("<I", data, len(data) - 10)
    footer = bytearray(data[len(data) - 10 - length : len(data) - 10])
    yield from _laid(data, footer)


def _file(table: pa.Table, rows: int) -> pa.Buffer:
    """The file of Arrow's writer, in memory of its size: what grows is copied again and again."""
    batches = table.to_batches(max_chunksize=rows)
    held = pa.allocate_buffer(sum(map(pa.ipc.get_record_batch_size, batches)) + ROOM_BYTES)
    sink = pa.FixedSizeBufferWriter(held)
    try:
        with pa.ipc.new_file(sink, table.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return held.slice(0, sink.tell())
    except (OSError, pa.ArrowInvalid):  # dictionaries, or a long schema
        grown = pa.BufferOutputStream()
        with pa.ipc.new_file(grown, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
        return grown.getvalue()


def _laid(data: memoryview, footer: bytearray) -> Iterator[memoryview]:
    """``data`` with its blocks at new places, and a footer that says where."""
    table = _root(footer)
    blocks = sorted(
        [*table.vector(2, 24), *table.vector(3, 24)], key=lambda at: _number("<q", footer, at)
    )
    head = _number("<q", footer, blocks[0]) if blocks else len(data) - 18 - len(footer)
    yield data[:head]
    place = head
    for block in blocks:
        start, size, body = struct.unpack_from("<qi4xq", footer, block)
        message = bytearray(data[start + 8 : start + size])
        parts = _message(message, data[start + size : start + size + body])
        size = 8 + len(message) + _padding(place + 8 + len(message))
        yield memoryview(struct.pack("<Ii", 0xFFFFFFFF, size - 8))
        yield memoryview(message)
        yield ZEROS[: size - 8 - len(message)]
        yield from parts
        body = sum(map(len, parts))
        struct.pack_into("<qi4xq", footer, block, place, size, body)
        place += size + body
    yield memoryview(ENDS + footer + struct.pack("<I", len(footer)) + MAGIC[:6])


def _message(message: bytearray, body: memoryview) -> list[memoryview]:
    """Write new places of its buffers into a message; the body that they lie in."""
    root = _root(message)
    batch = root.below(2)
    if message[root.field(1)] == DICTIONARY_BATCH:
        batch = batch.below(1)
    parts, place = [], 0
    for at in batch.vector(2, 16):
        start, size = struct.unpack_from("<qq", message, at)
        struct.pack_into("<q", message, at, place)
        parts += [body[start : start + size], ZEROS[: _padding(size)]]
        place += size + _padding(size)
    if place:
        struct.pack_into("<q", message, root.field(3), place)
    return parts
