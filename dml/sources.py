"""This file holds the doors of the sources: functions that start a Dataset."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dml.dataset import Dataset
from dml.expr.doors import door
from dml.expr.sources.range import Range
from dml.expr.sources.source import ATOM_ROWS

if TYPE_CHECKING:
    from dml.expr.sources.parquet_paths import Paths


def _format(name: str) -> ModuleType:
    """The module of a source format, loaded by its first use: Parquet alone takes 15 ms."""
    return importlib.import_module(f"dml.expr.sources.{name}")


@door
def read_parquet(
    paths: Paths, columns: Iterable[str] | None = None, *, atom_rows: int | None = None
) -> Dataset:
    """Rows of Parquet files: a file, a folder, a pattern, or a list of these, sorted by name.

    Footers are read now, data when it is needed. SourceError for what is missing or damaged,
    SchemaError for a column that is not there.
    """
    return Dataset(_format("parquet").read_parquet(paths, columns, atom_rows=atom_rows))


scan_parquet = read_parquet


@door
def from_items(
    items: Iterable[Any], schema: Any = None, *, atom_rows: int | None = None
) -> Dataset:
    """Rows from a list of dicts, or of scalars (column "item"); None is null."""
    return Dataset(_format("memory").from_items(items, schema, atom_rows=atom_rows))


@door
def from_dict(columns: Mapping[str, Any], *, atom_rows: int | None = None) -> Dataset:
    """Rows from a dict of equally long lists or arrays."""
    return Dataset(_format("memory").from_dict(columns, atom_rows=atom_rows))


@door
def from_numpy(arrays: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows from an array (column "item") or a dict of arrays; further axes are tensor axes."""
    return Dataset(_format("memory").from_numpy(arrays, atom_rows=atom_rows))


@door
def from_arrow(data: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows from anything that speaks Arrow's PyCapsule protocol: tables, batches, data frames."""
    return Dataset(_format("memory").from_arrow(data, atom_rows=atom_rows))


@door
def range(
    start: int, stop: int | None = None, step: int = 1, *, atom_rows: int = ATOM_ROWS
) -> Dataset:
    """Whole numbers as Python's ``range`` counts them, column "id" (int64)."""
    first, last = (0, start) if stop is None else (start, stop)
    return Dataset(Range(first, last, step, atom_rows))
