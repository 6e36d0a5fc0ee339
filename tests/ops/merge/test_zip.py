"""Test ``zip``: columns of several inputs, row by row, for any block sizes."""

from __future__ import annotations

from typing import Any

import pytest

import dml
from dml import col
from dml.errors import PlanError, SchemaError, UDFError
from tests.expr.checks import QUIET, agrees, holds, numbers


def named(ds: dml.Dataset, name: str) -> dml.Dataset:
    return ds.rename(x=name)


def rows(ds: dml.Dataset) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in ds.with_options(**QUIET)]


def test_rows_stand_side_by_side_and_the_shortest_ends_it() -> None:
    ds = numbers(3).zip(named(numbers(9), "y").skip(4), named(numbers(2), "z"))
    assert rows(ds) == [(0, 4, 0), (1, 5, 1)]
    assert list(ds.schema) == ["x", "y", "z"]
    assert rows(numbers(3).zip([named(numbers(0), "y")])) == []


@pytest.mark.sample(2)
@pytest.mark.law
@pytest.mark.parametrize("n", [0, 1, 7, 10])
def test_every_way_of_running_and_resuming(n: int) -> None:
    ds, other = numbers(n), named(numbers(7), "y")
    holds(ds.zip(other))
    holds(other.zip(ds).shuffle(3, seed=1).batch(2))
    holds(ds.zip(other.filter(col("y") % 3 != 1), named(ds, "z").shuffle(4, seed=2)))
    holds(ds.zip(other.shuffle(seed=2)).repeat(2).batch(3))
    holds(ds.zip(other).with_columns(u=dml.random(seed=3)).filter(col("u") < 0.7))


def bad(at: int) -> Any:
    def fn(row: dict[str, Any]) -> dict[str, Any]:
        name = next(iter(row))
        return {name: row[name] + 0 // (at - row[name])}

    return fn


@pytest.mark.sample(20)
@pytest.mark.law
@pytest.mark.parametrize("left", [2, 5, 8, 99])
@pytest.mark.parametrize("right", [2, 5, 8, 99])
@pytest.mark.parametrize("length", [4, 5, 9])
def test_the_first_side_that_has_no_row_decides(left: int, right: int, length: int) -> None:
    one = numbers(9).map(bad(left), schema={"x": "int64"})
    two = named(numbers(9), "y").map(bad(right), schema={"y": "int64"})
    ds = one.zip(two, named(numbers(length), "z")).with_options(**QUIET)
    iterator = iter(ds)
    got: list[dict[str, Any]] = []
    error = ""
    try:
        got.extend(iterator)
    except UDFError as raised:
        error = raised.at
    n = min(left, right, length)
    assert [row["x"] for row in got] == list(range(min(n, 9)))
    wanted = "" if n == length and n not in (left, right) else "x" if left == n else "y"
    assert bool(error) == bool(wanted)
    agrees(ds)


def test_a_name_on_two_sides_is_refused() -> None:
    with pytest.raises(SchemaError, match="zip gives two columns the name 'x'"):
        numbers(3).zip(numbers(3))
    made = named(numbers(3), "y").map(lambda row: {"x": int(repr(row["y"]))}, fingerprint="f")
    with pytest.raises(SchemaError, match="two columns the name 'x'"):
        rows(numbers(3).zip(made))


def test_batches_are_refused() -> None:
    with pytest.raises(PlanError, match="zip of batches"):
        numbers(3).zip(named(numbers(3), "y").batch(2))


def test_an_endless_side_is_cut() -> None:
    ds = numbers(4).zip(named(numbers(3), "y").repeat())
    assert rows(ds) == [(0, 0), (1, 1), (2, 2), (3, 0)]
