"""Test that a task between two partitions stores large rows once, not also as dicts."""

from __future__ import annotations

import tracemalloc
from types import GeneratorType
from typing import Any

import pyarrow as pa
import pytest

import dml
from dml.data.block import Block
from dml.data.row_slicing import SETTLING_BYTES, by_weight
from dml.data.schema import UNKNOWN
from dml.kernels.rows.ids import RowIds

MB = 1_000_000


def large(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a megabyte."""
    return {"k": row["id"], "b": b"\1" * MB}


def held_bytes() -> int:
    """What is left of all that ``large`` has made, as Python's values."""
    mine = tracemalloc.Filter(inclusive=True, filename_pattern=__file__)
    found = tracemalloc.take_snapshot().filter_traces([mine]).statistics("lineno")
    return sum(each.size for each in found if each.size > MB // 2)


@pytest.mark.law
def test_rows_by_which_types_settled_are_not_kept_as_dicts() -> None:
    ds = dml.range(30).map(large).with_options(executor="sync", memory_limit="64MiB")
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        it = iter(ds.batch(1))
        next(it)
        most = held_bytes() + pa.total_allocated_bytes() - before
        del it
    finally:
        tracemalloc.stop()
    assert 5 * MB >= SETTLING_BYTES
    assert most <= 6 * MB, "five rows settle the types, and each of them is there once"


@pytest.mark.law
def test_who_waits_behind_a_block_holds_none_of_its_parts() -> None:
    whole = dml.range(8).map(large, schema={"k": "int64", "b": "binary"}).to_arrow()
    block = Block.from_arrow(whole.combine_chunks().to_batches()[0], RowIds.run(1, 0, 8))
    made = by_weight(block.n, UNKNOWN, lambda start, stop: iter((block.slice(start, stop),)))
    assert isinstance(made, GeneratorType)
    assert next(made).n == 3
    frame = made.gi_frame
    assert frame is not None
    assert not frame.f_locals["made"].blocks
