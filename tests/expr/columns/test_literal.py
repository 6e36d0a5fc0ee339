"""Test which values are accepted as columns or as parameters of expressions."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col, lit
from dml.errors import PlanError, SchemaError
from dml.expr.columns.literal import edges, members, plain, whole


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.int8(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(4), 4),
        (pa.scalar(5), 5),
        (np.datetime64("2020-01-01"), dt.datetime(2020, 1, 1)),
        (np.datetime64("NaT"), None),
        (b"a", b"a"),
        (None, None),
    ],
)
def test_one_spelling(given: Any, wanted: Any) -> None:
    found = plain(given)
    assert found == wanted
    assert type(found) is type(wanted)


class Label(enum.IntEnum):
    CAT = 1


@pytest.mark.parametrize(
    "given",
    [
        [1],
        np.array([1]),
        np.array([1, 2]),
        object(),
        np.datetime64("2020-01-01T00:00:00.000000001"),
        dt.timedelta(1),
        Label.CAT,
        1j,
        dml.when(col("x")).then(1),
        dml.when(col("x")),
    ],
)
def test_what_is_no_literal(given: Any) -> None:
    with pytest.raises(SchemaError, match="cannot be a literal") as caught:
        plain(given)
    assert "test_literal.py:" in caught.value.at
    assert caught.value.why
    assert caught.value.try_


def test_numpy_leaves_operators_to_columns() -> None:
    for column in (np.int64(3) + col("x"), np.float64(3) < col("x"), np.bool_(True) & col("x")):
        assert isinstance(column, dml.Column)
    with pytest.raises(SchemaError, match="cannot be a literal"):
        np.array([1, 2]) + col("x")
    assert repr(lit(np.int8(3))) == "3"


def test_members() -> None:
    assert members({3, 1}) == (1, 3)
    assert members(np.array([1.5, 2])) == (1.5, 2.0)
    assert members(pa.array(["a"])) == ("a",)
    assert members(range(2)) == (0, 1)
    for wrong in ("abc", b"a", 5, None, col("x")):
        with pytest.raises(PlanError, match="needs a list of values"):
            members(wrong)


def test_edges() -> None:
    assert edges([1, 2.5, float("inf")]) == (1, 2.5, float("inf"))
    assert edges([2**53, 2**53 + 1]) == (2**53, 2**53 + 1)
    assert edges([]) == ()
    for wrong in ([2, 1], [1, 1], [float("nan")], ["a"], [None], [True]):
        with pytest.raises(PlanError, match="ascending boundaries"):
            edges(wrong)


def test_whole() -> None:
    assert whole("n", np.int64(3), 1, 5) == 3
    for wrong in (0, 6, 1.0, True, "3", None):
        with pytest.raises(PlanError, match="n is a whole number"):
            whole("n", wrong, 1, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: col("x").hash(0),
        lambda: col("x").hash((1 << 63) + 1),
        lambda: col("x").hash(True),
        lambda: col("x").hash(seed="a"),  # type: ignore[arg-type]
        lambda: col("x").round(1.5),  # type: ignore[arg-type]
        lambda: dml.random(seed="a"),  # type: ignore[arg-type]
        lambda: dml.random(stream=-1),
        lambda: dml.random(stream=1 << 20),
    ],
)
def test_parameters_are_checked_where_they_are_written(make: Any) -> None:
    with pytest.raises(PlanError, match="whole number") as caught:
        make()
    assert "test_literal.py:" in caught.value.at
