"""Test ``drop_duplicates``: the first row of each key remains, in order."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import PlanError, SchemaError
from tests.expr.checks import TINY, holds, numbers, resumes, table

NAN = float("nan")


@pytest.mark.law
def test_the_first_of_each_stays_where_it_was() -> None:
    ds = numbers(30).with_columns(k=col("x") * 7 % 4)
    assert [row["x"] for row in ds.drop_duplicates("k")] == [0, 1, 2, 3]
    assert [row["x"] for row in ds.skip(5).distinct(["k"])] == [5, 6, 7, 8]
    assert holds(ds.drop_duplicates("k")) == 4
    assert holds(ds.drop_duplicates()) == 30
    assert resumes(ds.shuffle(seed=1).drop_duplicates("k").batch(3), TINY) == 2


@pytest.mark.law
def test_nulls_and_nans_are_values() -> None:
    keys = [None, 0.0, NAN, -0.0, None, NAN, 1.0]
    ds = table({"k": pa.array(keys, pa.float64()), "at": pa.array(range(7))})
    assert holds(ds.drop_duplicates("k")) == 4
    assert [row["at"] for row in ds.drop_duplicates("k")] == [0, 1, 2, 6]


@pytest.mark.law
def test_in_little_memory() -> None:
    ds = dml.range(300_000).with_options(executor="sync", memory_limit="4MiB", telemetry_dir="off")
    found = ds.with_columns(k=col("id") * 7919 % 100_003).drop_duplicates("k").to_arrow()
    assert found["id"].to_pylist() == list(range(100_003))


def test_refused() -> None:
    with pytest.raises(PlanError, match="drop_duplicates after batch"):
        numbers().batch(2).drop_duplicates()
    with pytest.raises(PlanError, match="drop_duplicates of an endless stream"):
        numbers().repeat().drop_duplicates()
    with pytest.raises(SchemaError, match="needs known columns"):
        numbers().map(lambda row: {"y": repr(row["x"])}).drop_duplicates()
    with pytest.raises(SchemaError, match="drop_duplicates cannot order by 'l'"):
        table({"l": pa.array([[1]])}).drop_duplicates()
