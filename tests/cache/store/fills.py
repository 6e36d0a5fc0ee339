"""Helpers for tests that write parts to a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from dml.cache.parts.parts import PartFilling, PartRows, PartSource, PartStore
from dml.cache.store import layout

FP, OTHER = "ab" * 16, "cd" * 16
FOUND: Final = "FOUND"
BATCH_ROWS = 150


class Got(NamedTuple):
    """Rows of a part, and where they came from."""

    table: pa.Table
    source: PartSource | str
    told: Callable[[], tuple[int, int]]

    @property
    def version(self) -> tuple[int, int]:
        """Incarnation and version of the part."""
        return self.told()


def get(store: PartStore, fingerprint: str, part: int, compute: Callable[[], pa.Table]) -> Got:
    """The rows of a part as a run asks for them: those that are there, else made and put there."""
    found = store.fill(fingerprint, part)
    if isinstance(found, PartRows):
        return Got(table_of(found), FOUND, lambda: version_of(store, fingerprint, part))
    if found is None:
        return Got(compute(), PartSource.UNKEPT, lambda: (0, 0))
    try:
        table = compute()
        for each in cut(table):
            found.add(each)
        source = found.commit()
    finally:
        found.drop()
    if source is PartSource.ADOPTED:
        theirs = store.part(fingerprint, part)
        table = table if theirs is None else table_of(theirs)
    return Got(table, source, lambda: found.version)


def find(store: PartStore, fingerprint: str, part: int) -> pa.Table | None:
    """The rows of a part, also if it was made anew; nothing is made."""
    store.records(fingerprint)
    found = store.part(fingerprint, part)
    return None if found is None else table_of(found)


def cut(table: pa.Table) -> list[pa.RecordBatch]:
    """A table as batches: at least one, with one dictionary for each column."""
    table = table.unify_dictionaries()
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    return table.to_batches(max_chunksize=BATCH_ROWS) or [empty]


def table_of(rows: PartRows) -> pa.Table:
    return pa.Table.from_batches(rows.batches, schema=None if rows.batches else pa.schema([]))


def version_of(store: PartStore, fingerprint: str, part: int) -> tuple[int, int]:
    """Incarnation and version of a part, by the names that are there."""
    folder = layout.entry(fingerprint)
    view = layout.viewed(folder, store.place.names(folder))
    return view.incarnation, view.version(part)


def batch(start: int, n: int = 100) -> pa.RecordBatch:
    return pa.record_batch(
        {"x": pa.array(range(start, start + n), "i8"), "s": pa.array(["word"] * n, "str")}
    )


def filling(store: PartStore, fingerprint: str = FP, part: int = 0) -> PartFilling:
    found = store.fill(fingerprint, part)
    assert isinstance(found, PartFilling)
    return found


def made(
    store: PartStore, batches: list[pa.RecordBatch], part: int = 0, about: Any = None
) -> PartSource:
    found = filling(store, FP, part)
    for each in batches:
        found.add(each)
    return found.commit(about)


def same(got: PartRows | None, batches: list[pa.RecordBatch]) -> bool:
    """Whether rows are those batches, one by one."""
    return got is not None and [
        (each.num_rows, each.schema.equals(other.schema, check_metadata=True), each.equals(other))
        for each, other in zip(got.batches, batches, strict=True)
    ] == [(each.num_rows, True, True) for each in batches]
