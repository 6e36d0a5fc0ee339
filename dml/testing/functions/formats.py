"""The oracle parses and formats numbers, dates and times in plain Python."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.errors import SchemaError
from dml.expr.columns.column import Column
from dml.testing.functions.meaning import TEXT, Draw, FunctionMeaning, Params, fixed
from dml.testing.scalars.operations import CastFailed

SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
MONTHS = {"mo": 1, "q": 3, "y": 12}
FORMATS = ("%Y-%m-%d", "%d.%m.%Y %H:%M", "%H%%%S", "%Y%m%dT%H%M%S.%f", "%m")
USUAL = {"%Y": 1970, "%m": 1, "%d": 1, "%H": 0, "%M": 0, "%S": 0, "%f": 0}
WIDTHS = {"%Y": 4, "%f": 6}


def _or_fail(found: Any, text: str, *, strict: bool) -> Any:
    if found is None and strict:
        raise CastFailed(f"{text!r} does not fit")
    return found


def integer(text: str, strict: bool) -> Any:  # noqa: FBT001 - a parameter
    """Parse ASCII digits as a signed 64-bit integer."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    good = bool(digits) and all(c in "0123456789" for c in digits)
    found = int(text) if good and -(2**63) <= int(text) < 2**63 else None
    return _or_fail(found, text, strict=strict)


def real(text: str, strict: bool) -> Any:  # noqa: FBT001 - a parameter
    """Parse a float as Python does, but refuse white space, underscores and non-ASCII digits."""
    odd = "_" in text or not text.isascii() or text != text.strip()
    try:
        found = None if odd else float(text)
    except ValueError:
        found = None
    return _or_fail(found, text, strict=strict)


def moment(text: str, form: str, strict: bool) -> Any:  # noqa: FBT001 - a parameter
    """Parse a datetime, directive by directive; the text must be a valid datetime."""
    found, rest, fits = dict(USUAL), text, True
    for part in re.findall("%.|[^%]+", form):
        said = part.replace("%%", "%")
        size = WIDTHS.get(part, 2) if part in USUAL else len(said)
        piece, rest = rest[:size], rest[size:]
        if part in USUAL:
            fits = fits and len(piece) == size and all(c in "0123456789" for c in piece)
            found[part] = int(piece) if fits else 0
        else:
            fits = fits and piece == said
    try:
        year, *others = found.values()
        made = dt.datetime(year, *others) if fits and not rest else None  # type: ignore[arg-type]
    except ValueError:
        made = None
    return _or_fail(made, text, strict=strict)


def date(text: str, form: str, strict: bool) -> Any:  # noqa: FBT001 - a parameter
    """Parse a date with ``moment``."""
    found = moment(text, form, strict)
    return None if found is None else found.date()


def written(when: dt.date, form: str) -> str:
    """Format a date or time, directive by directive."""
    time = when if isinstance(when, dt.datetime) else dt.datetime(when.year, when.month, when.day)
    digits = {
        "%Y": f"{time.year:04}", "%m": f"{time.month:02}", "%d": f"{time.day:02}",
        "%H": f"{time.hour:02}", "%M": f"{time.minute:02}", "%S": f"{time.second:02}",
        "%f": f"{time.microsecond:06}", "%%": "%",
    }  # fmt: skip
    return re.sub("%.", lambda part: digits[part[0]], form)


def truncated(when: dt.date, count: int, unit: str) -> dt.date:
    """Return the start of the span: months are whole, other units count from 1970 or a Monday."""
    whole = not isinstance(when, dt.datetime)
    if unit in MONTHS:
        size = count * MONTHS[unit]
        month = ((when.year - 1970) * 12 + when.month - 1) // size * size
        first = dt.datetime(1970 + month // 12, month % 12 + 1, 1)
    else:
        start = dt.datetime(1970, 1, 5 if unit == "w" else 1)
        time = dt.datetime(when.year, when.month, when.day) if whole else when
        span = dt.timedelta(seconds=count * SECONDS[unit])
        first = start + (time - start) // span * span
    return first.date() if whole else first


def _dated(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _local(kind: pa.DataType) -> bool:
    return kind == pa.date32() or (pa.types.is_timestamp(kind) and kind.tz is None)


def _span(kind: pa.DataType, params: Params) -> pa.DataType:
    count, unit = params
    if kind == pa.date32() and unit not in MONTHS and count * SECONDS[unit] % 86_400:
        raise SchemaError(f"{unit} of days")
    return kind


def _parsed(
    name: str, kind: pa.DataType, means: Callable[..., Any], drawn: Callable[[Draw, Column], Column]
) -> FunctionMeaning:
    return FunctionMeaning(
        f"str.{name}", lambda k: k in TEXT, fixed(kind), means, drawn, pa.string()
    )


def _formatted(draw: Draw, c: Column, method: str) -> Column:
    """Parse text in a random format, which need not be the format of the text."""
    form = draw.choice(FORMATS)
    made: Column = getattr(c.str, method)(form, strict=draw.random() < 0.05)
    return made


MEANINGS = (
    _parsed(
        "to_integer", pa.int64(), integer, lambda d, c: c.str.to_integer(strict=d.random() < 0.05)
    ),
    _parsed("to_float", pa.float64(), real, lambda d, c: c.str.to_float(strict=d.random() < 0.05)),
    _parsed(
        "to_datetime",
        pa.timestamp("us"),
        moment,
        lambda d, c: _formatted(d, c, "to_datetime"),
    ),
    _parsed("to_date", pa.date32(), date, lambda d, c: _formatted(d, c, "to_date")),
    FunctionMeaning(
        "dt.truncate",
        _local,
        _span,
        truncated,
        lambda d, c: c.dt.truncate(d.choice(["7h", "1d", "2w", "1mo", "5mo", "1q", "3y", "90m"])),
        pa.timestamp("us"),
    ),
    FunctionMeaning(
        "dt.strftime",
        _dated,
        fixed(pa.string()),
        written,
        lambda d, c: c.dt.strftime(d.choice(FORMATS)),
        pa.timestamp("us"),
    ),
)
