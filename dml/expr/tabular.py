"""This file turns Arrow tables into data frames of other libraries, and what they return back."""

from __future__ import annotations

import importlib
from typing import Any

import pyarrow as pa

from dml.expr.layouts import usual_column

# What a function of batches may be given beside a dict of arrays.
LIBRARIES = ("pandas", "polars")
TABULAR = ("arrow", *LIBRARIES)


def framed(table: pa.Table, batch_format: str) -> Any:
    """The rows as a table or data frame; pandas shows nulls of integers as NaN of floats."""
    if batch_format == "pandas":
        return table.to_pandas()
    if batch_format == "polars":
        return importlib.import_module("polars").from_arrow(table)
    return table


def unframed(made: Any) -> Any:
    """A data frame as an Arrow table, without its index; what is none as it is.

    Raises pa.ArrowException, TypeError or ValueError for columns that Arrow cannot hold.
    """
    if isinstance(made, pa.Table | pa.RecordBatch) or not hasattr(made, "__arrow_c_stream__"):
        return made
    whole = hasattr(made, "iloc")
    table = pa.Table.from_pandas(made, preserve_index=False) if whole else pa.table(made)
    columns = {}
    for name, given in zip(table.column_names, table.columns, strict=True):
        column = usual_column(given, name)
        columns[name] = column.cast(_short(column.type))
    return pa.table(columns)


def _short(kind: pa.DataType) -> pa.DataType:
    """The type with offsets of 32 bits, as columns that were not in a frame have it."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_short(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_short(field.type)) for field in kind.fields])
    return kind
