"""This file holds the doors of the sources: functions that start a Dataset."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dml.dataset import Dataset
from dml.errors import PlanError
from dml.expr.doors import door
from dml.expr.sources.range import Range
from dml.expr.sources.source import ATOM_ROWS
from dml.plugins import SOURCES, DataSource, plugin

if TYPE_CHECKING:
    import os

    from dml.expr.sources.paths import Paths


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
def read_text(paths: Paths, *, atom_rows: int | None = None) -> Dataset:
    """Lines of text files, column "text": a file, a folder, a pattern, or a list of these.

    .gz, .bz2, .xz and .zst are unpacked. SourceError for what is missing or, when it is read,
    damaged or not UTF-8.
    """
    return Dataset(_format("text").read_text(paths, atom_rows=atom_rows))


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
) -> Dataset:
    """Rows of CSV files: a file, a folder, a pattern, or a list of these, sorted by name.

    Types are those of the first rows, or of ``schema``, and hold for all files. SourceError for
    headers that differ, and when it is read for a row that does not fit.
    """
    options = {"delimiter": delimiter, "header": header, "quote": quote, "null_values": null_values}
    source = _format("csv").read_csv(paths, columns, schema, atom_rows=atom_rows, **options)
    return Dataset(source)


@door
def read_json(
    paths: Paths,
    columns: Iterable[str] | None = None,
    schema: Any = None,
    *,
    atom_rows: int | None = None,
) -> Dataset:
    """Objects of JSON lines, a row per line: a file, a folder, a pattern, or a list of these.

    Types are those of the first rows, or of ``schema``, and hold for all files. SourceError, when
    it is read, for a line that does not fit.
    """
    return Dataset(_format("json").read_json(paths, columns, schema, atom_rows=atom_rows))


@door
def read_arrow(
    paths: Paths, columns: Iterable[str] | None = None, *, atom_rows: int | None = None
) -> Dataset:
    """Rows of Arrow IPC files, also called Feather: as ``read_parquet``.

    Schemas are read now, data when it is needed. SourceError for what is missing or damaged.
    """
    return Dataset(_format("arrow").read_arrow(paths, columns, atom_rows=atom_rows))


@door
def read_binary_files(
    paths: Paths,
    include_paths: bool = True,  # noqa: FBT001, FBT002 - may be given as in other libraries
    *,
    atom_rows: int | None = None,
) -> Dataset:
    """A row per file, columns "bytes" and "path": a folder, a pattern, a file, or a list of these.

    Paths are names below the folder that all files share, so they are the same elsewhere.
    """
    source = _format("binary").read_binary_files(paths, include_paths, atom_rows=atom_rows)
    return Dataset(source)


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
    """Rows from anything that speaks Arrow's PyCapsule protocol: tables, batches, data frames.

    What has ``__dataframe__`` alone is read through that.
    """
    return Dataset(_format("memory").from_arrow(data, atom_rows=atom_rows))


@door
def from_pandas(frame: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows of a pandas DataFrame; index levels that have names are columns, before the others.

    An index without a name is left out. What pandas calls missing (NaN, NaT, NA) is null.
    SourceError for column names that are no text, or that stand twice.
    """
    return Dataset(_format("frames").from_pandas(frame, atom_rows=atom_rows))


@door
def from_polars(frame: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows of a Polars DataFrame, without a copy of numbers; a LazyFrame is collected now."""
    return Dataset(_format("frames").from_polars(frame, atom_rows=atom_rows))


@door
def from_generator(
    fn: Callable[..., Iterable[Any]],
    schema: Any = None,
    *,
    args: Sequence[Any] = (),
    fingerprint: str | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Rows that ``fn(*args)`` gives: dicts, or values (column "item"), perhaps without end.

    It is called again for every pass over the rows, for a resumption too, which drops those that
    were given before; always by one reader, which is a thread of this process unless the executor
    has others. Without ``schema`` it is called now as well, and the first rows settle names and
    types: as many as it takes until every column has a value, 1000 at most.

    Rows come ``atom_rows`` (1024) at a time; fewer for a slow generator. SourceError names the row
    that raised, or does not fit, after the rows before it.
    """
    options = {"nonce": uuid.uuid4().bytes, "fingerprint": fingerprint, "atom_rows": atom_rows}
    return _plugged(_format("generated").generated(fn, args, schema, **options))


@door
def from_iterable(
    rows: Iterable[Any], schema: Any = None, *, atom_rows: int | None = None
) -> Dataset:
    """Rows of anything that can be iterated: dicts, or values (column "item").

    What begins anew is iterated for every pass. An iterator is pulled once, as far as somebody
    needs it, and its rows are kept in a file of a private temporary folder, which goes with the
    last pipeline over them; workers of other processes read that. Names and types as in
    ``from_generator``. The rows have a name in this run only: ``explain`` says so.
    """
    made = _format("spooled").iterated(rows, schema, nonce=uuid.uuid4().bytes, atom_rows=atom_rows)
    return _plugged(made, atom_rows=atom_rows)


@door
def from_torch(
    dataset: Any,
    schema: Any = None,
    *,
    names: Sequence[str] | None = None,
    fingerprint: str | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Samples of a PyTorch dataset: by index where it has one, else as its iterator gives them.

    A dict has its columns, a tuple the columns ``names`` (or "item_0", "item_1" ...), anything else
    the column "item"; tensors and images become arrays. Names and types are those of the first
    samples, which are made now, or of ``schema``. A dataset with ``__getitem__`` is shuffled by
    index. SourceError names the sample that raised, or does not fit.
    """
    options = {"nonce": uuid.uuid4().bytes, "fingerprint": fingerprint, "atom_rows": atom_rows}
    made = _format("torch").from_torch(dataset, schema, names, **options)
    return _plugged(made, atom_rows=atom_rows)


@door
def from_huggingface(dataset: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows of a ``datasets.Dataset``, as they are stored: its files are mapped, not copied.

    Images and other features that the library decodes stay as they are in the table. What was
    selected or shuffled there keeps its order. An ``IterableDataset`` begins anew for every pass.
    SourceError for a dict of splits: choose one.
    """
    return _plugged(_format("huggingface").from_huggingface(dataset), atom_rows=atom_rows)


@door
def from_dask(
    collection: Any,
    schema: Any = None,
    *,
    scheduler: str | Callable[..., Any] = "synchronous",
    atom_rows: int | None = None,
) -> Dataset:
    """Rows of a Dask data frame, array (column "item") or bag: partitions, computed when read.

    Each is computed by ``scheduler``, in the worker that reads it, with all that it is made of;
    what partitions share is computed for each, unless it was persisted. The distributed scheduler
    of the current client is "distributed". Rows are those of ``from_pandas``, ``from_numpy`` or
    ``from_generator``; types that Dask does not know are those of the first partition.
    """
    made = _format("dask").from_dask(collection, schema, scheduler)
    return _plugged(made, atom_rows=atom_rows)


@door
def read_delta(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Rows of a Delta table at ``version``, or at the one that is the latest now.

    Files in order of their paths, partition columns with their values; ``storage_options`` are
    deltalake's. SourceError for what is no table, and for tables with column mapping or deletion
    vectors. Needs the extra "delta".
    """
    made = _format("delta").read_delta(path, version, storage_options)
    return _plugged(made, atom_rows=atom_rows)


@door
def read_iceberg(
    table: Any,
    snapshot: int | None = None,
    *,
    catalog: str = "default",
    atom_rows: int | None = None,
) -> Dataset:
    """Rows of an Iceberg table at ``snapshot``, or at the one that is the latest now.

    ``table`` is a pyiceberg Table, or its name in ``catalog`` as pyiceberg is configured. Files in
    order of their paths, columns as the snapshot has them, without deleted rows. SourceError for
    what is not there. Needs the extra "iceberg".
    """
    made = _format("iceberg").read_iceberg(table, snapshot, catalog)
    return _plugged(made, atom_rows=atom_rows)


@door
def read_lance(
    path: str | os.PathLike[str],
    version: int | str | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Rows of a Lance dataset at ``version`` (or a tag), or at the one that is the latest now.

    Any row is read at once, so ``shuffle()`` reads in its order. SourceError for what is no
    dataset. Needs the extra "lance".
    """
    made = _format("lance").read_lance(path, version, storage_options)
    return _plugged(made, atom_rows=atom_rows)


@door
def read_sql(
    query: str,
    connect: Callable[[], Any],
    schema: Any = None,
    *,
    parameters: Sequence[Any] = (),
    fingerprint: str | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Rows that a database answers to ``query``, through any driver of Python's DB-API.

    ``connect`` opens a connection, one for every pass, which one thread uses at a time, but not
    always the same: sqlite3 needs ``check_same_thread=False``. Without an ORDER BY, and for data
    that changes, a pass may differ from the one before. Names are the answer's, types as in
    ``from_generator``. The rows have a name in this run only, unless ``fingerprint`` gives one.
    """
    options = {"nonce": uuid.uuid4().bytes, "fingerprint": fingerprint, "atom_rows": atom_rows}
    return _plugged(_format("sql").read_sql(query, connect, schema, parameters, **options))


@door
def read_zarr(
    path: str | os.PathLike[str],
    arrays: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
) -> Dataset:
    """Entries of Zarr arrays along their first axis; further axes are tensor axes.

    Of a group, the columns are its arrays (those of ``arrays``), equally long; of an array, "item".
    Atoms are chunks. SourceError for unequal lengths, and dtypes that no column can hold. Arrays
    have no versions: their content names them, and nobody may write to them. Needs the extra
    "zarr".
    """
    return _plugged(_format("zarr").read_zarr(path, arrays), atom_rows=atom_rows)


@door
def read_datasource(
    source: DataSource | str,
    *,
    fingerprint: str | None = None,
    atom_rows: int | None = None,
    **options: Any,
) -> Dataset:
    """Rows of a ``dml.DataSource``, or of one that an installed package offers by name.

    A name is that of an entry point of the group "dml.sources": a function, called with
    ``options``, that returns a DataSource. ``fingerprint`` stands for the source's identity.
    PlanError where a name is unknown or what it says makes no sense.
    """
    if isinstance(source, str):
        found: DataSource = plugin(SOURCES, source)(**options)
        return _plugged(found, fingerprint, atom_rows)
    if options:
        raise PlanError(
            f"read_datasource of an object has no option {next(iter(options))!r}",
            why="options are for the function that an installed package offers by name",
            try_="give them to the object's own class",
        )
    return _plugged(source, fingerprint, atom_rows)


def _plugged(
    source: DataSource, fingerprint: str | None = None, atom_rows: int | None = None
) -> Dataset:
    nonce = uuid.uuid4().bytes
    return Dataset(_format("plugged").read_datasource(source, nonce, fingerprint, atom_rows))


@door
def range(
    start: int, stop: int | None = None, step: int = 1, *, atom_rows: int = ATOM_ROWS
) -> Dataset:
    """Whole numbers as Python's ``range`` counts them, column "id" (int64)."""
    first, last = (0, start) if stop is None else (start, stop)
    return Dataset(Range(first, last, step, atom_rows))
