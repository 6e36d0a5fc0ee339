"""This file holds ``col("x").dt``: functions of dates and times, named as Polars names them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dml.errors import PlanError
from dml.expr.doors import door
from dml.expr.namespaces.namespace import Namespace, a_format
from dml.kernels.functions.formats import MONTHS, SPANS

if TYPE_CHECKING:
    from dml.expr.column import Column

SPAN = re.compile("([1-9][0-9]{0,5})([a-z]+)")
UNITS = ("ns", "us", "ms", "s", "d")


class Moments(Namespace):
    """Functions of a column of dates or times, int64 but for ``date``; null gives null.

    Of a timestamp with a time zone they are those of its local time; ``epoch`` counts in UTC.
    """

    __slots__ = ()

    def year(self) -> Column:
        """The year."""
        return self._made("dt.year")

    def quarter(self) -> Column:
        """The quarter, 1 to 4."""
        return self._made("dt.quarter")

    def month(self) -> Column:
        """The month, 1 to 12."""
        return self._made("dt.month")

    def day(self) -> Column:
        """The day of the month, 1 to 31."""
        return self._made("dt.day")

    def hour(self) -> Column:
        """The hour, 0 to 23."""
        return self._made("dt.hour")

    def minute(self) -> Column:
        """The minute, 0 to 59."""
        return self._made("dt.minute")

    def second(self) -> Column:
        """The second, 0 to 59."""
        return self._made("dt.second")

    def millisecond(self) -> Column:
        """Milliseconds since the second began, 0 to 999."""
        return self._made("dt.millisecond")

    def microsecond(self) -> Column:
        """Microseconds since the second began, 0 to 999,999."""
        return self._made("dt.microsecond")

    def weekday(self) -> Column:
        """The day of the week as ISO 8601 counts: Monday is 1, Sunday 7."""
        return self._made("dt.weekday")

    def ordinal_day(self) -> Column:
        """The day of the year, 1 to 366."""
        return self._made("dt.ordinal_day")

    def week(self) -> Column:
        """The ISO week, 1 to 53; the first is the one with the year's first Thursday."""
        return self._made("dt.week")

    def iso_year(self) -> Column:
        """The year that the ISO week belongs to."""
        return self._made("dt.iso_year")

    def date(self) -> Column:
        """The day, as date32."""
        return self._made("dt.date")

    def century(self) -> Column:
        """``(year() + 99) // 100``: 1901 to 2000 are the 20th."""
        return (self.year() + 99) // 100

    def millennium(self) -> Column:
        """``(year() + 999) // 1000``: 1001 to 2000 are the second."""
        return (self.year() + 999) // 1000

    def is_leap_year(self) -> Column:
        """Whether the year has 366 days."""
        year = self.year()
        return (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))

    @door
    def truncate(self, every: str) -> Column:
        """The start of the span that the moment is in: "15m", "1h", "1d", "1w", "1mo", "1y" ...

        Spans are counted from 1970-01-01, weeks from Monday 1970-01-05; units are us, ms, s, m, h,
        d, w, mo, q and y. Without a time zone; the type stays.
        """
        found = SPAN.fullmatch(str(every))
        if found is None or found[2] not in {**SPANS, **MONTHS}:
            raise PlanError(
                f"{every!r} is no span of time",
                why=f"it is a number and one of {', '.join({**SPANS, **MONTHS})}",
                try_='.dt.truncate("1h")',
            )
        return self._made("dt.truncate", int(found[1]), found[2])

    @door
    def strftime(self, format: str) -> Column:
        """The moment in that format, as text: %Y, %m, %d, %H, %M, %S, %f and %%."""
        return self._made("dt.strftime", a_format(format, once=False))

    to_string = strftime

    @door
    def epoch(self, time_unit: str = "us") -> Column:
        """Whole units since 1970-01-01 in UTC, rounded down; null where int64 cannot hold them."""
        if time_unit not in UNITS:
            raise PlanError(
                f"{time_unit!r} is no unit of time that dt.epoch counts",
                why=f"it counts in {', '.join(UNITS)}",
                try_='.dt.epoch("s")',
            )
        return self._made("dt.epoch", time_unit)

    timestamp = epoch
