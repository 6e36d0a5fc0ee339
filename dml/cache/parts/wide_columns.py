"""Lay out rows with a wide column so that the values of that column are contiguous.

A training batch is an array in one piece of memory, but rows come in blocks of some megabytes. In
an Arrow file other columns and headers lie between those blocks. So the values of one tensor column
are written side by side as they come. The other columns are buffered, and written as an Arrow file
once they are large; the layout is described at the end of the file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dml.cache.parts.aligned_format import ALIGN, ZEROS, Laying

WIDE_BYTES = 1024  # least bytes of a value of a wide column
BESIDE_BYTES = 4 << 20  # most bytes of other columns that are buffered
MAGIC = b"DMLWIDE1"
TAIL = struct.Struct("<QQ8s")  # bytes of the schema, bytes of the layout, and the magic


Runs: TypeAlias = Sequence[tuple[pa.RecordBatch, Sequence[int]]]
"""Batches, each with the row counts of the original batches that it concatenates."""


class WideSegment(NamedTuple):
    """Some batches: the offset of their wide values, their row counts, and the other columns."""

    start: int
    rows: Sequence[int]
    absent: Mapping[str, str]
    """Validity bits in hex, by the number of each batch with null values."""
    beside: int
    beside_bytes: int


def wide(schema: pa.Schema) -> int | None:
    """Return the number of the tensor column with the largest values; None if all are small."""
    sizes = [_value_bytes(kind) for kind in schema.types]
    most = max(sizes, default=0)
    return sizes.index(most) if most >= WIDE_BYTES else None


def _value_bytes(kind: pa.DataType) -> int:
    """Return the bytes of one value of a tensor type; 0 for other types."""
    if not isinstance(kind, pa.FixedShapeTensorType) or kind.value_type.bit_width % 8:
        return 0
    return int(kind.value_type.bit_width // 8 * math.prod(kind.shape))


class Wide:
    """Writes a file batch by batch, like ``Laying``; ``column`` is the number of a wide column."""

    def __init__(self, schema: pa.Schema, column: int) -> None:
        self._schema, self._column = schema, column
        self._without = schema.remove(column)
        self._place = 0
        self._segments: list[WideSegment] = []
        self._begin()

    def _begin(self) -> None:
        self._start, self._rows, self._absent = self._place, list[int](), dict[str, str]()
        self._held = bytearray()  # a copy: the consumer of the rows may write to them
        self._laying = Laying(self._without) if len(self._without) else None

    def batch(self, batch: pa.RecordBatch) -> Iterator[memoryview]:
        """Yield the bytes to write for one more batch; its other columns are buffered first."""
        values = batch.column(self._column)
        if values.null_count:
            bits = pa.array(values.is_valid()).buffers()[1]
            self._absent[str(len(self._rows))] = bits.to_pybytes().hex()
        if self._laying is not None:
            others = [each for i, each in enumerate(batch.columns) if i != self._column]
            beside = pa.RecordBatch.from_arrays(others, schema=self._without)
            for piece in self._laying.batch(beside):
                self._held += piece
        self._rows.append(batch.num_rows)
        found = _elements(values.storage, math.prod(self._schema.types[self._column].shape))
        if found:
            yield found
            self._place += len(found)
        if len(self._held) > BESIDE_BYTES:
            yield from self._ended()

    def end(self) -> Iterator[memoryview]:
        """Yield the last segment, and the description of the layout."""
        yield from self._ended()
        schema = self._schema.serialize()
        said = json.dumps({"column": self._column, "segments": self._segments}).encode()
        yield memoryview(schema)
        yield memoryview(said + TAIL.pack(len(schema), len(said), MAGIC))

    def _ended(self) -> Iterator[memoryview]:
        """Yield the other columns of the current segment, and end the segment."""
        if not self._rows:
            return
        for piece in self._laying.end() if self._laying is not None else ():
            self._held += piece
        if self._laying is not None and len(self._rows) > 1:
            self._held = _as_one(self._held)
        before, behind = -self._place % ALIGN, -len(self._held) % ALIGN
        beside = self._place + before
        segment = WideSegment(self._start, self._rows, self._absent, beside, len(self._held))
        self._segments.append(segment)
        yield ZEROS[:before]
        yield memoryview(self._held)
        yield ZEROS[:behind]
        self._place = beside + len(self._held) + behind
        self._begin()


def _as_one(held: bytearray) -> bytearray:
    """Return the Arrow file ``held`` with all its rows in one batch."""
    _, runs = read(pa.py_buffer(held), None)
    whole = pa.concat_batches([batch for batch, _ in runs])
    laying, found = Laying(whole.schema), bytearray()
    for pieces in (laying.batch(whole), laying.end()):
        for piece in pieces:
            found += piece
    return found


def _elements(storage: pa.Array, each: int) -> memoryview:
    """Return a tensor column's elements as one memory view; each value has ``each`` elements."""
    flat = storage.values.slice(storage.offset * each, len(storage) * each)
    if flat.null_count:
        raise pa.ArrowInvalid("elements of tensors are numbers")
    width = flat.type.bit_width // 8
    if not len(flat):
        return memoryview(b"")
    data = memoryview(flat.buffers()[1]).cast("B")
    return data[flat.offset * width : (flat.offset + len(flat)) * width]


class WideShape(NamedTuple):
    """The layout that a file with a wide column describes."""

    schema: pa.Schema
    column: int
    segments: tuple[WideSegment, ...]


def shape_of(data: pa.Buffer) -> WideShape | None:
    """Return a file's layout, None for an Arrow file; raise ArrowInvalid or ValueError if bad."""
    if data.size < TAIL.size or data.slice(data.size - len(MAGIC)).to_pybytes() != MAGIC:
        return None
    schema_bytes, said_bytes, _ = TAIL.unpack(_part(data, data.size - TAIL.size, TAIL.size))
    end = data.size - TAIL.size - said_bytes
    schema = pa.ipc.read_schema(_part(data, end - schema_bytes, schema_bytes))
    try:
        said = json.loads(_part(data, end, said_bytes).to_pybytes())
    except RecursionError as error:
        raise ValueError("too deep to be ours") from error
    segments = tuple(WideSegment(*each) for each in said["segments"])
    return WideShape(schema, said["column"], segments)


def read(data: pa.Buffer, shape: WideShape | None) -> tuple[pa.Schema, Runs]:
    """Return schema and batches of a file without a copy; raise ArrowInvalid if it is invalid."""
    if shape is None:
        file = pa.ipc.open_file(pa.BufferReader(data))
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        return file.schema, [(batch, (batch.num_rows,)) for batch in batches]
    return shape.schema, [(_segment(data, shape, each), each.rows) for each in shape.segments]


def _segment(data: pa.Buffer, shape: WideShape, segment: WideSegment) -> pa.RecordBatch:
    """Return the rows of a segment as one record batch."""
    kind, rows = shape.schema.types[shape.column], sum(segment.rows)
    each = math.prod(kind.shape)
    held = _part(data, segment.start, rows * _value_bytes(kind))
    flat = pa.Array.from_buffers(kind.value_type, rows * each, [None, held])
    bits = _bits(segment) if segment.absent else None
    storage = pa.Array.from_buffers(kind.storage_type, rows, [bits], children=[flat])
    arrays = [pa.ExtensionArray.from_storage(kind, storage)]
    if len(shape.schema) > 1:
        _, ((beside, _),) = read(_part(data, segment.beside, segment.beside_bytes), None)
        arrays = [*beside.columns[: shape.column], *arrays, *beside.columns[shape.column :]]
    return pa.RecordBatch.from_arrays(arrays, schema=shape.schema)


def _bits(segment: WideSegment) -> pa.Buffer:
    """Return the validity bits of the wide values of a segment."""
    there = np.ones(sum(segment.rows), bool)
    for start, (number, rows) in zip(starts(segment.rows), enumerate(segment.rows), strict=True):
        if (told := segment.absent.get(str(number))) is not None:
            bits = np.frombuffer(bytes.fromhex(told), np.uint8)
            there[start : start + rows] = np.unpackbits(bits, bitorder="little", count=rows)
    return pa.py_buffer(np.packbits(there, bitorder="little"))


def starts(rows: Sequence[int]) -> Iterable[int]:
    """Return where each of some adjacent batches of ``rows`` rows begins."""
    return accumulate(rows[:-1], initial=0) if rows else ()


def _part(data: pa.Buffer, start: int, count: int) -> pa.Buffer:
    """Return ``count`` bytes of a buffer from ``start`` on; raise ArrowInvalid if not inside."""
    if start < 0 or count < 0 or start + count > data.size:
        raise pa.ArrowInvalid("what is said to be in a file is not in it")
    return data.slice(start, count)
