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
    from dml.expr.sources.paths import Paths


def _format(name: str) -> ModuleType:
    """The module of a source format, loaded by its first use: Parquet alone takes 15 ms."""
    return importlib.import_module(f"dml.expr.sources.{name}")


@door
def read_parquet(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of Parquet files: a file, a folder, a pattern, or a list of these, sorted by name.

    Footers are read now, data when it is needed. Here as for all files paths may be URLs, such as
    "s3://bucket/folder"; ``storage_options`` are what fsspec opens them with, and never shown.
    SourceError for what is missing or damaged, SchemaError for a column that is not there.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(_format("parquet").read_parquet(paths, columns, **options))


scan_parquet = read_parquet


@door
def read_text(
    paths: Paths,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Lines of text files, column "text": a file, a folder, a pattern, or a list of these.

    .gz, .bz2, .xz and .zst are unpacked. SourceError for what is missing or, when it is read,
    damaged or not UTF-8.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(_format("text").read_text(paths, **options))


@door
def read_csv(
    paths: Paths,
    columns: Iterable[str] | None = None,
    schema: Any = None,
    *,
    delimiter: str = ",",
    header: bool = True,
    quote: str = '"',
    null_values: Iterable[str] = (),
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of CSV files: a file, a folder, a pattern, or a list of these, sorted by name.

    Types are those of the first rows, or of ``schema``, and hold for all files. SourceError for
    headers that differ, and when it is read for a row that does not fit.
    """
    options = {"delimiter": delimiter, "header": header, "quote": quote, "null_values": null_values}
    options |= {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(_format("csv").read_csv(paths, columns, schema, **options))


@door
def read_json(
    paths: Paths,
    columns: Iterable[str] | None = None,
    schema: Any = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Objects of JSON lines, a row per line: a file, a folder, a pattern, or a list of these.

    Types are those of the first rows, or of ``schema``, and hold for all files. SourceError, when
    it is read, for a line that does not fit.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(_format("json").read_json(paths, columns, schema, **options))


@door
def read_arrow(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of Arrow IPC files, also called Feather: as ``read_parquet``.

    Schemas are read now, data when it is needed. SourceError for what is missing or damaged.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(_format("arrow").read_arrow(paths, columns, **options))


@door
def read_binary_files(
    paths: Paths,
    include_paths: bool = True,  # noqa: FBT001, FBT002 - may be given as in other libraries
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """A row per file, columns "bytes" and "path": a folder, a pattern, a file, or a list of these.

    Paths are names below the folder that all files share, so they are the same elsewhere.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(_format("binary").read_binary_files(paths, include_paths, **options))


scan_csv = read_csv
scan_ndjson = read_json
read_ipc = scan_ipc = read_arrow


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
