"""Test functions of dates and times against Python's ``datetime``."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import PlanError, SchemaError
from tests.expr.checks import computed, table

BEFORE = dt.datetime(1969, 12, 31, 23, 59, 58, 999_999)
LEAP = dt.datetime(2024, 2, 29, 12, 30, 1, 234_567)
DATA = {
    "t": pa.array([BEFORE, None, LEAP], pa.timestamp("us")),
    "d": pa.array([BEFORE.date(), None, LEAP.date()]),
    "h": pa.array([BEFORE.time(), None, LEAP.time()]),
    "z": pa.array([BEFORE, None, LEAP], pa.timestamp("us", "Asia/Tokyo")),
}
T, D, H, Z = (col(name).dt for name in "tdhz")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (T.year(), [1969, None, 2024]),
        (T.quarter(), [4, None, 1]),
        (T.month(), [12, None, 2]),
        (T.day(), [31, None, 29]),
        (T.hour(), [23, None, 12]),
        (T.minute(), [59, None, 30]),
        (T.second(), [58, None, 1]),
        (T.millisecond(), [999, None, 234]),
        (T.microsecond(), [999_999, None, 234_567]),
        (T.weekday(), [3, None, 4]),
        (T.ordinal_day(), [365, None, 60]),
        (T.week(), [1, None, 9]),
        (T.iso_year(), [1970, None, 2024]),
        (T.date(), [BEFORE.date(), None, LEAP.date()]),
        (T.epoch("s"), [-2, None, 1_709_209_801]),
        (T.epoch("d"), [-1, None, 19_782]),
        (T.epoch(), [-1_000_001, None, 1_709_209_801_234_567]),
        (D.weekday(), [3, None, 4]),
        (D.date(), [BEFORE.date(), None, LEAP.date()]),
        (D.epoch("ms"), [-86_400_000, None, 1_709_164_800_000]),
        (H.hour() * 100 + H.minute(), [2359, None, 1230]),
        (Z.hour(), [8, None, 21]),
        (Z.date(), [dt.date(1970, 1, 1), None, LEAP.date()]),
        (Z.epoch("s"), [-2, None, 1_709_209_801]),
    ],
)
def test_functions(value: dml.Column, wanted: list[Any]) -> None:
    assert computed(DATA, value) == wanted


@pytest.mark.law
@given(st.lists(st.datetimes(), min_size=1, max_size=5))
def test_every_moment_of_python(moments: list[dt.datetime]) -> None:
    data = {"t": pa.array(moments, pa.timestamp("us"))}
    assert computed(data, T.ordinal_day()) == [m.timetuple().tm_yday for m in moments]
    assert computed(data, T.week()) == [m.isocalendar().week for m in moments]
    assert computed(data, T.weekday()) == [m.isoweekday() for m in moments]
    passed = [m - dt.datetime(1970, 1, 1) for m in moments]
    assert computed(data, T.epoch("d")) == [p.days for p in passed]
    ticks = [p // dt.timedelta(microseconds=1) * 1000 for p in passed]
    assert computed(data, T.epoch("ns")) == [n if -(2**63) <= n < 2**63 else None for n in ticks]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_every_unit(unit: str) -> None:
    data = {"t": pa.array([BEFORE.replace(microsecond=0)], pa.timestamp(unit))}
    assert computed(data, T.epoch("ms")) == [-2000]
    assert computed(data, T.second()) == [58]


@pytest.mark.parametrize("value", [D.hour(), H.year(), col("n").dt.year(), H.epoch()])
def test_other_types_are_refused(value: dml.Column) -> None:
    with pytest.raises(SchemaError, match="needs") as caught:
        table({**DATA, "n": pa.array([1, 2, 3])}).with_columns(r=value)
    assert "test_moments.py" in caught.value.at


def test_units_are_checked() -> None:
    with pytest.raises(PlanError, match="'h' is no unit"):
        T.epoch("h")
