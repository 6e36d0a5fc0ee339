"""Test aggregates of groups: exact, for any partitions, within the memory limit."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import CastError, MemoryContractError, PlanError, SchemaError
from dml.testing.plans import keeps_rows
from tests.expr.checks import TINY, agrees, holds, numbers, resumes, table

NAN = float("nan")
VALUES = st.one_of(st.none(), st.floats(allow_infinity=False, allow_nan=False, width=64))
FLOATS = [0.1, 0.2, None, NAN, -0.0, 0.0, 1e300, -1e300, 5e-324]


def mixed(n: int = 60) -> dml.Dataset:
    return table(
        {
            "k": pa.array([("a", "b", None, "c")[i * 7 % 4] for i in range(n)]),
            "x": pa.array([FLOATS[i * 5 % 9] for i in range(n)], pa.float64()),
            "i": pa.array([None if i % 5 == 0 else i * i for i in range(n)], pa.int32()),
            "b": pa.array([None if i % 3 == 0 else i % 2 == 0 for i in range(n)]),
            "t": pa.array([None if i % 4 == 0 else i for i in range(n)], pa.timestamp("us")),
        },
        atom_rows=7,
    )


EVERY: dict[str, Any] = {
    "n": dml.len(),
    "sum": col("x").sum(),
    "mean": col("i").mean(),
    "std": col("x").fill_nan(1.0).std(),
    "var": col("i").var(0),
    "least": col("x").min(),
    "most": col("t").max(),
    "count": col("t").count(),
    "some": col("b").any(),
    "every": col("b").all(),
    "first": col("t").first(),
    "last": col("i").last(),
    "different": col("x").n_unique(),
    "listed": col("b").implode(),
    "words": col("k").max(),
    "share": col("i").sum() / dml.len(),
}


@pytest.mark.law
def test_every_figure_of_groups_and_of_all() -> None:
    assert holds(mixed().group_by("k").agg(**EVERY)) == 4
    assert holds(mixed().agg(**EVERY)) == 1
    assert holds(mixed(0).agg(**EVERY)) == 1
    assert holds(mixed(0).group_by("k").agg(**EVERY)) == 0
    assert resumes(mixed().group_by("x", "b").agg(**EVERY), TINY) > 10


@pytest.mark.law
@given(st.lists(st.tuples(st.integers(0, 3), VALUES), max_size=40), st.integers(1, 9))
def test_sums_are_exact_in_any_order_and_any_partitions(rows: list[Any], atom: int) -> None:
    columns = {
        "k": pa.array([k for k, _ in rows], pa.int64()),
        "x": pa.array([x for _, x in rows], pa.float64()),
    }
    made = table(columns, atom_rows=atom).group_by("k").agg(s=col("x").sum(), n=col("x").count())
    wanted = []
    for key in sorted({k for k, _ in rows}):
        values = [x for k, x in rows if k == key and x is not None]
        total = sum(map(Fraction, values), Fraction(0))
        try:
            rounded = float(total)
        except OverflowError:
            rounded = math.inf if total > 0 else -math.inf
        wanted.append({"k": key, "s": rounded, "n": len(values)})
    assert made.to_arrow().to_pylist() == wanted


def test_groups_are_in_the_order_of_their_keys() -> None:
    keys = [0.0, NAN, None, -0.0, 2.5, -1.0, NAN, None]
    made = table({"k": pa.array(keys, pa.float64())}).group_by("k").len()
    assert repr(made.to_arrow().to_pylist()) == repr(
        [
            {"k": -1.0, "len": 1},
            {"k": 0.0, "len": 2},
            {"k": 2.5, "len": 1},
            {"k": NAN, "len": 2},
            {"k": None, "len": 2},
        ]
    )


def test_types_keep_every_digit() -> None:
    for kind in (pa.timestamp("ns", "UTC"), pa.decimal128(38), pa.uint64(), pa.duration("ns")):
        values = pa.array([3, None, 9_007_199_254_740_993, 1], pa.int64()).cast(kind)
        figures = {name: getattr(col("x"), name)() for name in ("min", "max", "first", "last")}
        made = table({"x": values}).agg(**figures, different=col("x").n_unique()).to_arrow()
        wanted = [values[3], values[2], values[0], values[3], pa.scalar(3)]
        assert [made.column(i)[0] for i in range(5)] == wanted, kind
    lists = table({"x": pa.array([None, [1], [2, None], None])})
    made = lists.agg(a=col("x").first(), b=col("x").last(), c=col("x").implode()).to_arrow()
    assert made.to_pylist() == [{"a": [1], "b": [2, None], "c": [None, [1], [2, None], None]}]


@pytest.mark.law
def test_short_forms() -> None:
    ds = numbers(10).with_columns(y=col("x") * 2, odd=col("x") % 2)
    by = ds.group_by("odd")
    assert by.sum("x", "y").to_arrow().to_pylist() == [
        {"odd": 0, "x": 20, "y": 40},
        {"odd": 1, "x": 25, "y": 50},
    ]
    assert by.count().to_arrow()["count"].to_pylist() == [5, 5]
    for name in ("mean", "min", "max", "std", "var"):
        assert getattr(by, name)("y").columns == ["odd", "y"]
        assert holds(getattr(by, name)("y")) == 2
    assert by.agg(col("x").sum()).columns == ["odd", "x"]
    assert ds.aggregate(col("x").max() - col("x").min()).to_arrow().to_pylist() == [{"x": 9}]
    assert ds.groupby(tens=col("x") // 4).agg(tenth=col("tens") * 10, n=dml.len()).columns == [
        "tens",
        "tenth",
        "n",
    ]


@pytest.mark.law
def test_expressions_as_keys_leave_columns_as_they_are() -> None:
    ds = numbers(10).group_by(x=col("x") % 3).agg(s=col("x").sum(), least=(col("x") + 1).min())
    assert holds(ds) == 3
    assert ds.to_arrow().to_pylist() == [
        {"x": 0, "s": 18, "least": 1},
        {"x": 1, "s": 12, "least": 2},
        {"x": 2, "s": 15, "least": 3},
    ]


@pytest.mark.law
def test_only_columns_that_are_needed_are_read() -> None:
    def columns(ds: dml.Dataset) -> tuple[str, ...]:
        return keeps_rows(ds).stage.columns

    assert columns(mixed().group_by("k").agg(s=col("i").sum())) == ("k", "i")
    assert columns(mixed().filter(col("b")).group_by("k").len()) == ("k", "b")
    assert columns(mixed().agg(n=dml.len())) == ()
    assert columns(mixed().with_columns(z=col("x") * 2).agg(s=col("i").sum())) == ("i",)


@pytest.mark.law
def test_functions_of_unknown_types() -> None:
    made = numbers(12).map(lambda row: {"k": repr(row["x"] % 5), "x": row["x"]})
    assert holds(made.group_by("k").agg(s=col("x").sum(), n=dml.len())) == 5
    agrees(numbers(0).map(lambda row: {"x": row["x"]}).agg(s=col("x").sum(), m=col("x").max()))
    agrees(made.group_by("absent").len())


def test_an_integer_sum_that_does_not_fit() -> None:
    big = table({"x": pa.array([2**62] * 3), "y": pa.array([2**62, 2**62, -(2**62)])})
    agrees(big.agg(s=col("x").sum()))
    with pytest.raises(CastError, match="the sum of 'x' is 13835058055282163712"):
        big.agg(s=col("x").sum()).to_arrow()
    assert big.agg(s=col("y").sum()).to_arrow()["s"].to_pylist() == [2**62]  # on the way it would
    floats = big.with_columns(x=col("x").cast("float64"))
    assert floats.agg(s=col("x").sum()).to_arrow()["s"].to_pylist() == [3 * 2.0**62]


@pytest.mark.law
def test_many_groups_and_one_large_group_in_little_memory() -> None:
    ds = dml.range(400_000).with_options(executor="sync", telemetry_dir="off")
    tiny = ds.with_options(memory_limit="4MiB")
    many = tiny.group_by(k=col("id") * 7919 % 200_003).agg(n=dml.len(), s=col("id").sum())
    found = many.to_arrow()
    assert found.num_rows == 200_003
    assert found["k"].to_pylist() == list(range(200_003))
    assert sum(found["s"].to_pylist()) == 400_000 * 399_999 // 2
    one = tiny.group_by(k=col("id") * 0).agg(s=(col("id") / 3).sum(), n=dml.len()).to_arrow()
    exact = sum((Fraction(i / 3) for i in range(400_000)), Fraction(0))
    assert one.to_pylist() == [{"k": 0, "s": float(exact), "n": 400_000}]
    with pytest.raises(MemoryContractError, match="values of one group do not fit"):
        tiny.agg(different=col("id").n_unique()).to_arrow()


def test_refused() -> None:
    ds = numbers().with_columns(s=dml.lit("a"))
    with pytest.raises(PlanError, match="neither a key nor an aggregate"):
        ds.group_by("s").agg(y=col("x") + col("x").sum())
    with pytest.raises(PlanError, match="an aggregate of an aggregate"):
        ds.agg(y=col("x").sum().max())
    with pytest.raises(PlanError, match="agg makes a second column 's'"):
        ds.group_by("s").agg(s=col("x").sum())
    with pytest.raises(PlanError, match="agg makes two columns 'x'"):
        ds.agg(col("x").sum(), col("x").max())
    with pytest.raises(PlanError, match="without a name"):
        ds.agg(dml.len())
    with pytest.raises(PlanError, match="agg of nothing"):
        ds.agg()
    with pytest.raises(PlanError, match="group_by nothing"):
        ds.group_by()
    with pytest.raises(PlanError, match="an expression without a name"):
        ds.group_by(col("x") + 1)
    with pytest.raises(PlanError, match="no column is named"):
        ds.group_by("s").sum()
    with pytest.raises(SchemaError, match="sum needs a column of numbers, and 's' is string"):
        ds.agg(y=col("s").sum())
    with pytest.raises(SchemaError, match="any needs a column of booleans"):
        ds.agg(y=col("x").any())
    with pytest.raises(SchemaError, match="is not computed from a row"):
        ds.with_columns(y=col("x").sum())
    with pytest.raises(PlanError, match="agg over batches"):
        ds.batch(2).agg(n=dml.len())
    with pytest.raises(PlanError, match="agg over an endless stream"):
        ds.repeat().agg(n=dml.len())
    with pytest.raises(SchemaError, match=r"group_by cannot order by 'l'"):
        table({"l": pa.array([[1]])}).group_by("l").len()


@pytest.mark.parametrize(
    ("values", "try_"),
    [
        (["1.5"], "col('x').str.to_float()"),
        ([Decimal("1.5")], ".map(f) with a function that converts 'x'"),
        ([[1]], ".map(f) with a function that converts 'x'"),
    ],
)
def test_what_is_no_number_is_told_how_it_becomes_one(values: list[Any], try_: str) -> None:
    ds = dml.from_dict({"x": values})
    with pytest.raises(SchemaError) as caught:
        ds.agg(y=col("x").sum())
    assert try_ in caught.value.try_
    with pytest.raises(SchemaError) as caught:
        ds.mean("x")
    assert try_ in caught.value.try_
