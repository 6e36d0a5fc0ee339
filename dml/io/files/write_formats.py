"""Output formats define how a file of rows is opened, written and closed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.open_tensors import OpenTensor, arrays_in
from dml.errors import PlanError, SchemaError
from dml.kernels.functions import zones


class Writer(Protocol):
    """An encoder of rows to an open output file, its sink; it does not close the sink."""

    def write(self, rows: pa.Table, /) -> None:
        """Append one row group."""

    def close(self) -> None:
        """Write the end of the file."""


@dataclasses.dataclass(frozen=True)
class LibraryWriter:
    """A ``Writer`` that calls a library's functions."""

    write: Callable[[pa.Table], None]
    close: Callable[[], None]


@dataclasses.dataclass(frozen=True)
class FileFormat:
    """An encoding of files; ``verb`` is the public method that writes it, such as "write_csv".

    ``suffix`` is that of file names, without a dot. ``open`` begins a file in a sink, for rows of a
    schema; it raises pa.ArrowException if the format cannot represent the columns.
    """

    verb: str
    suffix: str
    open: Callable[[Any, pa.Schema], Writer]


def _parquet(compression: str | None, sink: Any, schema: pa.Schema) -> Writer:
    """Begin a Parquet file, with a checksum on every page and the Arrow schema in the metadata."""
    parquet = importlib.import_module("pyarrow.parquet")
    writer = parquet.ParquetWriter(
        sink, schema, compression=compression or "none", write_page_checksum=True
    )
    return LibraryWriter(
        lambda rows: writer.write_table(rows, row_group_size=rows.num_rows), writer.close
    )


def _arrow(compression: str | None, sink: Any, schema: pa.Schema) -> Writer:
    """Begin an Arrow IPC file (Feather version 2); a row group is written as one record batch."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    writer = pa.ipc.new_file(sink, schema, options=options)
    return LibraryWriter(lambda rows: writer.write_table(rows.combine_chunks()), writer.close)


def _orc(compression: str | None, sink: Any, schema: pa.Schema) -> Writer:
    """Begin an ORC file; the ORC library decides how rows are divided into stripes.

    An empty table is written, since a file without rows is not valid ORC.
    """
    orc = importlib.import_module("pyarrow.orc")
    writer = orc.ORCWriter(sink, compression=compression or "uncompressed")
    writer.write(schema.empty_table())
    return LibraryWriter(writer.write, writer.close)


# How files of a format are begun, and its codecs.
COLUMNAR = {
    "Orc": (_orc, ("zstd", "zlib", "snappy", "lz4")),
    "Parquet": (_parquet, ("snappy", "zstd", "lz4", "gzip", "brotli")),
    "Arrow": (_arrow, ("lz4", "zstd")),
}


def gzipped(compression: str | None, what: str) -> str | None:
    """Return the codec "gzip" or None; raise PlanError, which names ``what``, for other codecs."""
    if compression in (None, "none", "gzip"):
        return "gzip" if compression == "gzip" else None
    raise PlanError(
        f"{what} are not written with compression {compression!r}",
        why='there is "gzip", and None',
        try_='compression="gzip"',
    )


def format_of(name: str, compression: str | None) -> FileFormat:
    """Return a format of ``COLUMNAR``; raise PlanError if format or pyarrow lacks the codec."""
    begin, codecs = COLUMNAR[name]
    codec = None if compression == "none" else compression
    if codec is None or (codec in codecs and (name == "Orc" or pa.Codec.is_available(codec))):
        return FileFormat(f"write_{name.lower()}", name.lower(), partial(begin, codec))
    raise PlanError(
        f"{name} files have no compression {compression!r}",
        why=f"there are {', '.join(codecs)} and None",
        try_='compression="zstd"',
    )


# ---------------------------------------------------------------------------------------- as text


def _csv(delimiter: str, sink: Any, schema: pa.Schema) -> Writer:
    """Begin a CSV file with a header; texts are in quotes, nulls empty values without quotes."""
    for field in schema:
        if not _plain(field.type):
            raise pa.ArrowInvalid(f"{field.name!r} is {field.type}, which has no form as text")
    csv = importlib.import_module("pyarrow.csv")
    options = csv.WriteOptions(delimiter=delimiter)
    stored = pa.schema([(f.name, pa.string() if zones.zoned(f.type) else f.type) for f in schema])
    writer = csv.CSVWriter(sink, stored, write_options=options)
    return LibraryWriter(lambda rows: writer.write_table(_csv_rows(rows)), writer.close)


def _csv_rows(rows: pa.Table) -> pa.Table:
    """Convert times with a zone to text; raise SchemaError for a row that is an empty line."""
    if rows.num_columns == 1 and rows.column(0).null_count:
        raise SchemaError(
            f"CSV files of column {rows.column_names[0]!r} alone cannot hold its nulls",
            why="a null is an empty field, and an empty line is no row",
            try_=".fill_null(...), a second column, or .write_parquet",
        )
    columns = [_text(column) if zones.zoned(column.type) else column for column in rows.columns]
    return pa.table(columns, names=rows.column_names)


def csv_of(delimiter: object) -> FileFormat:
    """Build the CSV format; raise PlanError for an invalid delimiter."""
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        raise PlanError(
            f"CSV fields cannot be separated by {delimiter!r}",
            why="a delimiter is one character, and neither a quote nor the end of a line",
            try_='delimiter=",", or "\\t"',
        )
    return FileFormat("write_csv", "csv", partial(_csv, delimiter))


def _plain(kind: pa.DataType) -> bool:
    """Return True for a scalar type that reads back from text unchanged."""
    types = pa.types
    if zones.zoned(kind):
        zones.zone(kind.tz)
    text = types.is_string(kind) or types.is_large_string(kind)
    moment = types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return bool(text or moment or number or types.is_decimal(kind) or types.is_null(kind))


def _json_lines(sink: Any, schema: pa.Schema) -> Writer:
    """Begin an empty file of JSON lines: an object per line, in UTF-8."""
    forms = {field.name: json_of(field.type, field.name) for field in schema}
    encode = encoder().encode

    def write(rows: pa.Table) -> None:
        columns = [form(rows.column(name)) for name, form in forms.items()]
        for values in zip(*columns, strict=True):
            line = encode(dict(zip(forms, values, strict=True)))
            sink.write(f"{line}\n".encode())

    return LibraryWriter(write, lambda: None)  # JSON lines have no footer


JSON_LINES = FileFormat("write_json", "jsonl", _json_lines)


def json_of(kind: pa.DataType, name: str) -> Callable[[Any], list[Any]]:
    """Return a function from a column of ``kind`` to JSON values, or raise ArrowInvalid."""
    types = pa.types
    if not _in_json(kind, outer=True):
        raise pa.ArrowInvalid(f"{name!r} is {kind}, which has no form in JSON")
    if types.is_temporal(kind) or types.is_decimal(kind):
        return lambda column: _text(column).to_pylist()
    if is_tensor(kind):
        return lambda column: [_finite(v, name) for v in _tensors(column)]
    if types.is_floating(kind) or types.is_nested(kind):
        return lambda column: [_finite(v, name) for v in column.to_pylist()]
    return lambda column: column.to_pylist()


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert times and decimals to text."""
    if not zones.zoned(column.type):
        return column.cast(pa.string())
    return pa.chunked_array([zones.text(chunk) for chunk in column.chunks], pa.string())


def encoder() -> json.JSONEncoder:
    """Return the JSON encoder for values of ``json_of``, in which lists may contain times."""
    return json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_spelled)


def _spelled(value: Any) -> str:
    return str(zones.whole_minutes(value) if isinstance(value, dt.datetime) else value)


def _in_json(kind: pa.DataType, *, outer: bool) -> bool:
    """Return True if JSON represents ``kind``; ``outer`` is False inside lists and structs."""
    types = pa.types
    if is_tensor(kind):
        return outer
    if types.is_struct(kind):
        return all(_in_json(field.type, outer=False) for field in kind.fields)
    if is_list(kind):
        return _in_json(kind.value_type, outer=False)
    return _plain(kind) and (outer or getattr(kind, "unit", "") != "ns")


def is_tensor(kind: pa.DataType) -> bool:
    """Return True for tensors of fixed and of open shape."""
    return isinstance(kind, pa.FixedShapeTensorType | OpenTensor)


def _tensors(column: pa.ChunkedArray) -> list[Any]:
    if isinstance(column.type, OpenTensor):
        rows = [row for chunk in column.chunks for row in arrays_in(chunk)]
        return [None if row is None else row.tolist() for row in rows]
    shape = column.type.shape
    flat = [v for chunk in column.chunks for v in chunk.storage.to_pylist()]
    return [None if v is None else np.array(v, object).reshape(shape).tolist() for v in flat]


def _finite(value: Any, name: str) -> Any:
    """Return ``value`` with NaN as None, at any depth; raise SchemaError for infinite values."""
    if isinstance(value, list):
        return [_finite(each, name) for each in value]
    if isinstance(value, dict):
        return {key: _finite(each, name) for key, each in value.items()}
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return None
    raise SchemaError(
        f"column {name!r} has {value}, which JSON cannot hold",
        why="numbers of JSON are finite",
        try_=".write_parquet, or .clip() of the column first",
    )
