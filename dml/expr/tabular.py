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
    pairs = zip(table.column_names, table.columns, strict=True)
    return pa.table({name: usual_column(given, name) for name, given in pairs})
