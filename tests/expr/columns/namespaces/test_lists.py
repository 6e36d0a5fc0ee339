"""Test functions of lists: nulls, bounds, the order of sums, and their errors."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import CastError, PlanError, SchemaError
from tests.expr.checks import agrees, computed, table

LISTS = {
    "i": pa.array([[3, 1, None], None, [], [7]], pa.list_(pa.int32())),
    "f": pa.array([[0.0, -0.0], [math.nan, 1], [None], None]),
    "s": pa.array([["a", None, "b"], [], None, ["é"]]),
    "n": pa.array([1, None, 2, 7], pa.int32()),
    "w": pa.array([[1, 2], None, [3, None], [5, 6]], pa.list_(pa.int64(), 2)),
}
N, F, T, W = col("i").list, col("f").list, col("s").list, col("w").list


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (N.len(), [3, None, 0, 1]),
        (N.first(), [3, None, None, 7]),
        (N.last(), [None, None, None, 7]),
        (N.get(1, null_on_oob=True), [1, None, None, None]),
        (N.get(-3, null_on_oob=True), [3, None, None, None]),
        (N.sum(), [4, None, 0, 7]),
        (N.mean(), [2.0, None, None, 7.0]),
        (N.min(), [1, None, None, 7]),
        (N.max(), [3, None, None, 7]),
        (N.contains(7), [False, None, False, True]),
        (N.contains(col("n")), [True, None, False, True]),
        (N.contains(None), [None] * 4),
        (N.slice(1), [[1, None], None, [], []]),
        (N.slice(-2, 1), [[1], None, [], [7]]),
        (N.head(2), [[3, 1], None, [], [7]]),
        (N.reverse(), [[None, 1, 3], None, [], [7]]),
        (N.drop_nulls(), [[3, 1], None, [], [7]]),
        (F.sum(), [0.0, math.nan, 0.0, None]),
        (F.min(), [-0.0, math.nan, None, None]),
        (F.max(), [0.0, math.nan, None, None]),
        (F.contains(math.nan), [False, False, False, None]),
        (F.contains(0), [True, False, False, None]),
        (T.join("-"), ["a-b", "", None, "é"]),
        (T.join("-", ignore_nulls=False), [None, "", None, "é"]),
        (T.contains("b"), [True, False, None, False]),
        (W.sum(), [3, None, 3, 11]),
        (W.reverse(), [[2, 1], None, [None, 3], [6, 5]]),
        (W.get(1) * 2, [4, None, None, 12]),
    ],
)
def test_functions(value: dml.Column, wanted: list[Any]) -> None:
    assert repr(computed(LISTS, value)) == repr(wanted)


def test_get_raises_in_the_row_that_is_too_short() -> None:
    ds = table(LISTS).with_columns(r=N.get(0)).select("r")
    assert not N.get(0).value.total
    assert N.first().value.total
    agrees(ds, epochs=(0,))
    with pytest.raises(CastError) as caught:
        ds.to_arrow()
    assert "list.get(0) meets a list of length 0" in str(caught.value)
    assert "row 2" in caught.value.at
    kept = table(LISTS).filter(N.len() > 0).with_columns(r=N.get(0)).select("r")
    assert kept.to_arrow()["r"].to_pylist() == [3, 7]


def test_types_of_sums() -> None:
    kinds = {
        pa.int8(): pa.int64(), pa.uint8(): pa.uint64(), pa.float32(): pa.float32(),
        pa.float64(): pa.float64(),
    }  # fmt: skip
    for given_, wanted in kinds.items():
        ds = table({"x": pa.array([[1, 2]], pa.list_(given_))}).with_columns(r=col("x").list.sum())
        assert ds.schema["r"] == wanted
        assert ds.to_arrow()["r"].to_pylist() == [3]
    wraps = {"x": pa.array([[2**63 - 1, 1]])}
    assert computed(wraps, col("x").list.sum()) == [-(2**63)]


@pytest.mark.law
@given(st.lists(st.lists(st.floats() | st.none(), max_size=9) | st.none(), max_size=6))
def test_floats_are_added_from_the_left(lists: list[Any]) -> None:
    def added(values: list[float | None]) -> float:
        total = 0.0
        for value in values:
            total += 0.0 if value is None else value
        return total

    wanted = [None if values is None else added(values) for values in lists]
    found = computed({"x": pa.array(lists, pa.list_(pa.float64()))}, col("x").list.sum())
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (col("n").list.len(), "n is int32"),
        (T.sum(), "s is list<item: string>"),
        (N.join("-"), "i is list<item: int32>"),
        (N.contains("a"), "int32"),
        (N.contains(2.5), "2.5"),
        (N.contains(col("s")), "s is list<item: string>"),
    ],
)
def test_other_types_are_refused_by_name(value: dml.Column, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        table(LISTS).with_columns(r=value)
    assert words in str(caught.value)
    assert "test_lists.py" in caught.value.at


@pytest.mark.parametrize(
    "make",
    [
        lambda: N.get("a"),  # type: ignore[arg-type]
        lambda: N.get(True),
        lambda: N.slice(0, -1),
        lambda: T.join(1),  # type: ignore[arg-type]
    ],
)
def test_parameters_are_checked(make: Any) -> None:
    with pytest.raises(PlanError):
        make()
