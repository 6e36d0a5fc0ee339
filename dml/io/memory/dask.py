"""Dask collections are read by partition: each partition is a unit, computed when read.

Dask is not imported here: the caller of ``from_dask`` has already imported it.
"""

from __future__ import annotations

import functools
import importlib
import math
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.schema import Schema, schema_of
from dml.errors import InternalError, SourceError
from dml.io.memory.frames import from_pandas
from dml.io.memory.memory import Memory, from_numpy
from dml.io.user.generator import batches, row_of, schema_of_rows
from dml.plugins import DataSource, SourcePart

Scheduler = str | Callable[..., Any]
BAG_ROWS = 8192
UNKNOWN = "__UNKNOWN_CATEGORIES__"  # Dask's placeholder


class ClusterClient:
    """The client of a cluster that stores persisted values; pickled as the scheduler's address."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @staticmethod
    def of(collection: Any) -> ClusterClient | None:
        """Return the client of the cluster that stores the collection, None if there is none."""
        futures = _futures(collection)
        return ClusterClient(futures[0].client) if futures else None

    def __getstate__(self) -> dict[str, Any]:
        """Return the address of the scheduler: each process creates its own client."""
        address = self.client.scheduler.address
        if address.startswith("inproc"):
            raise SourceError(
                f"the cluster at {address} cannot be reached from another process",
                why="persisted partitions lie on its workers, which are threads here",
                try_='LocalCluster(processes=True), or executor="threads"',
            )
        return {"there": (address, self.client.security)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        address, security = state["there"]
        distributed = importlib.import_module("distributed")
        try:
            distributed.get_worker()
        except ValueError:  # this process is no worker of Dask
            self.client = distributed.Client(address, security=security, set_as_default=False)
            weakref.finalize(self, _closing().put, self.client).atexit = False
        else:
            self.client = distributed.get_client(address)

    def taken_up(self, one: Any) -> Scheduler:
        """Bind the futures in the lazy partition ``one`` to this client; return a scheduler."""
        for future in _futures(one):
            if future.client is not self.client:
                future.bind_client(self.client)
        get: Scheduler = self.client.get
        return get


@functools.cache
def _closing() -> queue.SimpleQueue[Any]:
    """Return a queue whose clients a thread of this process closes.

    No finalizer may close them: garbage is collected anywhere, also while the same thread starts
    another client, and holds the lock that ``close`` waits for.
    """
    unused: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_close_each, args=(unused,), name="dml-dask", daemon=True).start()
    return unused


def _close_each(unused: queue.SimpleQueue[Any]) -> None:
    while True:
        with suppress(Exception):  # of a cluster that is gone
            unused.get().close()


def _futures(collection: Any) -> list[Any]:
    """Return the futures of a collection that a cluster stores; [] for other collections."""
    distributed = sys.modules.get("distributed")
    return [] if distributed is None else list(distributed.futures_of(collection))


class Collection(DataSource):
    """Base class of sources over collections: parts are partitions, each computed separately."""

    def __init__(self, collection: Any, scheduler: Scheduler, schema: object) -> None:
        self.collection, self.scheduler = collection, scheduler
        self.cluster = ClusterClient.of(collection)
        self.name = type(collection).__name__
        self.columns = self.infer_schema() if schema is None else schema_of(schema)

    def infer_schema(self) -> Schema:
        """Infer the schema, of a collection for which the user declares none."""
        raise InternalError(f"{type(self).__name__} finds no schema")

    def computed(self, number: int) -> Any:
        """Compute partition ``number``; if a cluster stores its inputs, compute it there."""
        one = self.one(number)
        scheduler = self.scheduler if self.cluster is None else self.cluster.taken_up(one)
        return one.compute(scheduler=scheduler)

    def one(self, number: int) -> Any:
        """Return the lazy partition ``number``."""
        return self.collection.partitions[number]

    def schema(self) -> Schema:
        """Return the declared schema, or that of the collection."""
        return self.columns

    def parts(self) -> Sequence[SourcePart]:
        """Return the partitions, whose row counts are unknown."""
        count = self.collection.npartitions
        return [SourcePart(f"partition {i}", payload=i) for i in range(count)]

    def identity(self) -> object:
        """Return Dask's keys of the partitions, which identify how they are computed."""
        return str(self.collection.__dask_keys__())


class Frame(Collection):
    """A Dask data frame, converted by the rules of ``from_pandas``."""

    def infer_schema(self) -> Schema:
        """Infer types from Dask's empty frame, or from the first partition if types are missing."""
        empty = self.collection._meta  # noqa: SLF001 - Dask's own attribute name
        schema = from_pandas(empty).schema
        untold = any(map(pa.types.is_null, schema.values())) or _has_unknown_categories(empty)
        if untold and self.collection.npartitions:
            return from_pandas(self.computed(0)).schema
        return schema

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in record batches that are views of its memory."""
        yield from _batches(from_pandas(self.computed(part.payload)), columns)


def _batches(source: Memory, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    for number in range(source.unit_count):
        for block in source.read(source.unit(number), columns):
            yield block.to_arrow()


def _has_unknown_categories(empty: Any) -> bool:
    """Return True if a column has a placeholder for categories that Dask does not know."""
    levels = [empty.index.get_level_values(i) for i in range(empty.index.nlevels)]
    columns = [empty.iloc[:, i].array for i in range(empty.shape[1])]
    return any(UNKNOWN in getattr(each, "categories", ()) for each in (*levels, *columns))


class Array(Collection):
    """A Dask array, converted by the rules of ``from_numpy``: rows along the first axis."""

    def __init__(self, collection: Any, scheduler: Scheduler, schema: object) -> None:
        whole = dict.fromkeys(range(1, collection.ndim), -1)
        super().__init__(collection.rechunk(whole) if whole else collection, scheduler, schema)

    def infer_schema(self) -> Schema:
        """Infer the element type and the shape of a row."""
        if self.collection.dtype.hasobject and self.collection.npartitions:
            return from_numpy(self.computed(0)).schema
        shape = self.collection.shape[1:]
        return from_numpy(np.zeros((0, *shape), self.collection.dtype)).schema

    def parts(self) -> Sequence[SourcePart]:
        """Return the chunks of the first axis, with row counts unless Dask does not know them."""
        width = self.collection.dtype.itemsize * math.prod(self.collection.shape[1:])
        return [
            SourcePart(f"chunk {i}", payload=i)
            if math.isnan(rows)
            else SourcePart(f"chunk {i}", int(rows), int(rows * width), i)
            for i, rows in enumerate(self.collection.chunks[0])
        ]

    def one(self, number: int) -> Any:
        """Return the lazy chunk ``number``."""
        return self.collection.blocks[number]

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk."""
        yield from _batches(from_numpy(np.ascontiguousarray(self.computed(part.payload))), columns)


class Bag(Collection):
    """A Dask bag of dicts, or of values (column "item")."""

    def infer_schema(self) -> Schema:
        """Infer names and types from the first rows of the first partition that has any."""
        rows = (row for i in range(self.collection.npartitions) for row in self.computed(i))
        return schema_of_rows(map(row_of, rows), self.name)

    def one(self, number: int) -> Any:
        """Return the lazy partition ``number``."""
        return self.collection.to_delayed()[number]

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield a partition in batches of rows."""
        rows = map(row_of, iter(self.computed(part.payload)))
        yield from batches(rows, self.columns, columns, BAG_ROWS)


def from_dask(collection: Any, schema: object, scheduler: Scheduler) -> DataSource:
    """Build the source over a collection; raise SourceError for other objects."""
    # a delayed value seems to have any attribute, so types are checked
    if isinstance(getattr(collection, "npartitions", None), int):
        if hasattr(collection, "chunks") and collection.ndim:
            return Array(collection, scheduler, schema)
        if hasattr(collection, "partitions") and getattr(collection, "ndim", 0) == 2:
            return Frame(collection, scheduler, schema)
        if hasattr(collection, "fold"):
            return Bag(collection, scheduler, schema)
    raise SourceError(
        f"from_dask needs a data frame, array or bag, got a {type(collection).__name__}",
        why="its partitions are read one by one",
        try_="from_dask(series.to_frame()); from_generator(f) for a delayed function",
    )
