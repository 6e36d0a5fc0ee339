"""Rows are written as TFRecord files: Examples, or raw bytes, with checksums."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.data.layouts import is_text_or_bytes
from dml.errors import SchemaError
from dml.io.files.records import LONGEST
from dml.io.files.write_formats import FileFormat, gzipped
from dml.io.tfrecord.tfrecord import HEAD, TAIL, checksum, masked

Encoded = Callable[[pa.ChunkedArray], list[bytes | None]]

# Tags of protocol buffers: field 1, 2 or 3, a run of bytes.
ONE, TWO, THREE = b"\x0a", b"\x12", b"\x1a"
LOW64 = (1 << 64) - 1


def tfrecord_of(compression: str | None, *, raw: bool) -> FileFormat:
    """Return the TFRecord format: Examples, or if ``raw`` the bytes of the only column, as records.

    Raise PlanError for an unsupported compression.
    """
    checksum()
    codec = gzipped(compression, "TFRecord files")
    suffix = "tfrecord.gz" if codec else "tfrecord"
    return FileFormat("write_tfrecords", suffix, partial(_open, codec, raw))


def _open(codec: str | None, raw: bool, sink: Any, schema: pa.Schema) -> RecordWriter:  # noqa: FBT001
    """Begin an empty file; raise pa.ArrowInvalid for columns that it cannot represent."""
    forms = [] if raw else [_feature(field) for field in schema]
    if raw and [field.type for field in schema] != [pa.binary()]:
        raise pa.ArrowInvalid("raw records are one column of bytes")
    out = gzip.GzipFile("", "wb", fileobj=sink, mtime=0) if codec else sink
    return RecordWriter(out, sink, forms)


@dataclasses.dataclass
class RecordWriter:
    """An open file; ``forms`` encode columns; ``out`` compresses to ``sink``, or is ``sink``."""

    out: Any
    sink: Any
    forms: list[Encoded]

    def write(self, rows: pa.Table) -> None:
        """Append one record per row; raise SchemaError for a record too long to be read again."""
        crc = checksum()
        for record in self._records(rows):
            if len(record) > LONGEST:
                raise SchemaError(
                    f"a row takes {len(record)} bytes, and a record has at most {LONGEST}",
                    why="records are read an atom at a time",
                    try_="smaller values, or .write_parquet",
                )
            size = len(record).to_bytes(8, "little")
            head = HEAD.pack(len(record), masked(crc(size)))
            self.out.write(b"".join((head, record, TAIL.pack(masked(crc(record))))))

    def _records(self, rows: pa.Table) -> list[bytes]:
        if not self.forms:
            column = rows.column(0)
            if column.null_count:
                raise SchemaError(
                    f"column {rows.column_names[0]!r} has a null, which is no record",
                    why="raw records are bytes",
                    try_=".drop_nulls(), or raw=False",
                )
            return list(column.to_pylist())
        columns = [form(column) for form, column in zip(self.forms, rows.columns, strict=True)]
        return [_run(ONE, b"".join(filter(None, row))) for row in zip(*columns, strict=True)]

    def close(self) -> None:
        """Flush the compressor."""
        if self.out is not self.sink:
            self.out.close()


def _run(tag: bytes, data: bytes) -> bytes:
    return b"".join((tag, _number(len(data)), data))


def _number(value: int) -> bytes:
    """Encode a varint: seven bits a byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _feature(field: pa.Field) -> Encoded:
    """Return a function that encodes values of a column as entries of the feature map."""
    name, kind = field.name, field.type
    listed = is_list(kind) or isinstance(kind, pa.FixedShapeTensorType)
    tag, stored, packed = _packing(kind.value_type if listed else kind, name)
    key = _run(ONE, name.encode())

    def entries(column: pa.ChunkedArray) -> list[bytes | None]:
        values = _lists(column, stored, name) if listed else _scalars(column, stored)
        return [
            None if v is None else _run(ONE, key + _run(TWO, _run(tag, packed(v)))) for v in values
        ]

    return entries


def _packing(kind: pa.DataType, name: str) -> tuple[bytes, pa.DataType, Callable[[Any], bytes]]:
    """Return tag, element type and encoder of the list in which values of ``kind`` are stored."""
    types = pa.types
    if types.is_boolean(kind) or (types.is_integer(kind) and kind != pa.uint64()):
        return THREE, pa.int64(), _int64s
    if types.is_float16(kind) or types.is_float32(kind):
        return TWO, pa.float32(), _floats
    if is_text_or_bytes(kind):
        return ONE, pa.large_binary(), _bytes
    wide = types.is_float64(kind) or kind == pa.uint64()
    exact = "would not be kept exactly: .cast it first" if wide else "has no form in an Example"
    raise pa.ArrowInvalid(f"{name!r} is {kind}, which {exact}")


def _int64s(values: Any) -> bytes:
    data = b"".join([_number(value & LOW64) for value in values])
    return _run(ONE, data) if data else b""


def _floats(values: Any) -> bytes:
    data = np.asarray(values, "<f4").tobytes()
    return _run(ONE, data) if data else b""


def _bytes(values: Any) -> bytes:
    return b"".join([_run(ONE, value) for value in values])


def _scalars(column: pa.ChunkedArray, stored: pa.DataType) -> list[Any]:
    return [None if v is None else (v,) for v in column.cast(stored).to_pylist()]


def _lists(column: pa.ChunkedArray, stored: pa.DataType, name: str) -> list[Any]:
    """Return the list of values of every row; raise SchemaError for a null inside a list."""
    plain = [
        chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks
    ]
    if any(chunk.flatten().null_count for chunk in plain):
        raise SchemaError(
            f"column {name!r} has a list with a null, which an Example cannot hold",
            why="features have values, or are absent as a whole",
            try_=".write_parquet, or a function that fills them",
        )
    kind = pa.large_list(stored)
    return list(chain.from_iterable(chunk.cast(kind).to_pylist() for chunk in plain))
