"""``col("x").dt`` has functions of dates and times, with the names that Polars uses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.namespaces.namespace import Namespace, a_format
from dml.expr.columns.value import C
from dml.kernels.functions.formats import MONTHS, SPANS

SPAN = re.compile("([1-9][0-9]{0,5})([a-z]+)")
UNITS = ("ns", "us", "ms", "s", "d")


def _field(name: str, doc: str) -> Callable[[Namespace[C]], C]:
    """Return the method of the function ``dt.name``, which has no parameters."""

    def method(self: Namespace[C]) -> C:
        return self._apply(f"dt.{name}")

    method.__name__, method.__qualname__, method.__doc__ = name, f"Moments.{name}", doc
    return method


class Moments(Namespace[C]):
    """Functions of a column of dates or times; most return int64, and null for null.

    Fields of a timestamp with a time zone are those of its local time; ``epoch`` counts in UTC.
    """

    __slots__ = ()
    _title, _place = ".dt", "dt"

    year = _field("year", "Return the year.")
    quarter = _field("quarter", "Return the quarter, 1 to 4.")
    month = _field("month", "Return the month, 1 to 12.")
    day = _field("day", "Return the day of the month, 1 to 31.")
    hour = _field("hour", "Return the hour, 0 to 23.")
    minute = _field("minute", "Return the minute, 0 to 59.")
    second = _field("second", "Return the second, 0 to 59.")
    millisecond = _field("millisecond", "Return the milliseconds since the second began, 0 to 999.")
    microsecond = _field(
        "microsecond", "Return the microseconds since the second began, 0 to 999,999."
    )
    weekday = _field("weekday", "Return the day of the week as in ISO 8601: Monday is 1, Sunday 7.")
    ordinal_day = _field("ordinal_day", "Return the day of the year, 1 to 366.")
    week = _field(
        "week",
        "Return the ISO week, 1 to 53; week 1 is the week with the year's first Thursday.",
    )
    iso_year = _field("iso_year", "Return the year to which the ISO week belongs.")
    date = _field("date", "Return the day, as date32.")

    def century(self) -> C:
        """Return ``(year() + 99) // 100``: 1901 to 2000 are the 20th."""
        year: Any = self.year()
        made: C = (year + 99) // 100
        return made

    def millennium(self) -> C:
        """Return ``(year() + 999) // 1000``: 1001 to 2000 are the second."""
        year: Any = self.year()
        made: C = (year + 999) // 1000
        return made

    def is_leap_year(self) -> C:
        """Return True if the year has 366 days."""
        year: Any = self.year()
        made: C = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
        return made

    @door
    def truncate(self, every: str) -> C:
        """Return the start of the span that the time is in: "15m", "1h", "1d", "1w", "1mo", "1y".

        Spans are counted from 1970-01-01, weeks from Monday 1970-01-05; units are us, ms, s, m, h,
        d, w, mo, q and y. The column has no time zone, and its type does not change.
        """
        found = SPAN.fullmatch(str(every))
        if found is None or found[2] not in {**SPANS, **MONTHS}:
            raise PlanError(
                f"{every!r} is no span of time",
                why=f"it is a number and one of {', '.join({**SPANS, **MONTHS})}",
                try_='.dt.truncate("1h")',
            )
        return self._apply("dt.truncate", int(found[1]), found[2])

    @door
    def strftime(self, format: str) -> C:
        """Format the time as text, with the directives %Y, %m, %d, %H, %M, %S, %f and %%."""
        return self._apply("dt.strftime", a_format(format, once=False))

    to_string = strftime

    @door
    def epoch(self, time_unit: str = "us") -> C:
        """Return whole units since 1970-01-01 in UTC, rounded down; null where int64 overflows."""
        if time_unit not in UNITS:
            raise PlanError(
                f"{time_unit!r} is no unit of time that dt.epoch counts",
                why=f"it counts in {', '.join(UNITS)}",
                try_='.dt.epoch("s")',
            )
        return self._apply("dt.epoch", time_unit)

    timestamp = epoch
