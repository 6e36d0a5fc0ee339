"""Local times of time zones are computed from Python's ``zoneinfo``.

Arrow's time zone arithmetic has no summer time after 2037 and no seconds in offsets, so dml does
not use it. The offset changes of a zone are read from ``zoneinfo`` once.
"""

from __future__ import annotations

import datetime as dt
import importlib
import re
from bisect import bisect_left
from functools import cache

import numpy as np
import pyarrow as pa

from dml.errors import SchemaError
from dml.kernels.arrow_ops import compute

# Ticks per second by the unit that users write, and seconds of a day.
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY = 86_400
EPOCH, SECOND = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.timedelta(seconds=1)
FIXED = re.compile("([+-])([01][0-9]|2[0-3]):?([0-5][0-9])")
# No zone had a second offset before 1800. From 2200 on, offsets follow a rule and repeat with the
# calendar, including weekdays, every 400 years.
EARLIEST, LATEST, CYCLE = -5_364_662_400, 7_258_118_400, 146_097 * DAY


def zoned(kind: pa.DataType) -> bool:
    """Return True for timestamps with a time zone."""
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


@cache
def zone(name: str) -> dt.tzinfo:
    """Return the time zone of a name or of an offset, as +05:30; raise SchemaError if unknown.

    ``zoneinfo`` is imported by the first column that needs it, in 3 ms.
    """
    if found := FIXED.fullmatch(name):
        ahead = dt.timedelta(hours=int(found[2]), minutes=int(found[3]))
        return dt.timezone(-ahead if found[1] == "-" else ahead)
    try:
        named: dt.tzinfo = importlib.import_module("zoneinfo").ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise SchemaError(
            f"there is no time zone {name!r}",
            why=f"zoneinfo, which reads this machine's time zones, says: {error}",
            try_='one of zoneinfo.available_timezones(), an offset such as "+05:30", or'
            " pip install tzdata",
        ) from None
    return named


def in_python(moment: pa.Array) -> pa.Array:
    """Spell the zone in an array's type as Python does; raise SchemaError if it is unknown."""
    if not zoned(moment.type):
        return moment
    zone(moment.type.tz)
    spelled = FIXED.sub(r"\1\2:\3", moment.type.tz)
    return moment.view(pa.timestamp(moment.type.unit, spelled))


def utc(moment: pa.Array) -> pa.Array:
    """Convert timestamps of a zone to UTC without a zone; other values are unchanged."""
    return moment.view(pa.timestamp(moment.type.unit)) if zoned(moment.type) else moment


def local(moment: pa.Array) -> pa.Array:
    """Convert to local time, in whole seconds; values without a time zone are unchanged."""
    if not zoned(moment.type):
        return moment
    seconds = _ticks(moment) // PER_SECOND[moment.type.unit]
    return _like(moment, seconds + offsets(seconds, moment.type.tz), "s")


def text(moment: pa.Array) -> pa.Array:
    """Format timestamps of a zone as text of the same instants: local time and offset.

    Text has no seconds in offsets: if a zone had some, the offset is rounded to a whole minute, and
    the time is the local time at the rounded offset (RFC 3339, 5.8).
    """
    kind, ticks = moment.type, _ticks(moment)
    minute = 60 * PER_SECOND[kind.unit]
    minutes = (offsets(ticks // PER_SECOND[kind.unit], kind.tz) + 30) // 60
    minutes[abs(ticks // minute) >= (2**63 - 1) // minute - DAY // 60] = 0  # sums might overflow
    shown = _like(moment, ticks + minutes * minute, kind.unit).cast(pa.string())
    found, places = np.unique(minutes, return_inverse=True)
    written = ["Z" if kind.tz == "UTC" else _written(int(each)) for each in found]
    return compute().binary_join_element_wise(
        shown, pa.array(written, pa.string()).take(places), ""
    )


def whole_minutes(moment: dt.datetime) -> dt.datetime:
    """Return the instant ``moment`` at an offset rounded to whole minutes, as ``text`` does."""
    ahead = (moment.utcoffset() or dt.timedelta()) // SECOND
    if ahead % 60 == 0:
        return moment
    return moment.astimezone(dt.timezone(dt.timedelta(minutes=(ahead + 30) // 60)))


def offsets(seconds: np.ndarray, name: str) -> np.ndarray:
    """Return the offsets of a zone from UTC in seconds (n,) i8, at seconds since 1970 (n,)."""
    if not len(seconds):
        return seconds
    seconds, end = np.maximum(seconds, EARLIEST), LATEST
    if seconds.max() >= LATEST:
        seconds = np.where(seconds < LATEST, seconds, (seconds - LATEST) % CYCLE + LATEST)
        end = LATEST + CYCLE
    instants, ahead = _changes(name, end)
    first, last = np.searchsorted(instants, [seconds.min(), seconds.max()], side="right")
    places = np.searchsorted(instants[first:last], seconds, side="right")
    return ahead[first - 1 :].take(places)


@cache
def _changes(name: str, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return instants before ``end`` at which a zone's offset changes (k,), and the offsets (k,).

    Every day is checked, in 40 ms: in all zones an offset is valid for almost four days or longer.
    """
    there, day = zone(name), DAY * SECOND
    found = [(EARLIEST, _ahead(there, EARLIEST))]
    shown = (EPOCH + EARLIEST * SECOND).replace(tzinfo=None)
    before = there.utcoffset(shown)
    for at in range(EARLIEST + DAY, end + DAY, DAY):
        shown += day
        now = there.utcoffset(shown)
        if now != before:
            found.append(_change(there, at))
        before = now
    instants, ahead = np.array(found, "i8").T.copy()
    return instants, ahead


def _change(there: dt.tzinfo, day: int) -> tuple[int, int]:
    """Return the instant of the offset change before local time ``day``, and the new offset.

    Local time is less than a day ahead of UTC, or behind it.
    """
    days = range(day - 2 * DAY, day + DAY)
    before = _ahead(there, days[0])
    instant = days[bisect_left(days, x=True, key=lambda at: _ahead(there, at) != before)]
    return instant, _ahead(there, instant)


def _ahead(there: dt.tzinfo, at: int) -> int:
    shown = (EPOCH + at * SECOND).astimezone(there).replace(tzinfo=dt.UTC)
    return (shown - EPOCH) // SECOND - at


def _written(minutes: int) -> str:
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"


def _ticks(moment: pa.Array) -> np.ndarray:
    """Return the stored integers, (n,) i8; unspecified where the timestamp is null."""
    found: np.ndarray = np.frombuffer(moment.buffers()[1] or b"", "i8")
    return found[moment.offset : moment.offset + len(moment)]


def _like(moment: pa.Array, ticks: np.ndarray, unit: str) -> pa.Array:
    """Make timestamps of ``ticks`` in ``unit``, without a zone, null where ``moment`` is null."""
    absent = moment.is_null().to_numpy(zero_copy_only=False) if moment.null_count else None
    return pa.array(ticks, mask=absent).view(pa.timestamp(unit))
