"""Test ``filter`` by an expression."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dml
from dml import col, lit
from dml.errors import CastError, PlanError, SchemaError
from tests.expr.checks import agrees, holds, numbers, table


def test_true_only() -> None:
    ds = table({"b": pa.array([True, False, None, True])}).filter(col("b"))
    assert holds(ds) == 2


@pytest.mark.law
@pytest.mark.parametrize(("predicate", "kept"), [(lit(True), 10), (lit(False), 0)])
def test_literals(predicate: dml.Column, kept: int) -> None:
    assert holds(numbers().filter(predicate)) == kept
    assert holds(numbers(0).filter(predicate)) == 0


@pytest.mark.law
def test_draws() -> None:
    ds = numbers(40).filter(dml.random(seed=1) < 0.5).filter(dml.random(seed=1) < 0.5)
    assert 0 < holds(ds) < 20


def test_a_part_that_may_fail_sees_only_rows_that_passed() -> None:
    ds = table({"x": pa.array([1, 1000, 3])}).filter(col("x") < 500).filter(
        col("x").cast("int8") > 1
    )  # fmt: skip
    assert [row["x"] for row in ds] == [3]
    agrees(ds)


def test_a_failing_part_raises_at_its_place() -> None:
    ds = table({"x": pa.array([1, 2, 1000, 3])}).filter(col("x").cast("int8") > 1)
    run = iter(ds)
    assert next(run)["x"] == 2
    with pytest.raises(CastError, match="1000"):
        next(run)


def test_a_column_that_is_null_throughout_keeps_no_row() -> None:
    ds = numbers(5).random_map(lambda *_: {"f": None}).filter(col("f"))
    assert list(ds) == []


def test_refuses_what_is_no_boolean() -> None:
    with pytest.raises(SchemaError, match="filter needs a boolean, x is int64"):
        numbers().filter(col("x"))
    later = numbers().random_map(lambda *_: {"f": 1}).filter(col("f"))
    with pytest.raises(SchemaError, match="filter needs a boolean"):
        list(later)


def test_several_expressions_are_all_true() -> None:
    ds = dml.range(10)
    both = ds.filter(col("id") > 2, col("id") < 7, col("id") != 5)
    assert [row["id"] for row in both.iter_rows()] == [3, 4, 6]
    one = ds.filter((col("id") > 2) & (col("id") < 7) & (col("id") != 5))
    assert both.fingerprint() == one.fingerprint()
    with pytest.raises(PlanError, match="one function, or expressions"):
        ds.filter(lambda row: row["id"] > 2, col("id") < 7)
