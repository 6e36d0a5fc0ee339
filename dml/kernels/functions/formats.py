r"""Text is parsed to numbers, dates and times; moments are formatted as text. No locale is used.

Formats have the directives of ``DIRECTIVES``, each with a fixed number of digits.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import SchemaError
from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import (
    TEXT,
    Function,
    Kinds,
    Params,
    RefusedFailure,
    always,
    of_one,
)
from dml.kernels.functions.moments import DATED, PARTS, clocked
from dml.kernels.functions.zones import DAY, PER_SECOND, local

# The part of a timestamp of each directive, and its number of digits.
DIRECTIVES = {
    "%Y": ("year", 4),
    "%m": ("month", 2),
    "%d": ("day", 2),
    "%H": ("hour", 2),
    "%M": ("minute", 2),
    "%S": ("second", 2),
    "%f": ("microsecond", 6),
}
# Units of time spans: in whole months, or in days as fractions.
MONTHS = {"mo": 1, "q": 3, "y": 12}
SPANS = {
    "w": (7, 1),
    "d": (1, 1),
    "h": (1, 24),
    "m": (1, 24 * 60),
    "s": (1, DAY),
    "ms": (1, DAY * 10**3),
    "us": (1, DAY * 10**6),
}
DIRECTIVE = re.compile("(%.)")
INTEGER = r"\A[+-]?[0-9]+\z"
FLOAT = r"(?i)\A[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)\z"
LEAST, MOST = -(2**63), 2**63 - 1


def pieces(form: str) -> list[str]:
    """Split a format into directives and the text between them, with ``%%`` read as ``%``."""
    return [part.replace("%%", "%") for part in DIRECTIVE.split(form) if part]


# ---------------------------------------------------------------------------------- text to values


def _refuse(array: pa.Array, bad: np.ndarray, name: str) -> None:
    """Raise RefusedFailure for the first ``bad`` text, if there is any."""
    if bad.any():
        row = int(np.argmax(bad))
        raise RefusedFailure(row, array[row].as_py(), name)


def _matching(array: pa.Array, pattern: str) -> np.ndarray:
    found = compute().match_substring_regex(array, pattern=pattern).fill_null(fill_value=False)
    return np.asarray(found.to_numpy(zero_copy_only=False))


def to_integer(array: pa.Array, strict: bool) -> pa.Array:  # noqa: FBT001 - a parameter
    """Parse digits and an optional sign as int64; other text fails if ``strict``, else is null."""
    good = _matching(array, INTEGER)
    # an int64 has at most 19 digits, but leading zeros may come before them
    values = [int(cell) if ok else 0 for cell, ok in zip(array.to_pylist(), good, strict=True)]
    good &= np.fromiter((LEAST <= v <= MOST for v in values), bool, len(values))
    kept = [v if ok else 0 for v, ok in zip(values, good, strict=True)]
    return _checked(array, pa.array(kept, pa.int64(), mask=~good), good, "str.to_integer", strict)


def to_float(array: pa.Array, strict: bool) -> pa.Array:  # noqa: FBT001 - a parameter
    """Parse decimals as the nearest float64; other text fails if ``strict``, else is null."""
    good = _matching(array, FLOAT)
    values = [float(cell) if ok else 0.0 for cell, ok in zip(array.to_pylist(), good, strict=True)]
    made = pa.array(np.array(values, "f8"), mask=~good)
    return _checked(array, made, good, "str.to_float", strict)


def _checked(
    array: pa.Array,
    made: pa.Array,
    good: np.ndarray,
    name: str,
    strict: bool,  # noqa: FBT001
) -> pa.Array:
    if strict:
        _refuse(array, ~good & array.is_valid().to_numpy(zero_copy_only=False), name)
    return made


def to_datetime(array: pa.Array, form: str, strict: bool) -> pa.Array:  # noqa: FBT001 - a parameter
    """Parse timestamps in microseconds by ``form``; absent parts are those of 1970-01-01, 0:00."""
    days, good = _days(array, form)
    parts = _parts(array, form)
    ticks = days * 86_400_000_000
    for name, size, limit in (("hour", 3_600_000_000, 24), ("minute", 60_000_000, 60)):
        good &= parts.get(name, 0) < np.int64(limit)
        ticks = ticks + parts.get(name, 0) * size
    good &= parts.get("second", 0) < np.int64(60)
    ticks = ticks + parts.get("second", 0) * 1_000_000 + parts.get("microsecond", 0)
    made = pa.array(ticks, mask=~good).cast(pa.timestamp("us"))
    return _checked(array, made, good, "str.to_datetime", strict)


def to_date(array: pa.Array, form: str, strict: bool) -> pa.Array:  # noqa: FBT001 - a parameter
    """Parse dates by the directives in ``form``; absent parts are those of 1970-01-01."""
    days, good = _days(array, form)
    made = pa.array(days.astype("i4"), mask=~good).cast(pa.date32())
    return _checked(array, made, good, "str.to_date", strict)


def _pattern(form: str) -> str:
    """Convert a format to a regular expression with a group for each directive."""
    return "".join(
        f"(?P<{DIRECTIVES[part][0]}>[0-9]{{{DIRECTIVES[part][1]}}})"
        if part in DIRECTIVES
        else re.escape(part)
        for part in pieces(form)
    )


def _parts(array: pa.Array, form: str) -> dict[str, Any]:
    """Return by part ("year") the number that its directive matched, (n,) i8; 0 for no match."""
    found = compute().extract_regex(array, pattern=rf"\A{_pattern(form)}\z")
    fields = zip((field.name for field in found.type), found.flatten(), strict=True)
    return {
        name: values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        for name, values in fields
    }


def _days(array: pa.Array, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Return days since 1970-01-01, (n,) i8, and a mask of texts that match and are valid days."""
    good = _matching(array, rf"\A{_pattern(form)}\z")
    parts = _parts(array, form)
    zero = np.zeros(len(array), "i8")
    usual = {"year": 1970, "month": 1, "day": 1}
    year, month, day = (parts.get(name, zero + value) for name, value in usual.items())
    good &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(good, (year - 1970) * 12 + month - 1, 0)
    first, after = (m.astype("M8[M]").astype("M8[D]").astype("i8") for m in (months, months + 1))
    good &= day <= after - first
    return np.where(good, first + day - 1, 0), good


# --------------------------------------------------------------------------------- moments to text


def strftime(moment: pa.Array, form: str) -> pa.Array:
    """Format moments by ``form``: digits replace its directives; years have four or more digits."""
    pc, clock = compute(), local(moment)
    if pa.types.is_date(moment.type):
        moment = clock = moment.cast(pa.timestamp("us"))
    there = pc.if_else(moment.is_valid(), pa.scalar(""), pa.scalar(None, pa.string()))
    parts = [
        _digits(moment if p == "%f" else clock, p) if p in DIRECTIVES else pa.scalar(p)
        for p in pieces(form)
    ]
    return pc.binary_join_element_wise(there, *parts, "")


def _digits(moment: pa.Array, directive: str) -> pa.Array:
    name, width = DIRECTIVES[directive]
    number = PARTS[name](moment)
    return compute().utf8_zero_fill(number.cast(pa.string()), width=width)


def truncate(moment: pa.Array, count: int, unit: str) -> pa.Array:
    """Round timestamps down to the start of their span of ``count`` units."""
    kind = moment.type
    ticks = moment.cast(pa.int32() if kind == pa.date32() else pa.int64())
    found = ticks.fill_null(0).to_numpy(zero_copy_only=False).astype("i8")
    if unit in MONTHS:
        word = "D" if kind == pa.date32() else kind.unit
        months = found.astype(f"M8[{word}]").astype("M8[M]").astype("i8")
        size = count * MONTHS[unit]
        found = (months // size * size).astype("M8[M]").astype(f"M8[{word}]").astype("i8")
    else:
        size, start = _span(kind, count, unit)
        found = (found - start) // size * size + start
    made = pa.array(found, mask=moment.is_null().to_numpy(zero_copy_only=False))
    return made.cast(ticks.type).cast(kind)


def _span(kind: pa.DataType, count: int, unit: str) -> tuple[int, int]:
    """Return the length of ``count`` units, and the start of one span, both in ticks of ``kind``.

    Spans start at 1970-01-01, those of weeks at the Monday after it.
    """
    per_day = 1 if kind == pa.date32() else DAY * PER_SECOND[kind.unit]
    top, bottom = SPANS[unit]
    if count * per_day * top % bottom:
        raise SchemaError(
            f"dt.truncate to {count}{unit} of {kind}",
            why="its moments lie further apart than that",
            try_="a longer span, or .cast(...) before",
        )
    return count * per_day * top // bottom, 4 * per_day if unit == "w" else 0


def _truncated(kind: pa.DataType, params: Params) -> pa.DataType:
    if params[1] not in MONTHS:
        _span(kind, *params)
    return kind


def _is_local(kind: pa.DataType) -> bool:
    return kind == pa.date32() or (pa.types.is_timestamp(kind) and kind.tz is None)


def _parsing(name: str, kind: pa.DataType, run: Any, why: str) -> Function:
    return Function(
        name,
        TEXT,
        always(kind),
        of_one(run),
        fails=lambda params: bool(params[-1]),
        refusal=(why, "strict=False gives null instead"),
    )


LOCAL = Kinds("dates, or timestamps without a time zone", _is_local, pa.timestamp("us"))

FUNCTIONS = (
    _parsing("str.to_integer", pa.int64(), to_integer, "it is no whole number of 64 bits"),
    _parsing("str.to_float", pa.float64(), to_float, "it is no number in decimal notation"),
    _parsing("str.to_datetime", pa.timestamp("us"), to_datetime, "the format says another text"),
    _parsing("str.to_date", pa.date32(), to_date, "the format says another text"),
    Function("dt.truncate", LOCAL, _truncated, of_one(truncate)),
    clocked("dt.strftime", DATED, pa.string(), strftime),
)
