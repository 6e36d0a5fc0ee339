"""Test ``sort``: the order of values, the order of equal rows, and its errors."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import PlanError, SchemaError
from tests.expr.checks import TINY, agrees, holds, numbers, resumes, table

NAN = float("nan")
FLOATS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, NAN, -2.0, float("inf")]))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "z", "\U0001f600", "\uffff"]))


def order_of(ds: dml.Dataset) -> list[int]:
    return list(ds.to_arrow()["at"].to_pylist())


@pytest.mark.law
@given(
    st.lists(st.tuples(FLOATS, TEXTS, st.booleans()), max_size=30),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.permutations(["f", "s", "b"]),
    st.sampled_from([1, 1 << 20]),
)
def test_as_arrow_sorts(rows: list[Any], ways: list[bool], names: list[str], memory: int) -> None:
    floats, texts, flags = (list(each) for each in zip(*rows, strict=True)) if rows else ([],) * 3
    columns = {
        "f": pa.array(floats, pa.float64()),
        "s": pa.array(texts, pa.string()),
        "b": pa.array(flags, pa.bool_()),
        "at": pa.array(range(len(rows)), pa.int64()),
    }
    for places in (True, False):
        ds = table(columns, atom_rows=4).sort(names, descending=ways, nulls_last=places)
        keys = [
            (name, "descending" if down else "ascending", "at_end" if places else "at_start")
            for name, down in zip(names, ways, strict=True)
        ]
        wanted = pc.sort_indices(pa.table(columns), sort_keys=keys).to_pylist()
        assert order_of(ds.with_options(memory_limit=(memory + 64) << 20)) == wanted


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, None, 1, 2, 1], pa.uint64()),
        pa.array([3, None, 1, 2, 1], pa.timestamp("ns", "UTC")),
        pa.array([3, None, 1, 2, 1], pa.date32()),
        pa.array([3, None, 1, 2, 1], pa.duration("us")),
        pa.array([b"b", None, b"", b"a", b""], pa.binary()),
        pa.array(["b", None, "", "a", ""], pa.large_string()),
        pa.array(np.array([3, 0, 1, 2, 1], np.float16), mask=np.arange(5) == 1),
        pa.array([decimal.Decimal(n) if n else None for n in (3, 0, 1, 2, 1)], pa.decimal128(38)),
        pa.array([decimal.Decimal(n) if n else None for n in (3, 0, 1, 2, 1)], pa.decimal32(5)),
        pa.array(["3", None, "1", "2", "1"]).dictionary_encode(),
    ],
)
def test_types(values: pa.Array) -> None:
    ds = table({"x": values, "at": pa.array(range(5))}, atom_rows=2)
    for way in (False, True):
        wanted = [0, 3, 2, 4, 1] if way else [2, 4, 3, 0, 1]
        assert order_of(ds.sort("x", descending=way)) == wanted


@pytest.mark.law
def test_spilled_runs_merge_to_the_same_order() -> None:
    many = table({"x": pa.array([n * 7 % 5 for n in range(40)]), "y": pa.array(range(40))})
    assert holds(many.sort("x")) == 40
    assert resumes(many.repeat(2).sort(["x", "y"], descending=[True, False]).batch(7), TINY) == 12


@pytest.mark.law
def test_one_value_in_all_rows_keeps_their_order() -> None:
    same = table({"x": pa.array([1] * 50), "at": pa.array(range(50))}, atom_rows=4)
    assert holds(same.sort("x")) == 50
    assert resumes(same.sort("x").batch(9), TINY) == 6


@pytest.mark.law
def test_by_expressions() -> None:
    ds = numbers(10).sort([col("x") % 3, -col("x")])
    assert holds(ds) == 10
    assert [row["x"] for row in ds] == [9, 6, 3, 0, 7, 4, 1, 8, 5, 2]
    assert ds.columns == ["x"]
    assert [row["x"] for row in numbers(4).sort(col("x"), descending=True)] == [3, 2, 1, 0]
    assert holds(numbers(9).sort(dml.random(seed=3))) == 9


@pytest.mark.law
def test_first_rows_are_those_of_the_whole_order() -> None:
    whole = [row["x"] for row in numbers(30).sort(col("x") * 7 % 11)]
    for n in (0, 1, 5, 29, 40):
        ds = numbers(30).sort(col("x") * 7 % 11).take(n)
        assert [row["x"] for row in ds] == whole[:n]
        assert holds(ds) == min(n, 30)
    assert holds(numbers(30).sort(col("x") * 7 % 11).skip(3).take(4)) == 4


@pytest.mark.law
def test_after_functions_of_unknown_types_and_over_nothing() -> None:
    made = numbers(12).map(lambda row: {"k": repr(row["x"] % 5), "x": row["x"]})
    assert holds(made.sort("k", descending=True)) == 12
    assert holds(numbers(0).sort("x")) == 0
    assert holds(numbers(9).sort("x").shuffle(seed=1).sort("x").take(4)) == 4
    agrees(made.sort("absent").take(3))
    with pytest.raises(SchemaError, match=r"(?s)'absent', which is not there.*at    Sort"):
        list(made.sort("absent").take(3))


def test_refused() -> None:
    with pytest.raises(PlanError, match="sort over batches"):
        numbers().batch(2).sort("x")
    with pytest.raises(PlanError, match="sort of an endless stream"):
        numbers().repeat().sort("x")
    with pytest.raises(SchemaError, match="'y', which is not there"):
        numbers().sort("y")
    lists = table({"l": pa.array([[1], [2]])})
    with pytest.raises(SchemaError, match=r"sort cannot order by 'l', which is list"):
        lists.sort("l")
    with pytest.raises(PlanError, match="one for each of 2 keys"):
        numbers().sort(["x", "x"], descending=[True])
    with pytest.raises(PlanError, match="sort by nothing"):
        numbers().sort([])
    with pytest.raises(PlanError, match="sort by 3"):
        numbers().sort(3)
