"""The oracle computes functions of dates and times with Python's ``datetime``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.expr.columns.column import Column
from dml.testing.functions.meaning import Draw, FunctionMeaning, Holds, fixed

MICROSECONDS = {"us": 1, "ms": 10**3, "s": 10**6, "d": 86_400 * 10**6}


def _dated(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _timed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_time(kind) or pa.types.is_timestamp(kind))


def ordinal_day(moment: dt.date) -> int:
    """Return the number of the day in its year, from 1."""
    return moment.timetuple().tm_yday


def date(moment: dt.date) -> dt.date:
    """Return the date of a datetime."""
    return moment.date() if isinstance(moment, dt.datetime) else moment


def epoch(moment: dt.date, unit: str) -> int | None:
    """Return whole units since 1970, None beyond 64 bits."""
    if isinstance(moment, dt.datetime):
        zone = None if moment.tzinfo is None else dt.UTC
        passed = moment - dt.datetime(1970, 1, 1, tzinfo=zone)
    else:
        passed = moment - dt.date(1970, 1, 1)
    ticks = passed // dt.timedelta(microseconds=1)
    count = ticks * 1000 if unit == "ns" else ticks // MICROSECONDS[unit]
    return count if -(2**63) <= count < 2**63 else None


def _of_dates(name: str, means: Callable[..., Any]) -> FunctionMeaning:
    return _counted(name, _dated, means)


def _of_times(name: str, means: Callable[..., Any]) -> FunctionMeaning:
    return _counted(name, _timed, means)


def _counted(name: str, takes: Holds, means: Callable[..., Any]) -> FunctionMeaning:
    def drawn(_: Draw, c: Column) -> Column:
        made: Column = getattr(c.dt, name)()
        return made

    return FunctionMeaning(f"dt.{name}", takes, fixed(pa.int64()), means, drawn, pa.timestamp("us"))


MEANINGS = (
    _of_dates("year", lambda moment: moment.year),
    _of_dates("quarter", lambda moment: (moment.month + 2) // 3),
    _of_dates("month", lambda moment: moment.month),
    _of_dates("day", lambda moment: moment.day),
    _of_times("hour", lambda moment: moment.hour),
    _of_times("minute", lambda moment: moment.minute),
    _of_times("second", lambda moment: moment.second),
    _of_times("millisecond", lambda moment: moment.microsecond // 1000),
    _of_times("microsecond", lambda moment: moment.microsecond),
    _of_dates("weekday", dt.date.isoweekday),
    _of_dates("ordinal_day", ordinal_day),
    _of_dates("week", lambda moment: moment.isocalendar().week),
    _of_dates("iso_year", lambda moment: moment.isocalendar().year),
    FunctionMeaning(
        "dt.date",
        _dated,
        fixed(pa.date32()),
        date,
        lambda _, c: c.dt.date(),
        pa.timestamp("us"),
    ),
    FunctionMeaning(
        "dt.epoch",
        _dated,
        fixed(pa.int64()),
        epoch,
        lambda d, c: c.dt.epoch(d.choice(["ns", *MICROSECONDS])),
        pa.timestamp("us"),
    ),
)
