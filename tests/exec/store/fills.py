"""This file fills parts, for tests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dml.exec.store.parts import Filling, PartStore, Rows, Source

FP, OTHER = "ab" * 16, "cd" * 16


def batch(start: int, n: int = 100) -> pa.RecordBatch:
    return pa.record_batch(
        {"x": pa.array(range(start, start + n), "i8"), "s": pa.array(["word"] * n, "str")}
    )


def filling(store: PartStore, fingerprint: str = FP, part: int = 0) -> Filling:
    found = store.fill(fingerprint, part)
    assert isinstance(found, Filling)
    return found


def made(
    store: PartStore, batches: list[pa.RecordBatch], part: int = 0, about: Any = None
) -> Source:
    found = filling(store, FP, part)
    for each in batches:
        found.add(each)
    return found.commit(about)


def same(got: Rows | None, batches: list[pa.RecordBatch]) -> bool:
    """Whether rows are those batches, one by one."""
    return got is not None and [
        (each.num_rows, each.schema.equals(other.schema, check_metadata=True), each.equals(other))
        for each, other in zip(got.batches, batches, strict=True)
    ] == [(each.num_rows, True, True) for each in batches]
