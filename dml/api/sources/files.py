"""Functions that read files are defined here, one for each format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dml.api.dataset import Dataset
from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.column import col

if TYPE_CHECKING:
    from dml.io.files.paths import Paths


def _table(
    read: Callable[..., Any],
    paths: Paths,
    columns: Iterable[str] | None,
    hive_partitioning: bool | None,  # noqa: FBT001 - as the functions below have it
    path_column: str | None,
    **options: Any,
) -> Dataset:
    """Return the rows of files that ``read`` opens, with columns from their paths."""
    from dml.io.files import files

    if isinstance(paths, Iterable) and not isinstance(paths, str | os.PathLike):
        paths = list(paths)
    source = read(paths, **options)
    named = any("=" in file.path for file in source.files.files)
    if path_column is None and not (named if hive_partitioning is None else hive_partitioning):
        names = files.chosen(columns, read.__name__)
        return Dataset(source if names is None else source.replace(columns=names))
    from dml.io.files import hive_columns, hive_paths

    given = hive_paths.PathArguments(
        paths, options["storage_options"], hive_partitioning, path_column
    )
    return Dataset(hive_columns.located(source, given, columns))


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
    """Read Parquet files, sorted by name; folders such as ``year=2024`` are columns.

    Footers are read now, data when needed, and files whose folders a filter excludes never.

    Parameters
    ----------
    paths : a file, a folder, a pattern, a URL such as "s3://bucket/folder", or a list of these
    columns : the columns to read, in this order; None reads all of the files, then those of paths
    union_by_name : whether columns of the files may differ. The result has the columns of any file,
        in order of first appearance, with nulls in files without them. Types are widened (int32
        and int64 to int64); structs have the fields of all. Reading a value that does not fit,
        such as 2**53 + 1 as a float, raises.
    hive_partitioning : whether folders called ``key=value`` add a column ``key`` to the rows of
        files in them. None: folders below a given folder or pattern do. True: also those in the
        path of a given file. False: none do. Values are int64 or date32 if all are, else text,
        percent-decoded; ``__HIVE_DEFAULT_PARTITION__`` is null. If the files have a column of
        that name too, it has the values of the path, in the files' type.
    path_column : the name of a column with the path of each row's file, written as in ``paths``
    atom_rows : rows of an atom, a fixed range of rows in which groups and positions are counted
    storage_options : options of fsspec for opening URLs; never printed

    Raise SourceError for missing or damaged files, and columns or keys that only some of them have.

    >>> dml.read_parquet("events").filter(col("year") == 2024)  # doctest: +SKIP
    """
    from dml.io.parquet import parquet

    options: dict[str, Any] = {"atom_rows": atom_rows, "storage_options": storage_options}
    options["union_by_name"] = union_by_name
    return _table(parquet.read_parquet, paths, columns, hive_partitioning, path_column, **options)


scan_parquet = read_parquet


@door
def read_text(
    paths: Paths,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read text files, a row per line, column "text"; paths are as in ``read_parquet``.

    Files .gz, .bz2, .xz and .zst are decompressed. Raise SourceError for a missing file; while
    reading, raise it for a file that is damaged or not UTF-8.
    """
    from dml.io.text import text

    options: dict[str, Any] = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(text.read_text(paths, **options))


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
    """Read CSV files, sorted by name; folders such as ``year=2024`` are columns.

    Rows of all files are counted at the first use, even of files that a filter on folders excludes.

    Parameters ---------- paths, columns, hive_partitioning, path_column, atom_rows, storage_options
    : as ``read_parquet`` schema : types of some columns of the files; those of others are inferred
    from the first rows delimiter, quote : the characters between values, and around a quoted value
    header : whether files begin with the names of their columns null_values : further texts that
    mean null. An empty value is null in columns of numbers and times; in columns of text, only if
    ``null_values`` are given

    Raise SourceError if headers or keys differ; while reading, for a row that does not fit.
    """
    options: dict[str, Any] = {"delimiter": delimiter, "header": header, "quote": quote}
    options["null_values"] = null_values
    options |= {"schema": schema, "atom_rows": atom_rows, "storage_options": storage_options}
    from dml.io.csv import csv

    return _table(csv.read_csv, paths, columns, hive_partitioning, path_column, **options)


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
    """Read JSON lines, an object per line and row; folders such as ``year=2024`` are columns.

    Rows of all files are counted at the first use, even of files that a filter on folders excludes.

    Parameters ---------- paths, columns, hive_partitioning, path_column, atom_rows, storage_options
    : as ``read_parquet`` schema : types of some columns of the files; those of others are inferred
    from the first rows

    Raise SourceError if only some paths have a key; while reading, for a line that does not fit.
    """
    options: dict[str, Any] = {
        "schema": schema,
        "atom_rows": atom_rows,
        "storage_options": storage_options,
    }
    from dml.io.json import json

    return _table(json.read_json, paths, columns, hive_partitioning, path_column, **options)


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
    """Read Arrow IPC files, also called Feather; parameters are as in ``read_parquet``.

    Schemas are read now, offsets of record batches at the first use, and data when needed. Raise
    SourceError for missing or damaged files, and if only some paths have a key.
    """
    options: dict[str, Any] = {"atom_rows": atom_rows, "storage_options": storage_options}
    from dml.io.arrow import arrow

    return _table(arrow.read_arrow, paths, columns, hive_partitioning, path_column, **options)


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
    """Read ORC files of this machine; parameters are as in ``read_parquet``.

    Footers are read now, data when it is needed. ORC files are read in a separate process, so that
    a damaged file cannot crash this one. Raise SourceError for files that are missing, damaged, or
    in an object store, and if only some paths have a key.
    """
    options: dict[str, Any] = {"atom_rows": atom_rows, "storage_options": storage_options}
    from dml.io.orc import orc

    return _table(orc.read_orc, paths, columns, hive_partitioning, path_column, **options)


@door
def read_binary_files(
    paths: Paths,
    include_paths: bool = True,  # noqa: FBT001, FBT002 - may be given as in other libraries
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read whole files, one row each, as columns "bytes" and "path".

    ``paths`` is a folder, a pattern, a file, or a list of these. Column "path" has paths relative
    to the common folder of all files, which are the same on any machine; it is omitted unless
    ``include_paths``.
    """
    from dml.io.binary import binary

    options: dict[str, Any] = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(binary.read_binary_files(paths, include_paths, **options))


@door
def read_images(
    paths: Paths,
    *,
    label: str | Mapping[str, Any] | None = None,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read images as encoded bytes, one row each, in order of file name.

    Columns are "path", below the common folder of all files, "label" if requested, and "image",
    which ``col("image").image.decode()`` turns into pixels. No file is opened before its rows are
    read.

    Parameters
    ----------
    paths : a folder, a pattern such as "train/**/*.jpg", a file, a URL, or a list of these; of a
        folder, the files with the suffix of an image format are read
    label : "parent" is the name of the folder that has the file; a mapping has a value for each
        such name; None makes no column
    atom_rows : files that are read together; None: about 8 MiB
    storage_options : options of the object store, for URLs

    Raise SourceError for missing files, and CastError for a folder that the mapping lacks.
    """
    from dml.io.binary.binary import IMAGES

    return _read_media(paths, IMAGES, label, atom_rows, storage_options)


@door
def read_audio(
    paths: Paths,
    *,
    label: str | Mapping[str, Any] | None = None,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read sounds as encoded bytes, one row each, in order of file name.

    Columns are "path", below the common folder of all files, "label" if requested, and "audio",
    which ``col("audio").audio.decode(16000)`` turns into samples. No file is opened before its rows
    are read.

    Parameters
    ----------
    paths : a folder, a pattern such as "clips/**/*.flac", a file, a URL, or a list of these; of a
        folder, the files with the suffix of an audio format are read
    label : "parent" is the name of the folder that has the file; a mapping has a value for each
        such name; None makes no column
    atom_rows : files that are read together; None: about 8 MiB
    storage_options : options of the object store, for URLs

    Raise SourceError for missing files, and CastError for a folder that the mapping lacks.
    """
    from dml.io.binary.binary import AUDIO

    return _read_media(paths, AUDIO, label, atom_rows, storage_options)


@door
def read_videos(
    paths: Paths,
    *,
    label: str | Mapping[str, Any] | None = None,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read videos as encoded bytes, one row each, in order of file name.

    Columns are "path", below the common folder of all files, "label" if requested, and "video",
    of which ``col("video").video.frames(count=8)`` decodes frames. No file is opened before its
    rows are read; a file is held in memory as a whole.

    Parameters
    ----------
    paths : a folder, a pattern such as "clips/**/*.mp4", a file, a URL, or a list of these; of a
        folder, the files with the suffix of a video format are read
    label : "parent" is the name of the folder that has the file; a mapping has a value for each
        such name; None makes no column
    atom_rows : files that are read together; None: about 8 MiB
    storage_options : options of the object store, for URLs

    Raise SourceError for missing files, and CastError for a folder that the mapping lacks.
    """
    from dml.io.binary.binary import VIDEO

    return _read_media(paths, VIDEO, label, atom_rows, storage_options)


def _read_media(
    paths: Paths,
    kind: Any,
    label: Any,
    atom_rows: int | None,
    storage_options: Mapping[str, Any] | None,
) -> Dataset:
    """Return columns path, label if requested, and the bytes, named after the ``kind`` of file."""
    from dml.io.binary import binary

    source = binary.read_binary_files(
        paths, kind=kind, atom_rows=atom_rows, storage_options=storage_options
    )
    ds = Dataset(source).rename({binary.BYTES: kind.word})
    if label is None:
        return ds.select(binary.PATH, kind.word)
    folder = col(binary.PATH).str.extract("([^/]*)/[^/]*$", 1)
    parent = folder.fill_null(os.path.basename(source.files.root))
    if label != "parent":
        parent = parent.replace_strict(_labels(label))
    return ds.with_columns(label=parent).select(binary.PATH, "label", kind.word)


def _labels(label: object) -> Mapping[str, Any]:
    if isinstance(label, Mapping) and label:
        return label
    raise PlanError(
        f"label is {label!r}",
        why="it says where a row's label comes from",
        try_='label="parent" for the folder\'s name, {"cat": 0, "dog": 1}, or None',
    )


@door
def read_numpy(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read .npy files (column "item", or a column per field) and .npz files (a column per member).

    Headers are read now, values when they are needed. Raise SourceError for files that are missing,
    damaged, or made of Python objects.
    """
    from dml.io.numpy import npy

    options: dict[str, Any] = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(npy.read_numpy(paths, columns, **options))


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
    """Read TFRecord files: the features of ``tf.train.Example``, or ``raw`` bytes.

    Types are those of the first records, or of ``schema``, which also selects features. Checksums
    are verified. Raise SourceError for a missing file; while reading, for a damaged one.
    """
    from dml.io.tfrecord import tfrecord

    options: dict[str, Any] = {"raw": raw, "compression": compression, "atom_rows": atom_rows}
    options["storage_options"] = storage_options
    return Dataset(tfrecord.read_tfrecords(paths, schema, **options))


@door
def read_webdataset(
    paths: Paths,
    suffixes: Iterable[str] | None = None,
    decode: bool | str = True,  # noqa: FBT001, FBT002 - as other readers of shards have it
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read samples of WebDataset shards (.tar, .tar.gz ...): a row per key, a column per suffix.

    Text, numbers, JSON and arrays are decoded unless ``decode=False``; pickles never are. Raise
    SourceError for a missing shard. While reading, raise it for a member that is damaged, a link,
    or not of the type that its name indicates.
    """
    from dml.io.webdataset import webdataset

    options: dict[str, Any] = {"atom_rows": atom_rows, "storage_options": storage_options}
    return Dataset(webdataset.read_webdataset(paths, suffixes, decode, **options))


scan_csv = read_csv
scan_ndjson = read_json
read_ipc = scan_ipc = read_arrow
