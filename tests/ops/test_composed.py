"""Test verbs that are composed of others, and alternative names of verbs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dml
from dml.errors import SchemaError
from tests.expr.checks import holds, numbers, table


def holed() -> dml.Dataset:
    nan = float("nan")
    return table({"x": pa.array([1, None, 3, 4]), "y": pa.array([1.0, 2.0, None, nan])})


@pytest.mark.law
def test_drop_nulls() -> None:
    assert [row["x"] for row in holed().drop_nulls()] == [1, 4]
    assert [row["x"] for row in holed().drop_nulls("y")] == [1, None, 4]
    assert [row["x"] for row in holed().drop_nulls("x")] == [1, 3, 4]
    assert holds(holed().drop_nulls("x").batch(2)) == 2


def test_drop_nulls_of_columns_that_nobody_knows() -> None:
    later = holed().random_map(lambda row, _: row)
    with pytest.raises(SchemaError, match="needs known columns"):
        later.drop_nulls()
    assert [row["x"] for row in later.drop_nulls("x", "y")] == [1, 4]
    with pytest.raises(SchemaError, match="'z'"):
        holed().drop_nulls("z")


def test_pipe() -> None:
    def firsts(ds: dml.Dataset, n: int, *, of: int) -> dml.Dataset:
        return ds.take(of).take(n)

    assert numbers().pipe(firsts, 2, of=5).count() == 2
    assert numbers().apply(firsts, n=2, of=1).count() == 1
    assert numbers().pipe(list) == list(numbers())


@pytest.mark.parametrize(
    ("other", "verb", "args"),
    [
        ("select_columns", "select", ("y",)),
        ("drop_columns", "drop", ("y",)),
        ("remove_columns", "drop", (["y"],)),
        ("rename_columns", "rename", ({"y": "z"},)),
        ("random_shuffle", "shuffle", ()),
        ("random_sample", "sample", (0.5,)),
        ("random_split", "split", ([0.5, 0.5],)),
        ("apply", "pipe", (repr,)),
    ],
)
def test_other_names(other: str, verb: str, args: tuple[Any, ...]) -> None:
    assert getattr(dml.Dataset, other) is getattr(dml.Dataset, verb)
    ds = holed()
    assert repr(getattr(ds, other)(*args)) == repr(getattr(ds, verb)(*args))
