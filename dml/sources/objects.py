"""This file holds the doors of sources over objects: Python's, and those of other libraries."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dml.dataset import Dataset
from dml.errors import PlanError
from dml.expr.doors import door
from dml.expr.sources.source import ATOM_ROWS
from dml.plugins import SOURCES, DataSource, plugin
from dml.sources.files import source_module


@door
def from_items(
    items: Iterable[Any], schema: Any = None, *, atom_rows: int | None = None
) -> Dataset:
    """Rows from a list of dicts, or of scalars (column "item"); None is null."""
    return Dataset(source_module("memory").from_items(items, schema, atom_rows=atom_rows))


@door
def from_dict(columns: Mapping[str, Any], *, atom_rows: int | None = None) -> Dataset:
    """Rows from a dict of equally long lists or arrays."""
    return Dataset(source_module("memory").from_dict(columns, atom_rows=atom_rows))


@door
def from_numpy(arrays: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows from an array (column "item") or a dict of arrays; further axes are tensor axes."""
    return Dataset(source_module("memory").from_numpy(arrays, atom_rows=atom_rows))


from_list = from_items


@door
def from_tensor_slices(data: Any, *, atom_rows: int | None = None) -> Dataset:
    """Slices along the first axis of a dict of arrays, of one, or of each of a tuple (item_0 ...).

    ``from_dict`` or ``from_numpy`` of the same; a list is one array.
    """
    if isinstance(data, tuple):
        data = {f"item_{number}": each for number, each in enumerate(data)}
    if isinstance(data, Mapping):
        return from_dict(data, atom_rows=atom_rows)
    if isinstance(data, list):
        return from_dict({"item": data}, atom_rows=atom_rows)
    return from_numpy(data, atom_rows=atom_rows)


@door
def from_arrow(data: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows from anything that speaks Arrow's PyCapsule protocol: tables, batches, data frames.

    What has ``__dataframe__`` alone is read through that.
    """
    return Dataset(source_module("memory").from_arrow(data, atom_rows=atom_rows))


@door
def from_pandas(frame: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows of a pandas DataFrame; index levels that have names are columns, before the others.

    An index without a name is left out. What pandas calls missing (NaN, NaT, NA) is null.
    SourceError for column names that are no text, or that stand twice.
    """
    return Dataset(source_module("frames").from_pandas(frame, atom_rows=atom_rows))


@door
def from_polars(frame: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows of a Polars DataFrame, without a copy of numbers; a LazyFrame is collected now."""
    return Dataset(source_module("frames").from_polars(frame, atom_rows=atom_rows))


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
    return _plugged(source_module("generated").generated(fn, args, schema, **options))


@door
def from_iterable(
    rows: Iterable[Any], schema: Any = None, *, atom_rows: int | None = None
) -> Dataset:
    """Rows of anything that can be iterated: dicts, or values (column "item").

    What begins anew is iterated for every pass. An iterator is pulled once, as far as somebody
    needs it, and its rows are kept in a file of a private temporary folder, which goes with the
    last pipeline over them; other processes of this host read that, and ask for more. Types as in
    ``from_generator``. The rows have a name in this run only: ``explain`` says so.
    """
    made = source_module("spooled").iterated(
        rows, schema, nonce=uuid.uuid4().bytes, atom_rows=atom_rows
    )
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
    made = source_module("torch").from_torch(dataset, schema, names, **options)
    return _plugged(made, atom_rows=atom_rows)


@door
def from_huggingface(dataset: Any, *, atom_rows: int | None = None) -> Dataset:
    """Rows of a ``datasets.Dataset``, as they are stored: its files are mapped, not copied.

    Images and other features that the library decodes stay as they are in the table. What was
    selected or shuffled there keeps its order. An ``IterableDataset`` begins anew for every pass.
    SourceError for a dict of splits: choose one.
    """
    return _plugged(source_module("huggingface").from_huggingface(dataset), atom_rows=atom_rows)


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
    made = source_module("dask").from_dask(collection, schema, scheduler)
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
    made = source_module("delta").read_delta(path, version, storage_options)
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
    made = source_module("iceberg").read_iceberg(table, snapshot, catalog)
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
    made = source_module("lance").read_lance(path, version, storage_options)
    return _plugged(made, atom_rows=atom_rows)


@door
def read_sql(
    query: str,
    connect: Callable[[], Any],
    schema: Any = None,
    *,
    parameters: Sequence[Any] | Mapping[str, Any] = (),
    fingerprint: str | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Rows that a database answers to ``query``, through any driver of Python's DB-API.

    ``connect`` opens a connection, one for every pass, which one thread uses at a time, but not
    always the same: sqlite3 needs ``check_same_thread=False``. Without an ORDER BY, and for data
    that changes, a pass may differ from the one before. ``parameters`` are a list, or a dict where
    the driver knows places by name. Names are the answer's, types as in
    ``from_generator``. The rows have a name in this run only, unless ``fingerprint`` gives one.
    """
    options = {"nonce": uuid.uuid4().bytes, "fingerprint": fingerprint, "atom_rows": atom_rows}
    return _plugged(source_module("sql").read_sql(query, connect, schema, parameters, **options))


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
    return _plugged(source_module("zarr").read_zarr(path, arrays), atom_rows=atom_rows)


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
    return Dataset(source_module("plugged").read_datasource(source, nonce, fingerprint, atom_rows))


@door
def range(
    start: int, stop: int | None = None, step: int = 1, *, atom_rows: int = ATOM_ROWS
) -> Dataset:
    """Whole numbers as Python's ``range`` counts them, column "id" (int64)."""
    first, last = (0, start) if stop is None else (start, stop)
    return Dataset(source_module("range").Range(first, last, step, atom_rows))
