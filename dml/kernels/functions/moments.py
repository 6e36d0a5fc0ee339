"""Functions of dates and times use local time for timestamps with a time zone."""

from __future__ import annotations

from collections.abc import Callable

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


def year(moment: pa.Array) -> pa.Array:
    """The year, in the proleptic Gregorian calendar."""
    return compute().year(local(moment))


def quarter(moment: pa.Array) -> pa.Array:
    """The quarter of the year, 1 to 4."""
    return compute().quarter(local(moment))


def month(moment: pa.Array) -> pa.Array:
    """The month, 1 to 12."""
    return compute().month(local(moment))


def day(moment: pa.Array) -> pa.Array:
    """The day of the month, 1 to 31."""
    return compute().day(local(moment))


def hour(moment: pa.Array) -> pa.Array:
    """The hour, 0 to 23."""
    return compute().hour(local(moment))


def minute(moment: pa.Array) -> pa.Array:
    """The minute, 0 to 59."""
    return compute().minute(local(moment))


def second(moment: pa.Array) -> pa.Array:
    """The second, 0 to 59."""
    return compute().second(local(moment))


def millisecond(moment: pa.Array) -> pa.Array:
    """The milliseconds since the second began, 0 to 999."""
    return compute().millisecond(utc(moment))


def microsecond(moment: pa.Array) -> pa.Array:
    """The microseconds since the second began, 0 to 999,999."""
    pc = compute()
    whole = pc.multiply(millisecond(moment), 1000)
    return pc.add(whole, pc.microsecond(utc(moment)))


def weekday(moment: pa.Array) -> pa.Array:
    """The day of the ISO week: Monday is 1, Sunday is 7."""
    return compute().day_of_week(local(moment), count_from_zero=False, week_start=1)


def ordinal_day(moment: pa.Array) -> pa.Array:
    """The day of the year, 1 to 366."""
    return compute().day_of_year(local(moment))


def week(moment: pa.Array) -> pa.Array:
    """The ISO week, 1 to 53; the first has the year's first Thursday."""
    return compute().iso_week(local(moment))


def iso_year(moment: pa.Array) -> pa.Array:
    """The year that the ISO week belongs to."""
    return compute().iso_year(local(moment))


def date(moment: pa.Array) -> pa.Array:
    """The day as a date."""
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
    """Make a function of local time with result ``kind``; SchemaError for an unknown time zone."""

    def gives(given: pa.DataType, _params: Params) -> pa.DataType:
        if zoned(given):
            zone(given.tz)
        return kind

    return Function(name, takes, gives, of_one(run), version=2)


NUMBER = always(pa.int64())

FUNCTIONS = (
    clocked("dt.year", DATED, pa.int64(), year),
    clocked("dt.quarter", DATED, pa.int64(), quarter),
    clocked("dt.month", DATED, pa.int64(), month),
    clocked("dt.day", DATED, pa.int64(), day),
    clocked("dt.hour", TIMED, pa.int64(), hour),
    clocked("dt.minute", TIMED, pa.int64(), minute),
    clocked("dt.second", TIMED, pa.int64(), second),
    Function("dt.millisecond", TIMED, NUMBER, of_one(millisecond)),
    Function("dt.microsecond", TIMED, NUMBER, of_one(microsecond)),
    clocked("dt.weekday", DATED, pa.int64(), weekday),
    clocked("dt.ordinal_day", DATED, pa.int64(), ordinal_day),
    clocked("dt.week", DATED, pa.int64(), week),
    clocked("dt.iso_year", DATED, pa.int64(), iso_year),
    clocked("dt.date", DATED, pa.date32(), date),
    Function("dt.epoch", DATED, NUMBER, of_one(epoch)),
)
