"""Test ``fill_null``: replace nulls by literals or columns."""

from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import SchemaError
from tests.expr.checks import holds, table

COLUMNS = {
    "i": pa.array([1, None, 3, None], pa.int8()),
    "f": pa.array([math.nan, None, -0.0, 2.5]),
    "s": pa.array(["a", None, None, ""]),
    "d": pa.array([None, dt.date(2020, 1, 1), None, None]),
    "b": pa.array([None, True, False, None]),
}


@pytest.mark.law
def test_by_column() -> None:
    fills = {"i": 0, "f": 1.5, "s": "?", "d": dt.date(1999, 1, 1), "b": False}
    ds = table(COLUMNS).fill_null(fills)
    rows = ds.take_rows(4)
    assert [row["i"] for row in rows] == [1, 0, 3, 0]
    assert math.isnan(rows[0]["f"])  # NaN is not null
    assert [row["s"] for row in rows] == ["a", "?", "?", ""]
    assert holds(ds) == 4
    assert holds(ds.batch(3)) == 2


@pytest.mark.law
def test_with_another_column_and_with_draws() -> None:
    ds = table(COLUMNS).fill_null({"f": col("i"), "i": dml.random()})
    assert str(ds.schema).startswith("i: double, f: double")
    assert holds(ds) == 4


def test_refuses_other_types() -> None:
    with pytest.raises(SchemaError, match="without a common type"):
        table(COLUMNS).fill_null(i="x")
    with pytest.raises(SchemaError, match="'z'"):
        table(COLUMNS).fill_null(z=0)
    with pytest.raises(SchemaError, match="does not fit int8"):
        table(COLUMNS).fill_null(i=1000)
