"""Test batches that are delivered together: they equal batches delivered one by one."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.exec.delivery.prefetch import BatchMaker
from dml.udfs.calling.batch_arrays import RUN_BYTES, SHARED_BYTES
from tests.expr.checks import QUIET

Told = list[tuple[str, int, int, str]]


def told(ds: Dataset, **options: Any) -> Told:
    """Every batch, with what the run says of itself after it."""
    out, it = [], iter(ds.with_options(**{**QUIET, **options}).epoch(0))
    for batch in it:
        received = it.report.received
        state = json.dumps(it.state_dict(), sort_keys=True)
        out.append((repr(batch), received.rows, received.batches, state))
    return out


@pytest.mark.law
@given(
    n=st.integers(0, 120),
    atom_rows=st.integers(1, 50),
    size=st.integers(1, 30),
    rest=st.integers(1, 4),
    drop_last=st.booleans(),
    target=st.sampled_from([1, 300, 1 << 20]),
)
def test_batches_of_a_block_are_as_those_made_one_by_one(  # noqa: PLR0917 (drawn)
    n: int,
    atom_rows: int,
    size: int,
    rest: int,
    drop_last: bool,
    target: int,
) -> None:
    source = dml.range(n, atom_rows=atom_rows)
    ds = source.with_columns(f=col("id") / 2).filter(col("id") % rest == 0)
    ds = ds.batch(size, drop_last=drop_last)
    alone = told(ds, target_partition_bytes=target, prefetch=1)
    together = told(ds, target_partition_bytes=target, prefetch=0)
    assert [(b, state) for b, _, _, state in together] == [(b, state) for b, _, _, state in alone]
    for number, (_, rows, batches, _) in enumerate(together, 1):
        assert batches == number
        assert rows == (number * size if batches < len(together) or drop_last else rows)


def numbers(rows: int, width: int = 1) -> Dataset:
    return dml.range(rows, atom_rows=rows).with_columns(
        x=dml.stack([col("id") + place for place in range(width)]) if width > 1 else col("id") + 1
    )


def largest(ds: Dataset) -> int:
    """Most batches that came in one chunk."""
    it = iter(ds.with_options(**{**QUIET, "prefetch": 0}))
    next(it)
    maker = it._maker
    assert isinstance(maker, BatchMaker)
    most = 1
    while (chunk := maker.make()) is not None:
        most = max(most, len(chunk.elements))
    it.close()
    return most


def test_what_comes_together() -> None:
    atom = RUN_BYTES // 8
    assert largest(numbers(atom).select("x").batch(atom // 8)) == 7
    assert largest(numbers(atom * 2).select("x").batch(atom // 8)) == 1  # too much to copy
    assert largest(numbers(99).select("x").batch(10)) == 8
    nulls = pa.array([None, *range(98)])
    assert largest(dml.from_arrow(pa.table({"x": nulls})).filter(col("x") > 1).batch(9)) == 1


def test_who_keeps_a_batch_keeps_little_of_others() -> None:
    rows = RUN_BYTES // 8
    for batch in (
        numbers(rows).select("x").batch(rows // 16).with_options(**{**QUIET, "prefetch": 0})
    ):
        kept = batch["x"]
        while isinstance(kept.base, np.ndarray):
            kept = kept.base
        assert kept.nbytes <= SHARED_BYTES


def test_batches_that_came_together_share_nothing() -> None:
    batches = list(numbers(1000, width=3).batch(7).with_options(**QUIET))
    arrays = [array for batch in batches for array in batch.values()]
    assert all(array.flags.writeable for array in arrays)
    for a, b in combinations(arrays[:40], 2):
        assert not np.shares_memory(a, b)


@pytest.mark.parametrize("taken", [1, 4, 5, 6, 20])
def test_goes_on_in_the_middle_of_a_run(taken: int) -> None:
    ds = numbers(200).batch(7).with_options(**QUIET).epoch(0)
    wanted = [repr(batch) for batch in ds.epoch(0)]
    it = iter(ds)
    for _ in range(taken):
        next(it)
    again = iter(ds)
    again.load_state_dict(it.state_dict())
    assert [repr(batch) for batch in again] == wanted[taken:]
