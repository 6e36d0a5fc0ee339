"""Numbers, booleans and dates become text as the oracle says, and numbers come back from it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import CastError, SchemaError
from tests.expr.checks import agrees, table

DATA = {
    "i": pa.array([1, None, -5, 2**63 - 1]),
    "u": pa.array([2**64 - 1, None, 0, 7], pa.uint64()),
    "f": [1.0, None, 1e300, -0.0],
    "g": pa.array([0.1, None, 2**24, float("nan")], pa.float32()),
    "b": [True, None, False, True],
    "d": [dt.date(2020, 1, 2), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)],
}
TEXTS = {
    "i": ["1", None, "-5", "9223372036854775807"],
    "u": ["18446744073709551615", None, "0", "7"],
    "f": ["1.0", None, "1e+300", "-0.0"],
    "g": ["0.1", None, "16777216.0", "nan"],
    "b": ["true", None, "false", "true"],
    "d": ["2020-01-02", None, "0001-01-01", "9999-12-31"],
}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_values_have_their_usual_text(kind: pa.DataType) -> None:
    ds = table(DATA).with_columns(**{name: col(name).cast(kind) for name in DATA})
    assert ds.to_arrow().to_pydict() == TEXTS
    agrees(ds, epochs=(0,))
    agrees(table(DATA).cast(dict.fromkeys(DATA, "string")), epochs=(0,))


@pytest.mark.parametrize("day", [2**31 - 1, -(2**31), 2932897, -719163])
def test_dates_that_python_does_not_have_are_no_text(day: int) -> None:
    dates = pa.array([0, day, None], pa.int32()).cast(pa.date32())
    ds = table({"d": dates})
    loose = ds.with_columns(d=col("d").cast("string", strict=False))
    assert loose.to_arrow()["d"].to_pylist() == ["1970-01-01", None, None]
    with pytest.raises(CastError, match="row 1"):
        ds.with_columns(d=col("d").cast("string")).to_arrow()


def test_casts_of_expressions_and_literals() -> None:
    value = (col("i") % 3).cast("string")
    made = dml.when(col("b")).then(value).otherwise(dml.lit(2.5).cast("string"))
    ds = table(DATA).with_columns(y=made).filter(col("y") != "0").select("y")
    assert ds.to_arrow()["y"].to_pylist() == ["1", "2.5", "2.5", "1"]
    agrees(ds, epochs=(0,))


@given(st.lists(st.floats() | st.none(), max_size=5), st.sampled_from(["float32", "float64"]))
def test_floats_are_read_back_from_their_text(values: list[float | None], kind: str) -> None:
    with np.errstate(over="ignore"):
        array = np.array([0.0 if v is None else v for v in values]).astype(kind)
    given = pa.array(array, mask=np.array([v is None for v in values], bool))
    ds = table({"x": given}).with_columns(x=col("x").cast("string").cast(kind))
    found = ds.to_arrow()["x"].to_pylist()
    assert [str(x) for x in found] == [str(x) for x in given.to_pylist()]


@pytest.mark.parametrize(
    ("column", "way"),
    [(pa.array([dt.datetime(2020, 1, 1)]), ".dt.strftime("), (pa.array([[1]]), ".map(f)")],
)
def test_types_without_a_usual_text_name_the_function_that_makes_one(column: Any, way: str) -> None:
    with pytest.raises(SchemaError, match="is not a cast that dml knows") as raised:
        table({"x": column}).with_columns(y=col("x").cast("string"))
    assert way in raised.value.try_


@pytest.mark.parametrize(
    ("fill", "wanted"),
    [
        (0, {"i": 0, "u": 0, "f": 0.0, "g": 0.0}),
        (0.5, {"f": 0.5, "g": 0.5}),
        (True, {"b": True}),
        ("none", {"s": "none"}),
    ],
)
def test_one_value_fills_the_columns_that_hold_such_values(
    fill: Any, wanted: dict[str, Any]
) -> None:
    ds = table({**DATA, "s": ["a", None, "b", "c"]})
    filled = ds.fill_null(fill)
    assert filled.schema == ds.schema
    assert filled.to_arrow().slice(1, 1).to_pylist() == [{**dict.fromkeys([*DATA, "s"]), **wanted}]
    agrees(filled, epochs=(0,))


def test_a_value_that_fills_nothing_is_refused() -> None:
    with pytest.raises(dml.DmlError, match="fills no column"):
        table({"i": [1]}).fill_null("x")
    with pytest.raises(dml.DmlError, match="needs to know the columns"):
        dml.range(3).map(lambda row: row if row["id"] else {}).fill_null(0)
