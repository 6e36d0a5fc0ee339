"""Functions that read Python objects and objects of other libraries are defined here."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dml.api.dataset import Dataset
from dml.base.user_line import door
from dml.errors import PlanError
from dml.io.source import ATOM_ROWS
from dml.plugins import SOURCES, DataSource, plugin


@door
def from_items(
    items: Iterable[Any], schema: Any = None, *, atom_rows: int | None = None
) -> Dataset:
    """Read rows from a list of dicts, or of scalars (column "item"); None is null."""
    from dml.io.memory import memory

    return Dataset(memory.from_items(items, schema, atom_rows=atom_rows))


@door
def from_dict(columns: Mapping[str, Any], *, atom_rows: int | None = None) -> Dataset:
    """Read rows from a dict of equally long lists or arrays."""
    from dml.io.memory import memory

    return Dataset(memory.from_dict(columns, atom_rows=atom_rows))


@door
def from_numpy(arrays: Any, *, atom_rows: int | None = None) -> Dataset:
    """Read an array (column "item") or dict of arrays by the first axis; more axes make tensors."""
    from dml.io.memory import memory

    return Dataset(memory.from_numpy(arrays, atom_rows=atom_rows))


from_list = from_items


@door
def from_tensor_slices(data: Any, *, atom_rows: int | None = None) -> Dataset:
    """Slice a dict of arrays, one array, or each of a tuple of arrays, along the first axis.

    A tuple has columns "item_0", "item_1" ...; a list is one array. Otherwise as ``from_numpy``.
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
    """Read tables, batches or data frames by Arrow's PyCapsule protocol, else ``__dataframe__``."""
    from dml.io.memory import memory

    return Dataset(memory.from_arrow(data, atom_rows=atom_rows))


@door
def from_pandas(frame: Any, *, atom_rows: int | None = None) -> Dataset:
    """Read a pandas DataFrame; named index levels are columns, before the other columns.

    An index without a name is left out. Missing values of pandas (NaN, NaT, NA) are null. Raise
    SourceError if a column name is not a text, or is not unique.
    """
    from dml.io.memory import frames

    return Dataset(frames.from_pandas(frame, atom_rows=atom_rows))


@door
def from_polars(frame: Any, *, atom_rows: int | None = None) -> Dataset:
    """Read a Polars DataFrame, without a copy of numbers; a LazyFrame is collected now."""
    from dml.io.memory import frames

    return Dataset(frames.from_polars(frame, atom_rows=atom_rows))


@door
def from_generator(
    fn: Callable[..., Iterable[Any]],
    schema: Any = None,
    *,
    args: Sequence[Any] = (),
    fingerprint: str | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Read the rows that ``fn(*args)`` yields, dicts or values (column "item"); may be endless.

    ``fn`` is called again for every pass over the rows, and when a run resumes, which then discards
    the rows before its position. One reader calls it: a thread of this process, unless the executor
    has worker processes or machines. Without ``schema``, ``fn`` is also called now, and names and
    types are inferred from the first rows, up to the one at which every column has had a value, at
    most 1000. Rows are passed on ``atom_rows`` (1024) at a time, or those of the last 0.05 s if
    they come slowly. An invalid row, or an error of ``fn``, raises SourceError with the row number,
    after all earlier rows.
    """
    from dml.io.user import generator

    options: dict[str, Any] = {
        "nonce": uuid.uuid4().bytes,
        "fingerprint": fingerprint,
        "atom_rows": atom_rows,
    }
    return _plugged(generator.generated(fn, args, schema, **options))


@door
def from_iterable(
    rows: Iterable[Any], schema: Any = None, *, atom_rows: int | None = None
) -> Dataset:
    """Read any iterable: dicts, or values (column "item").

    An iterable that can be restarted is iterated for every pass. An iterator is consumed once, as
    far as needed, and its rows are kept in a private temporary file, which is deleted with the last
    pipeline that reads them. Other processes of this host read that file, and ask this one for more
    rows. Types are inferred as in ``from_generator``. The fingerprint is valid in this process
    only.
    """
    from dml.io.user import iterator_spool

    made = iterator_spool.iterated(rows, schema, nonce=uuid.uuid4().bytes, atom_rows=atom_rows)
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
    """Read a PyTorch dataset: by index if it has one, else in the order of its iterator.

    A dict has its columns, a tuple the columns ``names`` (or "item_0", "item_1" ...), anything else
    the column "item"; tensors and images become arrays. Names and types are those of the first
    samples, which are read now, or those of ``schema``.

    ``__getitem__`` is called as the function of a ``map`` over the indexes: in parallel, also by
    several threads at once unless ``executor="processes"``, and by ``shuffle()`` in shuffled order.
    UDFError names the sample that raised, SourceError a dataset that cannot be read.
    """
    from dml.io.memory import torch

    made = torch.from_torch(dataset, schema, names)
    if isinstance(made, torch.Samples):
        indexes = range(made.length, atom_rows=ATOM_ROWS if atom_rows is None else atom_rows)
        return indexes.map(made.fn, schema=made.schema, fingerprint=fingerprint, pure=True)
    return from_generator(made, schema, fingerprint=fingerprint, atom_rows=atom_rows)


@door
def from_huggingface(dataset: Any, *, atom_rows: int | None = None) -> Dataset:
    """Read a ``datasets.Dataset`` as it is stored: its files are mapped into memory, not copied.

    Images and other features that the library decodes remain encoded, as in the table. If the
    dataset selects or shuffles rows, its order is used. An ``IterableDataset`` is restarted for
    every pass. Raise SourceError for a dict of splits: pass one of them.
    """
    from dml.io.memory import huggingface

    return _plugged(huggingface.from_huggingface(dataset), atom_rows=atom_rows)


@door
def from_dask(
    collection: Any,
    schema: Any = None,
    *,
    scheduler: str | Callable[..., Any] = "synchronous",
    atom_rows: int | None = None,
) -> Dataset:
    """Read a Dask data frame, array (column "item") or bag; partitions are computed when read.

    Each partition is computed by ``scheduler``, with its whole graph, in the worker that reads it.
    Dependencies of several partitions are computed for each of them, unless persisted.
    "distributed" is the scheduler of the current client. Rows are those of ``from_pandas``,
    ``from_numpy`` or ``from_generator``; types unknown to Dask are those of the first partition.
    """
    from dml.io.memory import dask

    made = dask.from_dask(collection, schema, scheduler)
    return _plugged(made, atom_rows=atom_rows)


@door
def read_delta(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Read a Delta table at ``version``, or at the latest version at the time of the call.

    Files are read in order of their paths, and partition columns are columns of the rows;
    ``storage_options`` are those of deltalake. Raise SourceError if ``path`` is not a table, and
    for tables with column mapping or deletion vectors. This needs the extra "delta".
    """
    from dml.io.tables import delta

    made = delta.Delta(path, version, storage_options)
    return _plugged(made, atom_rows=atom_rows)


@door
def read_iceberg(
    table: Any,
    snapshot: int | None = None,
    *,
    catalog: str = "default",
    atom_rows: int | None = None,
) -> Dataset:
    """Read an Iceberg table at ``snapshot``, or at the latest snapshot at the time of the call.

    ``table`` is a pyiceberg Table, or its name in the ``catalog`` that pyiceberg is configured
    with. Files are read in order of their paths, columns as the snapshot has them, without deleted
    rows. Raise SourceError for a table or snapshot that does not exist. This needs the extra
    "iceberg".
    """
    from dml.io.tables import iceberg

    made = iceberg.read_iceberg(table, snapshot, catalog)
    return _plugged(made, atom_rows=atom_rows)


@door
def read_lance(
    path: str | os.PathLike[str],
    version: int | str | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    atom_rows: int | None = None,
) -> Dataset:
    """Read a Lance dataset at ``version`` (or a tag), or at the latest at the time of the call.

    Rows have random access, so ``shuffle()`` reads them in shuffled order. Raise SourceError if
    ``path`` is not a dataset. This needs the extra "lance".
    """
    from dml.io.tables import lance

    made = lance.Lance(path, version, storage_options)
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
    """Read the rows that a database returns for ``query``, through any driver of Python's DB-API.

    ``connect`` opens a connection for every pass. One thread at a time uses it, but not always the
    same one: sqlite3 needs ``check_same_thread=False``. Passes may differ if the query has no ORDER
    BY or the data changes. ``parameters`` are a list, or a dict where the driver has named
    parameters. Column names are those of the result; types are inferred as in ``from_generator``.
    The fingerprint of the rows is valid in this process only, unless ``fingerprint`` is given.
    """
    from dml.io.tables import sql

    options: dict[str, Any] = {
        "nonce": uuid.uuid4().bytes,
        "fingerprint": fingerprint,
        "atom_rows": atom_rows,
    }
    return _plugged(sql.read_sql(query, connect, schema, parameters, **options))


@door
def read_zarr(
    path: str | os.PathLike[str],
    arrays: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
) -> Dataset:
    """Read Zarr arrays along their first axis; the values of arrays with more axes are tensors.

    The columns of a group are its arrays (those in ``arrays``); a single array is the column
    "item". Atoms are chunks. Raise SourceError for unequal lengths, and unsupported dtypes. The
    fingerprint is that of the content, and the arrays must not be written to. This needs the extra
    "zarr".
    """
    from dml.io.tables import zarr

    return _plugged(zarr.Zarr(path, arrays), atom_rows=atom_rows)


@door
def read_datasource(
    source: DataSource | str,
    *,
    fingerprint: str | None = None,
    atom_rows: int | None = None,
    **options: Any,
) -> Dataset:
    """Read a ``dml.DataSource``, or one that an installed package registers by name.

    A name is that of an entry point of the group "dml.sources": a function, called with
    ``options``, that returns a DataSource. ``fingerprint`` replaces the source's own identity.
    Raise PlanError if a name is unknown or the source's methods return invalid values.
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
    from dml.io.user import user_source

    nonce = uuid.uuid4().bytes
    return Dataset(user_source.read_datasource(source, nonce, fingerprint, atom_rows))


@door
def range(
    start: int, stop: int | None = None, step: int = 1, *, atom_rows: int = ATOM_ROWS
) -> Dataset:
    """Return the integers of Python's ``range(start, stop, step)`` as rows, column "id" (int64)."""
    from dml.io.memory import range as range_module

    first, last = (0, start) if stop is None else (start, stop)
    return Dataset(range_module.Range(first, last, step, atom_rows))
