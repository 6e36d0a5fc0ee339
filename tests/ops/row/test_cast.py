"""Test ``cast``: checked conversion of columns to other types."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml import col
from dml.errors import CastError, SchemaError
from tests.expr.checks import agrees, holds, numbers, table


@pytest.mark.law
def test_numbers() -> None:
    ds = numbers(5).cast({"x": "float32"})
    assert str(ds.schema) == "x: float"
    assert holds(ds) == 5


def test_misfits_raise_after_the_rows_before_them() -> None:
    ds = table({"x": pa.array([1, 127, 3, 4, 128, 6])}).cast(x="int8")
    run = iter(ds)
    assert [next(run)["x"] for _ in range(4)] == [1, 127, 3, 4]
    with pytest.raises(CastError, match="128") as caught:
        next(run)
    assert "row 4" in caught.value.at
    agrees(ds)


def test_misfits_are_null_where_not_strict() -> None:
    ds = table({"x": pa.array([1.5, float("nan"), 1e300, None])}).cast({"x": "int16"}, strict=False)
    assert [row["x"] for row in ds] == [1, None, None, None]
    assert holds(ds) == 4


def test_text_and_moments_reach_their_type() -> None:
    noon = dt.datetime(2020, 1, 2, 12)
    columns = {"s": pa.array(["a", None, "b"]), "t": pa.array([noon, None, noon])}
    ds = table(columns).cast({"s": pa.binary(), "t": pa.timestamp("s")})
    assert ds.to_arrow().schema.types == [pa.binary(), pa.timestamp("s")]
    assert ds.cast({"t": pa.date32()}).take_rows(1)[0]["t"] == dt.date(2020, 1, 2)
    assert holds(ds) == 3


TEXTS = st.none() | st.from_regex(r"[+-]?[0-9]{1,20}(\.[0-9]{1,3})?(e[0-9])?", fullmatch=True)


@pytest.mark.law
@settings(max_examples=60)
@given(
    st.lists(TEXTS | st.text(max_size=3) | st.floats().map(repr) | st.integers().map(str)),
    st.sampled_from(["int8", "int64", "uint16", "uint64", "float32", "float64"]),
    st.booleans(),
)
def test_numbers_in_text_are_parsed(texts: list[str | None], kind: str, strict: bool) -> None:
    ds = table({"s": pa.array(texts, pa.string())}).cast({"s": kind}, strict=strict)
    assert ds.schema["s"] == table({"s": pa.array([], kind)}).schema["s"]
    agrees(ds)
    agrees(ds.filter(col("s") >= 0))


def test_text_that_is_no_number_raises_after_the_rows_before_it() -> None:
    run = iter(table({"s": pa.array(["1", "-2", "x3"])}).cast({"s": "int32"}))
    assert [next(run)["s"] for _ in range(2)] == [1, -2]
    with pytest.raises(CastError, match="'x3'") as caught:
        next(run)
    assert "row 2" in caught.value.at


def test_moments_that_do_not_fit() -> None:
    fine = dt.datetime(2020, 1, 2, 3, 4, 5, 6)
    columns = {"t": pa.array([dt.datetime(2020, 1, 1), fine])}
    with pytest.raises(CastError, match=r"timestamp\[s\] cannot hold it"):
        list(table(columns).cast({"t": pa.timestamp("s")}))
    loose = table(columns).cast({"t": pa.timestamp("s")}, strict=False)
    assert [row["t"] for row in loose] == [dt.datetime(2020, 1, 1), None]


@pytest.mark.parametrize(
    "kind", ["date32", pa.list_(pa.int64()), pa.fixed_shape_tensor(pa.float64(), (2,))]
)
def test_refuses_what_is_no_cast(kind: object) -> None:
    with pytest.raises(SchemaError, match="not a cast that dml knows"):
        numbers().cast({"x": kind})


def test_times_keep_having_a_zone_or_not() -> None:
    zoned = pa.array([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)])
    with pytest.raises(SchemaError, match="not a cast"):
        table({"t": zoned}).cast({"t": pa.timestamp("us")})
    moved = table({"t": zoned}).cast({"t": pa.timestamp("ms", "Europe/Berlin")}).to_arrow()
    assert moved["t"].to_pylist() == zoned.to_pylist()


def test_nulls_take_any_type() -> None:
    ds = table({"n": pa.nulls(3)}).cast({"n": pa.fixed_shape_tensor(pa.float64(), (2,))})
    assert ds.to_arrow()["n"].to_pylist() == [None] * 3
    assert next(iter(ds.batch(3)))["n"].shape == (3, 2)
