"""Rows are written as .npy files: a structured array whose fields are the columns."""

from __future__ import annotations

import dataclasses
import io
import os
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.schema import code_of, shape_of
from dml.errors import SchemaError
from dml.io.files.write_formats import FileFormat

DIGITS = 19  # reserved for the number of rows, which is written at the end


def npy_of(column: str | None) -> FileFormat:
    """Return the .npy format of NumPy; with ``column``, of an array of that column only."""
    return FileFormat("write_numpy", "npy", partial(_open, column))


def _open(column: str | None, sink: Any, schema: pa.Schema) -> NpyWriter:
    """Begin a file; raise pa.ArrowInvalid for columns whose values have no fixed size."""
    plain = column is not None
    if plain and column not in schema.names:
        raise pa.ArrowInvalid(f"there is no column {column!r}")
    fields = [(field.name, *_array_of(field)) for field in schema]
    if "" in schema.names and not plain:
        raise pa.ArrowInvalid("a column without a name would get one of NumPy's")
    if plain:
        fields = [field for field in fields if field[0] == column]
    dtype = np.dtype(fields[0][1] if plain else fields)
    writer = NpyWriter(sink, dtype, fields[0][2] if plain else (), [f[0] for f in fields])
    sink.write(writer.header())
    return writer


@dataclasses.dataclass
class NpyWriter:
    """An open file that contains ``rows`` rows so far."""

    sink: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    names: list[str]
    rows: int = 0

    def header(self) -> bytes:
        """Return the header, whose length does not depend on the number of rows."""
        out = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(self.dtype)
        shape = (10**DIGITS - 1, *self.shape)
        said = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(out, said)
        found = f"'shape': ({self.rows},".encode()
        longest = f"'shape': ({shape[0]},".encode()
        return out.getvalue().replace(longest, found.ljust(len(longest)), 1)

    def write(self, rows: pa.Table) -> None:
        """Append rows; raise SchemaError for a null that an array cannot represent."""
        columns = [_values(rows.column(name), name) for name in self.names]
        if self.dtype.names is None:
            data = np.ascontiguousarray(columns[0], self.dtype)
        else:
            data = np.zeros(rows.num_rows, self.dtype)
            for name, values in zip(self.names, columns, strict=True):
                data[name] = values
        self.sink.write(data.tobytes())
        self.rows += rows.num_rows

    def close(self) -> None:
        """Rewrite the header with the final number of rows."""
        if self.rows:
            os.pwrite(self.sink.fileno(), self.header(), 0)


def _array_of(field: pa.Field) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and the shape of one value of a column."""
    kind, types = field.type, pa.types
    if code_of(kind) != "arrow":
        return np.dtype(code_of(kind)), shape_of(kind)
    moment = (types.is_timestamp(kind) and kind.tz is None) or types.is_duration(kind)
    if moment or types.is_date32(kind) or types.is_float16(kind):
        return np.dtype("M8[D]" if types.is_date32(kind) else kind.to_pandas_dtype()), ()
    hint = ", without a time zone" if types.is_timestamp(kind) else ""
    raise pa.ArrowInvalid(
        f"{field.name!r} is {kind}: arrays hold numbers, tensors, dates and moments{hint}"
    )


def _values(column: pa.ChunkedArray, name: str) -> np.ndarray:
    """Convert a column to an array; nulls of floats and times become NaN and NaT."""
    kind = column.type
    shape = shape_of(kind)
    if column.null_count and (shape or code_of(kind)[0] in "biu"):
        raise SchemaError(
            f"column {name!r} has a null, which an array of {kind} cannot show",
            why="NumPy's arrays have no nulls; floats have NaN, moments NaT",
            try_=f".fill_null({{{name!r}: 0}}), or .write_parquet",
        )
    if not shape:
        found: np.ndarray = column.to_numpy()
        return found
    flat = [chunk.storage.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, code_of(kind)), *flat]).reshape(-1, *shape)
