"""This file reads collections of Dask: a partition is a unit, computed when it is read.

Nothing here imports dask: what is read has done that.
"""

from __future__ import annotations

import importlib
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import InternalError, SourceError
from dml.expr.schema import Schema, schema_of
from dml.expr.sources.frames import from_pandas
from dml.expr.sources.generated import batches, row_of, schema_of_rows
from dml.expr.sources.memory import from_numpy
from dml.plugins import DataSource, SourcePart

Scheduler = str | Callable[..., Any]
BAG_ROWS = 8192
UNKNOWN = "__UNKNOWN_CATEGORIES__"  # Dask's own word


class Cluster:
    """The client of a cluster that holds persisted values, or its address in another process."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @staticmethod
    def of(collection: Any) -> Cluster | None:
        """The one that holds values of the collection; None where no cluster does."""
        futures = _futures(collection)
        return Cluster(futures[0].client) if futures else None

    def __getstate__(self) -> dict[str, Any]:
        """Where the scheduler is: each process has a client of its own."""
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
            weakref.finalize(self, self.client.close)
        else:
            self.client = distributed.get_client(address)

    def taken_up(self, one: Any) -> Scheduler:
        """What computes ``one`` there, whose values have no client yet where they were sent to."""
        for future in _futures(one):
            if future.client is not self.client:
                future.bind_client(self.client)
        get: Scheduler = self.client.get
        return get


def _futures(collection: Any) -> list[Any]:
    """The values of a collection that lie on workers of a cluster."""
    distributed = sys.modules.get("distributed")
    return [] if distributed is None else list(distributed.futures_of(collection))


class Collection(DataSource):
    """What all collections are: partitions, each computed with all that it is made of."""

    def __init__(self, collection: Any, scheduler: Scheduler, schema: object) -> None:
        self.collection, self.scheduler = collection, scheduler
        self.cluster = Cluster.of(collection)
        self.name = type(collection).__name__
        self.columns = self.found() if schema is None else schema_of(schema)

    def found(self) -> Schema:
        """The schema, if the user does not say."""
        raise InternalError(f"{type(self).__name__} finds no schema")

    def computed(self, number: int) -> Any:
        """Partition ``number``; by the cluster that holds what it is made of, if one does."""
        one = self.one(number)
        scheduler = self.scheduler if self.cluster is None else self.cluster.taken_up(one)
        return one.compute(scheduler=scheduler)

    def one(self, number: int) -> Any:
        """Partition ``number``, to be computed."""
        return self.collection.partitions[number]

    def schema(self) -> Schema:
        """As it was declared, or as the collection says."""
        return self.columns

    def parts(self) -> Sequence[SourcePart]:
        """The partitions, whose rows nobody has counted."""
        count = self.collection.npartitions
        return [SourcePart(f"partition {i}", payload=i) for i in range(count)]

    def identity(self) -> object:
        """Dask's own names of the partitions, which stand for what they are made of."""
        return str(self.collection.__dask_keys__())


class Frame(Collection):
    """A data frame, by the rules of ``from_pandas``."""

    def found(self) -> Schema:
        """Types of the empty frame that Dask keeps; of the first partition where that has none."""
        empty = self.collection._meta  # noqa: SLF001 - Dask's own word
        schema = from_pandas(empty).schema
        untold = any(map(pa.types.is_null, schema.values())) or _has_unknown_categories(empty)
        if untold and self.collection.npartitions:
            return from_pandas(self.computed(0)).schema
        return schema

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """A partition, in pieces that are views of it."""
        source = from_pandas(self.computed(part.payload))
        for number in range(source.unit_count):
            for block in source.read(source.unit(number), columns):
                yield block.to_arrow()


def _has_unknown_categories(empty: Any) -> bool:
    """True where one category stands for all that Dask has not seen."""
    levels = [empty.index.get_level_values(i) for i in range(empty.index.nlevels)]
    columns = [empty.iloc[:, i].array for i in range(empty.shape[1])]
    return any(UNKNOWN in getattr(each, "categories", ()) for each in (*levels, *columns))


class Array(Collection):
    """An array, by the rules of ``from_numpy``: rows along the first axis."""

    def __init__(self, collection: Any, scheduler: Scheduler, schema: object) -> None:
        whole = dict.fromkeys(range(1, collection.ndim), -1)
        super().__init__(collection.rechunk(whole) if whole else collection, scheduler, schema)

    def found(self) -> Schema:
        """The type of the elements and the shape of a row."""
        if self.collection.dtype.hasobject and self.collection.npartitions:
            return from_numpy(self.computed(0)).schema
        shape = self.collection.shape[1:]
        return from_numpy(np.zeros((0, *shape), self.collection.dtype)).schema

    def parts(self) -> Sequence[SourcePart]:
        """The chunks of the first axis, of known size unless Dask does not know it."""
        width = self.collection.dtype.itemsize * math.prod(self.collection.shape[1:])
        return [
            SourcePart(f"chunk {i}", payload=i)
            if math.isnan(rows)
            else SourcePart(f"chunk {i}", int(rows), int(rows * width), i)
            for i, rows in enumerate(self.collection.chunks[0])
        ]

    def one(self, number: int) -> Any:
        """A chunk, to be computed."""
        return self.collection.blocks[number]

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """A chunk."""
        source = from_numpy(np.ascontiguousarray(self.computed(part.payload)))
        for number in range(source.unit_count):
            for block in source.read(source.unit(number), columns):
                yield block.to_arrow()


class Bag(Collection):
    """A bag of dicts, or of values (column "item")."""

    def found(self) -> Schema:
        """Names and types of the first rows of the first partition that has some."""
        rows = (row for i in range(self.collection.npartitions) for row in self.computed(i))
        return schema_of_rows(map(row_of, rows), self.name)

    def one(self, number: int) -> Any:
        """A partition, to be computed."""
        return self.collection.to_delayed()[number]

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """A partition, some rows at a time."""
        rows = map(row_of, iter(self.computed(part.payload)))
        yield from batches(rows, self.columns, columns, BAG_ROWS)


def from_dask(collection: Any, schema: object, scheduler: Scheduler) -> DataSource:
    """The source over a collection; SourceError for what is none."""
    # a delayed value says that it has any attribute that it is asked for
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
