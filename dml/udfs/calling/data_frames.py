"""Arrow tables are converted to data frames of other libraries, and data frames to Arrow tables."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor, column_of
from dml.data.block import from_arrow
from dml.data.layouts import usual_column
from dml.data.schema import shape_of
from dml.udfs.calling.python_rows import UnfitError, settle, to_list

# Formats for functions of batches, beside a dict of arrays.
LIBRARIES = ("pandas", "polars")
TABULAR = ("arrow", *LIBRARIES)


def framed(table: pa.Table, batch_format: str) -> Any:
    """Return ``table`` in ``batch_format``; pandas shows nulls of integers as NaN of floats."""
    if batch_format == "pandas":
        return in_pandas(table)
    if batch_format == "polars":
        return importlib.import_module("polars").from_arrow(table)
    return table


def in_pandas(table: pa.Table) -> Any:
    """Return a pandas data frame; each tensor is a separate array, in a column of objects."""
    plain, places = table, [n for n, kind in enumerate(table.schema.types) if _is_tensor(kind)]
    for n in places:
        plain = plain.set_column(n, table.column_names[n], pa.nulls(table.num_rows))
    frame = plain.to_pandas()
    for n in places:
        rows = [row for chunk in table.column(n).chunks for row in to_list(from_arrow(chunk))]
        frame.isetitem(n, _objects([None if row is None else row.copy() for row in rows]))
    return frame


def _is_tensor(kind: pa.DataType) -> bool:
    return isinstance(kind, OpenTensor) or len(shape_of(kind)) > 1


def _objects(rows: list[Any]) -> np.ndarray:
    out = np.empty(len(rows), object)
    for n, row in enumerate(rows):  # NumPy would otherwise join arrays of one shape into one array
        out[n] = row
    return out


def unframed(made: Any) -> Any:
    """Return a data frame as an Arrow table, without its index; any other value unchanged.

    Raise pa.ArrowException, TypeError or ValueError for columns that Arrow cannot hold.
    """
    if isinstance(made, pa.Table | pa.RecordBatch) or not hasattr(made, "__arrow_c_stream__"):
        return made
    table = _of_pandas(made) if hasattr(made, "iloc") else pa.table(made)
    pairs = zip(table.column_names, table.columns, strict=True)
    return pa.table({name: usual_column(given, name) for name, given in pairs})


def _of_pandas(frame: Any) -> pa.Table:
    """Return a data frame as a table; object columns of arrays with several axes are tensors."""
    opened = {
        n: made for n in range(frame.shape[1]) if (made := _tensors(frame.iloc[:, n])) is not None
    }
    plain = frame.copy(deep=False) if opened else frame
    for n in opened:
        plain.isetitem(n, None)
    table = pa.Table.from_pandas(plain, preserve_index=False)
    for n, made in opened.items():
        table = table.set_column(n, table.column_names[n], made)
    return table


def _tensors(column: Any) -> pa.ExtensionArray | None:
    """Return an object column of arrays with several axes as tensors; other columns give None.

    Missing values become null.
    """
    if column.dtype != object or not any(map(_is_array, column)):
        return None
    rows = [row if _is_array(row) else None for row in column]
    if [row is None for row in rows] != column.isna().tolist():
        return None
    try:
        kind = settle(rows)
    except UnfitError as error:
        raise ValueError(error.what) from None
    if not isinstance(kind, OpenTensor):
        kind = OpenTensor(kind.value_type, (None,) * len(kind.shape))
    return column_of(rows, kind)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 1
