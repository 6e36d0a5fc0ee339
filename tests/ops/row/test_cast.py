"""Test ``cast``: checked conversion of columns to other types."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

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


def test_moments_that_do_not_fit() -> None:
    fine = dt.datetime(2020, 1, 2, 3, 4, 5, 6)
    columns = {"t": pa.array([dt.datetime(2020, 1, 1), fine])}
    with pytest.raises(CastError, match=r"timestamp\[s\] cannot hold it"):
        list(table(columns).cast({"t": pa.timestamp("s")}))
    loose = table(columns).cast({"t": pa.timestamp("s")}, strict=False)
    assert [row["t"] for row in loose] == [dt.datetime(2020, 1, 1), None]


@pytest.mark.parametrize(
    "kind", ["string", pa.list_(pa.int64()), pa.fixed_shape_tensor(pa.float64(), (2,))]
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
