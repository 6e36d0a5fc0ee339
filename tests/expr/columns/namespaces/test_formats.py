"""Test parsing of text as numbers and times, and formatting of times as text."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import CastError, DmlError, PlanError, SchemaError
from tests.expr.checks import agrees, computed, table

DATA = {
    "s": pa.array(["12", "-007", "+5", "x", None, "9223372036854775808"]),
    "f": pa.array(["1e3", ".5", "5.", "nan", "-inf", "1_0"]),
    "d": pa.array(["2024-02-29", "2023-02-29", "1969-12-31", "2024-2-9", None, "0000-01-01"]),
    "t": pa.array(
        [dt.datetime(1969, 12, 31, 5), dt.datetime(2024, 2, 29, 12, 30, 1, 5), None] * 2,
        pa.timestamp("us"),
    ),
    "z": pa.array([dt.datetime(2024, 2, 29, 20)] * 6, pa.timestamp("us", "Asia/Tokyo")),
    "l": pa.array([[3.0, 1.0, None, math.nan, 1.0], None, [], [0.0, -0.0], [math.nan] * 2, [5.0]]),
}
S, F, D, T, Z, L = (
    col("s").str, col("f").str, col("d").str, col("t").dt, col("z").dt, col("l").list,
)  # fmt: skip
DAY = dt.date(2024, 2, 29)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (S.to_integer(strict=False), [12, -7, 5, None, None, None]),
        (F.to_float(strict=False), [1000.0, 0.5, 5.0, math.nan, -math.inf, None]),
        (D.to_date(strict=False), [DAY, None, dt.date(1969, 12, 31), None, None, None]),
        (D.slice(0, 7).str.to_date("%Y-%m", strict=False).dt.day(), [1, 1, 1, None, None, None]),
        (D.slice(0, 4).str.to_datetime("%H%M", strict=False).dt.hour(), [
            20, 20, None, 20, None, 0,
        ]),
        (D.extract(r"-(\d+)"), ["02", "02", "12", "2", None, "01"]),
        (D.extract(r"(\d)-(x)?", 2), ["", "", "", "", None, ""]),
        (D.extract("9..", 0), [None, None, "969", None, None, None]),
        (D.count_matches("0"), [2, 2, 0, 1, None, 6]),
        (D.count_matches("0-", literal=True), [0, 0, 0, 0, None, 1]),
        (D.head(2), ["20", "20", "19", "20", None, "00"]),
        (D.tail(2), ["29", "29", "31", "-9", None, "01"]),
        (D.tail(0), ["", "", "", "", None, ""]),
        (T.truncate("1w").dt.date(), [dt.date(1969, 12, 29), dt.date(2024, 2, 26), None] * 2),
        (T.truncate("7h").dt.hour(), [3, 7, None] * 2),
        (T.truncate("3y").dt.year(), [1967, 2024, None] * 2),
        (T.strftime("%d.%m.%Y %H:%M:%S.%f%%"), [
            "31.12.1969 05:00:00.000000%", "29.02.2024 12:30:01.000005%", None,
        ] * 2),
        (Z.strftime("%H"), ["05"] * 6),
        (T.date().dt.truncate("1q").dt.month(), [10, 1, None] * 2),
        (L.sort(), [[1.0, 1.0, 3.0, math.nan, None], None, [], [0.0, -0.0], [math.nan] * 2, [5.0]]),
        (L.sort(descending=True).list.first(), [3.0, None, None, 0.0, math.nan, 5.0]),
        (L.unique(), [[3.0, 1.0, None, math.nan], None, [], [0.0], [math.nan], [5.0]]),
    ],
)  # fmt: skip
def test_functions(value: dml.Column, wanted: list[Any]) -> None:
    assert repr(computed(DATA, value)) == repr(wanted)


@pytest.mark.law
@given(st.lists(st.datetimes() | st.none(), max_size=5))
def test_what_is_written_can_be_read(moments: list[dt.datetime | None]) -> None:
    data = {"t": pa.array(moments, pa.timestamp("us"))}
    form = "%Y%m%d %H%M%S.%f"
    assert computed(data, T.strftime(form).str.to_datetime(form)) == moments
    days = [None if m is None else m.date() for m in moments]
    assert computed(data, T.strftime("%d/%m/%Y").str.to_date("%d/%m/%Y")) == days


@pytest.mark.law
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.lists(st.floats(), max_size=5))
def test_numbers_are_read_as_python_writes_them(whole: list[int], floats: list[float]) -> None:
    assert computed({"s": pa.array(map(str, whole), pa.string())}, S.to_integer()) == whole
    found = computed({"f": pa.array(map(repr, floats), pa.string())}, F.to_float())
    assert repr(found) == repr(floats)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (S.to_integer(), "str.to_integer meets 'x'"),
        (F.to_float(), "str.to_float meets '1_0'"),
        (D.to_date(), "str.to_date meets '2023-02-29'"),
        (D.to_datetime("%Y-%m-%d"), "str.to_datetime meets '2023-02-29'"),
    ],
)
def test_what_does_not_fit_is_an_error_of_its_row(value: dml.Column, words: str) -> None:
    ds = table(DATA).with_columns(r=value)
    agrees(ds, epochs=(0,))
    with pytest.raises(CastError, match=words) as caught:
        ds.to_arrow()
    assert "strict=False" in caught.value.try_


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: D.to_date("%y"), "it has %y"),
        (lambda: D.to_date("%Y %Y"), "%Y twice"),
        (lambda: D.to_date("today"), "no directive"),
        (lambda: T.strftime("%A"), "it has %A"),
        (lambda: T.strftime("%Y%"), "not a format"),
        (lambda: T.truncate("1 day"), "no span of time"),
        (lambda: T.truncate("0d"), "no span of time"),
        (lambda: T.date().dt.truncate("1h"), "further apart"),
        (lambda: Z.truncate("1d"), "without a time zone"),
        (lambda: D.extract("(a)", 2), "is not a pattern"),
        (lambda: D.count_matches("a*"), "can match no character"),
        (lambda: col("t").list.sort(descending=True), "needs a list"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(make: Any, words: str) -> None:
    with pytest.raises(DmlError, match=words) as caught:
        table(DATA).with_columns(r=make())
    assert isinstance(caught.value, PlanError | SchemaError)
    assert "test_formats.py" in caught.value.at
