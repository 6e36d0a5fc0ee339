"""This file holds the doors of sources over files, a format each."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dml.dataset import Dataset
from dml.expr.doors import door

if TYPE_CHECKING:
    from dml.expr.sources.paths import Paths


def source_module(name: str) -> ModuleType:
    """The module of a source, loaded by its first use: Parquet alone takes 15 ms."""
    return importlib.import_module(f"dml.expr.sources.{name}")


def _table(
    word: str,
    paths: Paths,
    columns: Iterable[str] | None,
    hive_partitioning: bool | None,  # noqa: FBT001 - as the doors below were given it
    path_column: str | None,
    **options: Any,
) -> Dataset:
    """Rows of files of the format ``word``, with the columns of their paths."""
    if isinstance(paths, Iterable) and not isinstance(paths, str | os.PathLike):
        paths = list(paths)
    source = getattr(source_module(word), f"read_{word}")(paths, **options)
    named = any("=" in file.path for file in source.files.files)
    if path_column is None and not (named if hive_partitioning is None else hive_partitioning):
        names = source_module("files").chosen(columns, f"read_{word}")
        return Dataset(source if names is None else source.replace(columns=names))
    given = source_module("hive_paths").Given(
        paths, options["storage_options"], hive_partitioning, path_column
    )
    return Dataset(source_module("hive").located(source, given, columns))


@door
def read_parquet(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    union_by_name: bool = False,
    hive_partitioning: bool | None = None,
    path_column: str | None = None,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of Parquet files, sorted by name; folders such as ``year=2024`` are columns.

    Footers are read now, data when it is needed: never of files whose folders a filter leaves out.

    Parameters
    ----------
    paths : a file, a folder, a pattern, or a list of these; here as for all files they may be URLs,
        such as "s3://bucket/folder"
    columns : which columns, in this order; all if None: first the files', then those of paths
    union_by_name : whether columns of the files may differ, not only in order. There are those of
        any file then, in order of first appearance; a file without one has nulls there. The wider
        of several types holds: int64 of int32 and int64, any of null, the fields of both of
        structs. A value that it cannot hold, such as 2**53 + 1 as a float, raises when it is read.
    hive_partitioning : whether folders called ``key=value`` are columns of rows below them. None:
        those below a folder or pattern that is given. True: also those in the path of a file that
        is given itself. False: none. Values are int64 if all are whole numbers, date32 if all are
        dates such as 2024-02-29, else text, percent-decoded; ``__HIVE_DEFAULT_PARTITION__`` is
        null. A column that the files have too is the path's, in the type that the files have.
    path_column : the name of a column of each row's path, as ``paths`` would have it
    atom_rows : rows of the runs that groups and positions rest on
    storage_options : what fsspec opens URLs with; never shown

    SourceError for what is missing or damaged, for files whose columns differ, and for paths of
    which only some have a key, SchemaError for a column that is not there.

    >>> dml.read_parquet("events").filter(col("year") == 2024)  # doctest: +SKIP
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    options |= {"union_by_name": union_by_name}
    return _table("parquet", paths, columns, hive_partitioning, path_column, **options)


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
    return Dataset(source_module("text").read_text(paths, **options))


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
    hive_partitioning: bool | None = None,
    path_column: str | None = None,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of CSV files, sorted by name; folders such as ``year=2024`` are columns.

    Rows of all files are counted at the first use, also where a filter on folders leaves them out.

    Parameters
    ----------
    paths, columns, hive_partitioning, path_column, atom_rows, storage_options : as ``read_parquet``
    schema : types of columns of the files; those of the first rows for others, for all files
    delimiter, quote : the letter between values, and the one around them
    header : whether files begin with the names of their columns
    null_values : what is null beside empty values; only then also in text

    SourceError for headers that differ, for paths of which only some have a key, and when it is
    read for a row that does not fit.
    """
    options = {"delimiter": delimiter, "header": header, "quote": quote, "null_values": null_values}
    options |= {"schema": schema, "atom_rows": atom_rows, "storage_options": storage_options}
    return _table("csv", paths, columns, hive_partitioning, path_column, **options)


@door
def read_json(
    paths: Paths,
    columns: Iterable[str] | None = None,
    schema: Any = None,
    *,
    hive_partitioning: bool | None = None,
    path_column: str | None = None,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Objects of JSON lines, a row per line; folders such as ``year=2024`` are columns.

    Rows are counted as those of ``read_csv``.

    Parameters
    ----------
    paths, columns, hive_partitioning, path_column, atom_rows, storage_options : as ``read_parquet``
    schema : types of columns of the files; those of the first rows for others, for all files

    SourceError for paths of which only some have a key, and when it is read for a line that does
    not fit.
    """
    options = {"schema": schema, "atom_rows": atom_rows, "storage_options": storage_options}
    return _table("json", paths, columns, hive_partitioning, path_column, **options)


@door
def read_arrow(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    hive_partitioning: bool | None = None,
    path_column: str | None = None,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of Arrow IPC files, also called Feather: as ``read_parquet``.

    Schemas are read now, data when it is needed, and where record batches begin at the first use.

    Parameters
    ----------
    paths, columns, hive_partitioning, path_column, atom_rows, storage_options : as ``read_parquet``

    SourceError for what is missing or damaged, and for paths of which only some have a key.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return _table("arrow", paths, columns, hive_partitioning, path_column, **options)


@door
def read_orc(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    hive_partitioning: bool | None = None,
    path_column: str | None = None,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of ORC files of this machine: as ``read_parquet``.

    Footers are read now, data when it is needed, in a process that damage may end.

    Parameters
    ----------
    paths, columns, hive_partitioning, path_column, atom_rows, storage_options : as ``read_parquet``

    SourceError for what is missing, damaged, or in a store, and for paths of which only some have
    a key.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return _table("orc", paths, columns, hive_partitioning, path_column, **options)


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
    return Dataset(source_module("binary").read_binary_files(paths, include_paths, **options))


@door
def read_numpy(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of .npy files (column "item", or the fields of rows) and .npz files (their members).

    Headers are read now, values when they are needed. SourceError for what is missing, damaged, or
    made of Python objects.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(source_module("npy").read_numpy(paths, columns, **options))


@door
def read_tfrecords(
    paths: Paths,
    schema: Any = None,
    *,
    raw: bool = False,
    compression: str | None = "auto",
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Records of TFRecord files: the features of ``tf.train.Example``, or ``raw`` bytes.

    Types are those of the first records, or of ``schema``, which then chooses. Checksums are always
    compared. SourceError for what is missing or, when it is read, damaged.
    """
    options: dict[str, Any] = {"raw": raw, "compression": compression, "atom_rows": atom_rows}
    options["storage_options"] = storage_options
    return Dataset(source_module("tfrecord").read_tfrecords(paths, schema, **options))


@door
def read_webdataset(
    paths: Paths,
    suffixes: Iterable[str] | None = None,
    decode: bool | str = True,  # noqa: FBT001, FBT002 - as other readers of shards have it
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Samples of WebDataset shards (.tar, .tar.gz ...): a row per key, a column per suffix.

    Text, numbers, JSON and arrays are decoded unless ``decode=False``; pickles never. SourceError
    for what is missing or, when it is read, damaged, a link, or not what its name says.
    """
    options = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(source_module("webdataset").read_webdataset(paths, suffixes, decode, **options))


scan_csv = read_csv
scan_ndjson = read_json
read_ipc = scan_ipc = read_arrow
