"""Test ``shard``: every n-th element."""

from __future__ import annotations

from itertools import chain

import pytest

from dml import col
from dml.errors import PlanError
from tests.expr.checks import agrees, holds, numbers, resumes


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 10, 25])
def test_the_shards_have_each_row_once(n: int) -> None:
    ds = numbers()
    parts = [[row["x"] for row in ds.shard(n, i)] for i in range(n)]
    assert parts == [list(range(i, 10, n)) for i in range(n)]
    assert sorted(chain(*parts)) == list(range(10))


@pytest.mark.law
@pytest.mark.parametrize(("n", "index", "kept"), [(3, 0, 4), (3, 2, 3), (4, 3, 2), (11, 10, 0)])
def test_rows(n: int, index: int, kept: int) -> None:
    assert holds(numbers().shard(n, index)) == kept


@pytest.mark.law
def test_batches() -> None:
    ds = numbers().batch(3).shard(2, 1)
    assert [batch["x"].tolist() for batch in ds] == [[3, 4, 5], [9]]
    assert holds(ds) == 2


@pytest.mark.law
def test_it_counts_what_reaches_it() -> None:
    ds = numbers(20).filter(col("x") % 2 == 1).shuffle(4).shard(3, 1)
    assert holds(ds) == 3
    assert holds(ds.shard(2, 0).batch(1)) == 2
    assert holds(numbers().repeat().shard(4, 3).take(7)) == 7
    assert holds(numbers(0).shard(2, 1)) == 0


@pytest.mark.law
def test_positions_within_atoms_of_any_size() -> None:
    assert resumes(numbers(40).shard(7, 5).shuffle(3)) == 5
    agrees(numbers(40).shard(1, 0).shard(2, 1).skip(1))


def test_more_shards_than_any_machine_word() -> None:
    assert resumes(numbers().shard(1 << 70, 4)) == 1


def test_types_settle_by_what_reaches_the_function() -> None:
    ds = numbers(12).shard(2, 1).map(lambda row: {"y": row["x"] if row["x"] < 4 else str(row["x"])})
    agrees(ds)


@pytest.mark.parametrize(("n", "index"), [(0, 0), (2, 2), (2, -1), (2.0, 1), (True, 0)])
def test_refuses_shards_that_there_are_not(n: int, index: int) -> None:
    with pytest.raises(PlanError, match="shard"):
        numbers().shard(n, index)
