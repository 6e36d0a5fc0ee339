"""Functions of dates and times use local time for timestamps with a time zone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import Function, Kinds, Params, always, of_one
from dml.kernels.functions.zones import DAY, PER_SECOND, local, utc, zone, zoned


def _is_dated(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _is_timed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_time(kind) or pa.types.is_timestamp(kind))


DATED = Kinds("dates or timestamps", _is_dated, pa.timestamp("us"))
TIMED = Kinds("timestamps or times of day", _is_timed, pa.timestamp("us"))


def _in_local_time(function: str, **options: Any) -> Callable[[pa.Array], pa.Array]:
    """Make a function that applies pyarrow.compute's ``function`` to local times of timestamps."""
    return lambda moment: getattr(compute(), function)(local(moment), **options)


def _millisecond(moment: pa.Array) -> pa.Array:
    return compute().millisecond(utc(moment))


def _microsecond(moment: pa.Array) -> pa.Array:
    pc = compute()
    return pc.add(pc.multiply(_millisecond(moment), 1000), pc.microsecond(utc(moment)))


# The parts of a moment that are numbers.
PARTS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "year": _in_local_time("year"),  # in the proleptic Gregorian calendar
    "quarter": _in_local_time("quarter"),  # 1 to 4
    "month": _in_local_time("month"),  # 1 to 12
    "day": _in_local_time("day"),  # of the month, 1 to 31
    "hour": _in_local_time("hour"),  # 0 to 23
    "minute": _in_local_time("minute"),  # 0 to 59
    "second": _in_local_time("second"),  # 0 to 59
    "millisecond": _millisecond,  # since the second began, 0 to 999
    "microsecond": _microsecond,  # since the second began, 0 to 999,999
    # of the ISO week: Monday is 1, Sunday is 7
    "weekday": _in_local_time("day_of_week", count_from_zero=False, week_start=1),
    "ordinal_day": _in_local_time("day_of_year"),  # 1 to 366
    "week": _in_local_time("iso_week"),  # 1 to 53; the first has the year's first Thursday
    "iso_year": _in_local_time("iso_year"),  # that the ISO week belongs to
}


def date(moment: pa.Array) -> pa.Array:
    """Return the day of each moment in local time, as a date."""
    return local(moment).cast(pa.date32())


def epoch(moment: pa.Array, unit: str) -> pa.Array:
    """Return whole units since 1970-01-01 in UTC, rounded down; null beyond 64 bits."""
    kind = moment.type
    ticks = np.frombuffer(moment.buffers()[1] or b"", f"i{kind.bit_width // 8}")
    ticks = ticks[moment.offset : moment.offset + len(moment)].astype("i8")
    absent = ~moment.is_valid().to_numpy(zero_copy_only=False)
    up, down = _ratio(kind, unit)
    beyond = (ticks > (2**63 - 1) // up) | (ticks < -(2**63 // up))
    return pa.array(ticks * np.where(beyond, 0, up) // down, mask=absent | beyond)


def _ratio(kind: pa.DataType, unit: str) -> tuple[int, int]:
    """Return the factor and the divisor that convert ticks of ``kind``; one of them is 1."""
    seconds = {pa.date32(): (DAY, 1), pa.date64(): (1, 1000)}
    tick = seconds[kind] if pa.types.is_date(kind) else (1, PER_SECOND[kind.unit])
    wanted = (DAY, 1) if unit == "d" else (1, PER_SECOND[unit])
    up, down = tick[0] * wanted[1], tick[1] * wanted[0]
    common = int(np.gcd(up, down))
    return up // common, down // common


def clocked(name: str, takes: Kinds, kind: pa.DataType, run: Callable[..., pa.Array]) -> Function:
    """Make a function of local time that returns ``kind``; unknown zones raise SchemaError."""

    def gives(given: pa.DataType, _params: Params) -> pa.DataType:
        if zoned(given):
            zone(given.tz)
        return kind

    return Function(name, takes, gives, of_one(run), version=2)


NUMBER = always(pa.int64())
OF_DATES = ("year", "quarter", "month", "day", "weekday", "ordinal_day", "week", "iso_year")

FUNCTIONS = (
    *(clocked(f"dt.{name}", DATED, pa.int64(), PARTS[name]) for name in OF_DATES),
    *(
        clocked(f"dt.{name}", TIMED, pa.int64(), PARTS[name])
        for name in ("hour", "minute", "second")
    ),
    Function("dt.millisecond", TIMED, NUMBER, of_one(_millisecond)),
    Function("dt.microsecond", TIMED, NUMBER, of_one(_microsecond)),
    clocked("dt.date", DATED, pa.date32(), date),
    Function("dt.epoch", DATED, NUMBER, of_one(epoch)),
)
