"""Write Arrow's file format so that every buffer begins at a multiple of 64 bytes.

Arrow's own writer pads to 8 bytes. Messages, schema and footer come from Arrow; the offsets of
bodies and buffers are overwritten in place, as FlatBuffers numbers of a fixed width.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

ALIGN = 64
MAGIC, ENDS = b"ARROW1\0\0", b"\xff\xff\xff\xff\0\0\0\0"
DICTIONARY_BATCH = 2  # a message's header, by its number in Message.fbs
ZEROS = memoryview(bytes(2 * ALIGN))


class _Table(NamedTuple):
    """A FlatBuffers table: the bytes that contain it, and its offset."""

    data: bytearray
    at: int

    def field(self, number: int) -> int:
        """Return the offset of field ``number``; 0 if the field has its default."""
        vtable = self.at - _number("<i", self.data, self.at)
        place = 4 + 2 * number
        if place >= _number("<H", self.data, vtable):
            return 0
        offset = _number("<H", self.data, vtable + place)
        return self.at + offset if offset else 0

    def below(self, number: int) -> _Table:
        """Return the table to which field ``number`` points."""
        return _Table(self.data, _pointed(self.data, self.field(number)))

    def vector(self, number: int, width: int) -> range:
        """Return the offsets of the structs of a vector, each of ``width`` bytes."""
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


class Laying:
    """Lays out a file batch by batch; the caller writes the returned bytes before the next call.

    The bytes of rows are views of the batches' buffers. Raise ArrowInvalid if a batch has another
    dictionary for a column: a file has one dictionary for each column.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._said = _Said()
        self._writer = pa.ipc.new_file(pa.PythonFile(self._said, mode="w"), schema)
        self._place = 0
        self._blocks: dict[bool, list[tuple[int, int, int]]] = {False: [], True: []}

    def batch(self, batch: pa.RecordBatch) -> Iterator[memoryview]:
        """Yield the bytes of one record batch."""
        self._writer.write_batch(batch)
        yield from self._laid()

    def end(self) -> Iterator[memoryview]:
        """Yield the footer, which lists the offsets of all blocks."""
        self._writer.close()
        yield from self._laid()
        footer = self._said.take(sum(map(len, self._said.pieces)))
        length = _number("<I", footer, len(footer) - 10)
        footer = footer[len(footer) - 10 - length : len(footer) - 10]
        table = _root(footer)
        for number, dictionaries in ((2, True), (3, False)):
            blocks = self._blocks[dictionaries]
            for at, block in zip(table.vector(number, 24), blocks, strict=True):
                struct.pack_into("<qi4xq", footer, at, *block)
        yield memoryview(ENDS + footer + struct.pack("<I", len(footer)) + MAGIC[:6])

    def _laid(self) -> Iterator[memoryview]:
        """Yield the output of Arrow's writer so far, up to the end mark of the file."""
        said = self._said
        if not self._place and said.pieces:
            head = said.take(len(MAGIC))
            length = said.take(8)
            head += length + said.take(_number("<I", length, 4))
            self._place = len(head)
            yield memoryview(head)
        while said.pieces and (length := said.take(8))[4:] != ENDS[4:]:
            message = said.take(_number("<I", length, 4))
            yield from self._block(message, said.body(message))

    def _block(self, message: bytearray, body: dict[int, memoryview]) -> Iterator[memoryview]:
        """Yield a message with its body, which begins at a multiple of 64 bytes."""
        parts = _message(message, body)
        place, held = self._place, sum(map(len, parts))
        size = 8 + len(message) + _padding(place + 8 + len(message))
        yield memoryview(struct.pack("<Ii", 0xFFFFFFFF, size - 8))
        yield memoryview(message)
        yield ZEROS[: size - 8 - len(message)]
        yield from parts
        dictionary = message[_root(message).field(1)] == DICTIONARY_BATCH
        self._blocks[dictionary].append((place, size, held))
        self._place += size + held


class _Said:
    """A file object that collects the output of Arrow's writer, piece by piece."""

    closed = False

    def __init__(self) -> None:
        self.pieces: deque[bytes | pa.Buffer] = deque()

    def write(self, data: bytes | pa.Buffer) -> int:
        self.pieces.append(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: no data is buffered."""

    def close(self) -> None:
        self.closed = True

    def take(self, count: int) -> bytearray:
        """Remove and return the next ``count`` bytes, which must end where a piece ends."""
        found = bytearray()
        while len(found) < count:
            found += memoryview(self.pieces.popleft())
        return found

    def body(self, message: bytearray) -> dict[int, memoryview]:
        """Remove and return the pieces of a message's body, by their offsets in the body."""
        field = _root(message).field(3)
        size, place, found = _number("<q", message, field) if field else 0, 0, {}
        while place < size:
            found[place] = memoryview(self.pieces.popleft()).cast("B")
            place += len(found[place])
        return found


def _message(message: bytearray, body: dict[int, memoryview]) -> list[memoryview]:
    """Write new buffer offsets into a message; return the pieces of the padded body."""
    root = _root(message)
    batch = root.below(2)
    if message[root.field(1)] == DICTIONARY_BATCH:
        batch = batch.below(1)
    parts, place = [], 0
    for at in batch.vector(2, 16):
        start, size = struct.unpack_from("<qq", message, at)
        struct.pack_into("<q", message, at, place)
        if size:
            parts += [body[start][:size], ZEROS[: _padding(size)]]
        place += size + _padding(size)
    if place:
        struct.pack_into("<q", message, root.field(3), place)
    return parts
