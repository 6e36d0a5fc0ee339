"""This file tests the verbs that are short for others: they mean the same, to the name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import dml
from dml import Dataset, col
from dml.errors import PlanError, SchemaError
from tests.refusals import refused

NAN = float("nan")
ROWS = dml.from_dict({"x": [1.0, NAN, None, 4.0], "k": [1, 2, None, 4], "s": ["a", None, "c", ""]})

SAME: list[tuple[Callable[[Dataset], Dataset], Callable[[Dataset], Dataset]]] = [
    (lambda d: d.rename_column("x", "y"), lambda d: d.rename({"x": "y"})),
    (lambda d: d.cast_column("k", "f4"), lambda d: d.cast({"k": "f4"})),
    (lambda d: d.slice(1), lambda d: d.skip(1)),
    (lambda d: d.slice(1, 2), lambda d: d.skip(1).take(2)),
    (lambda d: d.gather_every(2), lambda d: d.shard(2, 0)),
    (lambda d: d.gather_every(2, 1), lambda d: d.skip(1).shard(2, 0)),
    (lambda d: d.fill_nan({"x": 0.0}), lambda d: d.with_columns(x=col("x").fill_nan(0.0))),
    (lambda d: d.fill_nan(x=0.0), lambda d: d.with_columns(x=col("x").fill_nan(0.0))),
    (lambda d: d.drop_nans(), lambda d: d.drop_nans("x")),
    (lambda d: d.drop_nulls(), lambda d: d.drop_nulls("x", "k", "s")),
]


@pytest.mark.parametrize(("short", "long"), SAME)
def test_a_short_form_has_the_name_of_the_long_one(
    short: Callable[[Dataset], Dataset], long: Callable[[Dataset], Dataset]
) -> None:
    assert short(ROWS).fingerprint() == long(ROWS).fingerprint()


def kept(ds: Dataset) -> list[int | None]:
    return list(ds.to_arrow()["k"].to_pylist())


def test_nan_null_and_false() -> None:
    assert kept(ROWS.drop_nans("x")) == [1, None, 4]
    assert kept(ROWS.drop_nulls("x")) == [1, 2, 4]
    assert kept(ROWS.remove(col("x") > 2)) == [1, 2, None]  # null is not true: it stays
    assert kept(ROWS.filter(col("x") > 2)) == [4]
    assert ROWS.drop_nans("x").drop_nulls("x").count() == 2
    assert ROWS.select("s").drop_nans().count() == 4, "no floats, no NaN"


def test_columns_that_a_function_decides_must_be_named() -> None:
    some = ROWS.flat_map(lambda row: [row])
    for act in (some.drop_nans, some.drop_nulls):
        refused(SchemaError, act, "needs known columns")
    assert some.drop_nans("x").count() == 3


def test_names_that_are_not_there() -> None:
    refused(SchemaError, lambda: ROWS.rename_column("z", "y"), "z")
    refused(SchemaError, lambda: ROWS.fill_nan(z=0.0), "z")
    refused(PlanError, lambda: ROWS.gather_every(0), "at least 1")
    refused(PlanError, lambda: ROWS.slice(-1), "at least 0")


def test_names_of_other_libraries() -> None:
    assert ROWS.column_names == ROWS.columns == ["x", "k", "s"]
    assert dml.from_list([{"a": 1}]).fingerprint() == dml.from_items([{"a": 1}]).fingerprint()
    assert dml.from_tensor_slices is dml.from_numpy
