"""Test ``take_while``: the rows before the first one that does not pass."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dml
from dml import Dataset, col
from dml.data.row_slicing import SETTLING_ROWS
from dml.errors import CastError, PlanError, SchemaError, UDFError
from tests.expr.checks import agrees, holds, numbers, table


def values(ds: Dataset) -> list[int]:
    return [row["x"] for row in ds]


@pytest.mark.law
@pytest.mark.parametrize("n", [0, 1, 3, 5, 10, 99])
def test_expressions_and_functions(n: int) -> None:
    assert holds(numbers().take_while(col("x") < n)) == min(n, 10)
    assert holds(numbers().take_while(lambda row: row["x"] < n)) == min(n, 10)


@pytest.mark.law
def test_a_row_that_would_pass_later_does_not_come() -> None:
    ds = numbers().take_while((col("x") < 4) | (col("x") > 6))
    assert values(ds) == [0, 1, 2, 3]
    assert holds(ds.batch(3)) == 2


@pytest.mark.law
def test_null_does_not_pass() -> None:
    ds = table({"b": pa.array([True, True, None, True])})
    assert holds(ds.take_while(col("b"))) == 2
    assert holds(ds.take_while(lambda row: row["b"])) == 2


@pytest.mark.law
def test_over_what_sees_the_stream() -> None:
    assert holds(numbers(20).shuffle(4).take_while(col("x") < 9).skip(2).repeat(2)) > 0
    assert holds(numbers().repeat().take_while(dml.random(seed=2) < 0.9).take(50)) > 0
    assert holds(numbers(0).take_while(col("x") < 4)) == 0
    assert holds(numbers().batch(4).unbatch().take_while(lambda row: row["x"] < 6)) == 6


def test_nothing_behind_is_called_and_no_further_atom_is_read() -> None:
    tested: list[int] = []
    made: list[int] = []

    def noted(row: dict[str, Any]) -> dict[str, Any]:
        made.append(row["x"])
        return row

    def small(row: dict[str, Any]) -> bool:
        tested.append(row["x"])
        return bool(row["x"] < 4)

    ds = numbers(300).map(noted).take_while(small)
    assert values(ds) == [0, 1, 2, 3]
    assert tested == [0, 1, 2, 3, 4]
    assert max(made) < SETTLING_ROWS  # by which the types of what is made settle


@pytest.mark.law
def test_errors_stand_at_their_place() -> None:
    cast = (col("x") * 30).cast("int8") >= 0
    run = iter(numbers().take_while(cast))
    assert [next(run)["x"] for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(CastError, match="150"):
        next(run)
    agrees(numbers().take_while(cast))
    agrees(numbers().filter(col("x") != 5).take_while(lambda row: 1 // (row["x"] - 7) < 1))
    with pytest.raises(UDFError, match="ZeroDivisionError"):
        list(numbers().take_while(lambda row: 1 // (row["x"] - 7) < 1))
    with pytest.raises(UDFError, match="no truth"):
        list(numbers().take_while(Unclear))


def test_an_error_behind_the_end_does_not_come() -> None:
    ds = numbers().take_while((col("x") < 5).cast("int8") * (col("x") * 30).cast("int8") < 120)
    assert values(ds) == [0, 1, 2, 3]
    agrees(ds)


class Unclear:
    """Has no truth."""

    def __init__(self, row: object) -> None:
        self.row = row

    def __bool__(self) -> bool:
        raise LookupError("no truth")


@pytest.mark.law
def test_an_endless_repeat_keeps_passes_that_some_orders_leave_empty() -> None:
    ds = numbers(9).shuffle().take_while(col("x") != 4).repeat().filter(col("x") == 2).take(4)
    agrees(ds.with_options(optimize=True))


def test_columns_that_only_the_predicate_reads_are_read() -> None:
    ds = table({"x": pa.array([1, 2, 3, 4]), "y": pa.array([5, 6, 1, 9])})
    assert values(ds.take_while(col("y") > 4).select("x")) == [1, 2]


def test_refuses_what_says_nothing_about_a_row() -> None:
    for given in (True, 3, "x > 3"):
        with pytest.raises(SchemaError, match="expression or a function"):
            numbers().take_while(given)
    with pytest.raises(SchemaError, match="boolean"):
        numbers().take_while(col("x"))
    later = numbers().random_map(lambda row, _: row).take_while(col("x"))
    with pytest.raises(SchemaError, match="boolean"):
        list(later)
    with pytest.raises(PlanError, match="after batch"):
        numbers().batch(2).take_while(col("x") > 1)
