"""Rows are written as WebDataset shards: tar archives in which a row is a group of files."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor, arrays_in
from dml.errors import SchemaError
from dml.io.files.records import LONGEST
from dml.io.files.write_formats import FileFormat, encoder, gzipped, is_tensor, json_of
from dml.io.webdataset.decoders import as_arrays, as_json, as_number, as_text, decoder_of
from dml.io.webdataset.tar import BLOCK
from dml.io.webdataset.webdataset import KEY, split_name

Encoded = Callable[[pa.ChunkedArray], list[bytes | None]]

DIGITS = 9  # of generated keys
END, UNIT = bytes(2 * BLOCK), tarfile.RECORDSIZE
MODE = 0o644


def shards_of(compression: str | None) -> FileFormat:
    """Return the format of tar archives of samples; raise PlanError for other compressions.

    Rows without a key column are numbered through all archives.
    """
    codec = gzipped(compression, "archives")
    begin = partial(_open, codec, itertools.count())
    return FileFormat("write_webdataset", "tar.gz" if codec else "tar", begin)


def _open(codec: str | None, numbers: Iterator[int], sink: Any, schema: pa.Schema) -> ShardWriter:
    """Begin an archive; raise pa.ArrowInvalid for columns that the format cannot represent."""
    forms = {field.name: _files(field) for field in schema if field.name != KEY}
    if KEY in schema.names and schema.field(KEY).type != pa.string():
        raise pa.ArrowInvalid(f"{KEY!r} is {schema.field(KEY).type}, and names are texts")
    if not forms:
        raise pa.ArrowInvalid(f"{KEY!r} alone makes no files")
    out = gzip.GzipFile("", "wb", fileobj=sink, mtime=0) if codec else sink
    return ShardWriter(out, sink, forms, numbers)


@dataclasses.dataclass
class ShardWriter:
    """An open archive; ``forms`` encode columns; ``out`` compresses to ``sink``, or is ``sink``."""

    out: Any
    sink: Any
    forms: dict[str, Encoded]
    numbers: Iterator[int]
    written: int = 0
    before: str = ""

    def write(self, rows: pa.Table) -> None:
        """Append the files of every row; raise SchemaError for a row that cannot be read again."""
        columns = [form(rows.column(name)) for name, form in self.forms.items()]
        named = KEY in rows.column_names
        keys = rows.column(KEY).to_pylist() if named else (None for _ in range(rows.num_rows))
        for key, *files in zip(keys, *columns, strict=True):
            name = key if named else f"{next(self.numbers):0{DIGITS}}"
            there = [
                (s, file) for s, file in zip(self.forms, files, strict=True) if file is not None
            ]
            self._check(name, there)
            for suffix, file in there:
                self._add(f"{name}.{suffix}", file)
            self.before = name

    def _check(self, key: str | None, files: list[tuple[str, bytes]]) -> None:
        if key is None or split_name(f"{key}.x") != (key, "x") or _leads_out(key):
            what, why = f"{key!r} is no key", "a key is part of a file's name, up to its first dot"
        elif key == self.before:
            what, why = f"two rows have the key {key!r}", "neighbours of one key are one sample"
        elif not files:
            what, why = f"the row with key {key!r} has only nulls", "a sample without files is none"
        elif (size := sum(len(file) + 4 * BLOCK for _, file in files)) > LONGEST:
            what, why = f"row {key!r} takes {size} bytes", f"a sample has at most {LONGEST}"
        else:
            return
        raise SchemaError(what, why=why, try_=f"another {KEY!r}, a filter, or .write_parquet")

    def _add(self, name: str, data: bytes) -> None:
        """Append a file with its header, independent of host and time."""
        header = tarfile.TarInfo(name)
        header.size, header.mode = len(data), MODE
        self._put(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
        self._put(data)
        self._put(bytes(-len(data) % BLOCK))

    def _put(self, data: bytes) -> None:
        self.out.write(data)
        self.written += len(data)

    def close(self) -> None:
        """Write the end mark, and pad to the record size of tapes."""
        self._put(END)
        self._put(bytes(-self.written % UNIT))
        if self.out is not self.sink:
            self.out.close()


def _leads_out(key: str) -> bool:
    """Return True for a name that other programs might extract outside of the target folder."""
    return key.startswith("/") or ".." in key.split("/") or "\0" in key


def _files(field: pa.Field) -> Encoded:
    """Return an encoder of a column as files; raise pa.ArrowInvalid if files cannot store it."""
    name, kind = field.name, field.type
    if split_name(f"key.{name}") != ("key", name) or "\0" in name:
        raise pa.ArrowInvalid(f"{name!r} cannot be the end of a file's name: small letters, no '/'")
    decoder = decoder_of(name, decode=True)
    if kind in (pa.binary(), pa.large_binary()):
        return lambda column: list(column.to_pylist())
    if decoder is as_json:
        return _json_files(field)
    if decoder is as_arrays and _has_arrays(kind):
        return _npy_files
    if kind in (pa.string(), pa.large_string()) and decoder is as_text:
        return lambda column: [None if v is None else v.encode() for v in column.to_pylist()]
    if pa.types.is_integer(kind) and kind != pa.uint64() and decoder is as_number:
        return lambda column: [None if v is None else str(v).encode() for v in column.to_pylist()]
    raise pa.ArrowInvalid(
        f"{name!r} is {kind}, which a file of that name cannot hold: rename it to {name}.txt,"
        f" {name}.cls, {name}.json or {name}.npy, or make bytes of it"
    )


def _json_files(field: pa.Field) -> Encoded:
    form = json_of(field.type, field.name)
    encode = encoder().encode
    return lambda column: [None if v is None else encode(v).encode() for v in form(column)]


def _has_arrays(kind: pa.DataType) -> bool:
    """Return True for tensors, numbers, and lists of numbers."""
    types = pa.types
    if is_tensor(kind):
        return True
    inner = kind.value_type if types.is_list(kind) else kind
    return bool(types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner))


def _npy_files(column: pa.ChunkedArray) -> list[bytes | None]:
    """Encode values as .npy files of format version 1.0."""
    kind = column.type
    shape = tuple(kind.shape) if isinstance(kind, pa.FixedShapeTensorType) else None
    single = shape is None and not (pa.types.is_list(kind) or isinstance(kind, OpenTensor))
    inner = kind if single else kind.value_type
    dtype = np.dtype(inner.to_pandas_dtype())
    found: list[bytes | None] = []
    for value in itertools.chain.from_iterable(map(_values, column.chunks)):
        if value is None:
            found.append(None)
            continue
        if isinstance(value, list) and None in value:
            raise SchemaError(
                "a list has a null, which an array cannot hold",
                why="arrays of NumPy have values only",
                try_="a function that fills them, or .write_parquet",
            )
        array = np.array(value, dtype)
        out = io.BytesIO()
        np.lib.format.write_array(out, array if shape is None else array.reshape(shape), (1, 0))
        found.append(out.getvalue())
    return found


def _values(chunk: pa.Array) -> list[Any]:
    if isinstance(chunk.type, OpenTensor):
        return list(arrays_in(chunk))
    plain = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
    return list(plain.to_pylist())
