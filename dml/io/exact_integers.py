"""Integers written as text stay exact: their types are inferred, and rounded values are detected.

Arrow parses integers beyond int64 as float64, which silently changes their digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.io.files.lines import RowError
from dml.kernels.arrow_ops import compute

# Floats from the first size on may be rounded integers; from the second on, integers beyond int64.
ROUNDED, BEYOND = float(1 << 53), float(1 << 63)
# Every integer of at most so many digits is exact in float64.
EXACT_DIGITS = 15
ZERO, NINE, POINT = b"09."
FRACTION = [*b".eE"]  # the character after the digits of a non-integer
WHOLE = re.compile(r"[+-]?[0-9]+")
# Digits of the largest decimals; Arrow parses only the first kind (decimal128) in CSV.
DIGITS, MOST_DIGITS = 38, 76
SHOWN_DIGITS = 40
TRY_FLOATS = "schema={{...}} with float64 for {name!r}, where rounded numbers will do"
TRY_TEXT = "schema={{...}} with string for {name!r} in CSV; the number in quotes in JSON"


class Number(str):
    """The text of a number as written in the file."""

    __slots__ = ()


def reaches(array: pa.Array | pa.ChunkedArray, limit: float) -> bool:
    """Return True if a float in ``array``, at any depth, has magnitude ``limit`` or more."""
    if type(array.type) is pa.DataType and not pa.types.is_floating(array.type):
        return False
    if isinstance(array, pa.ChunkedArray):
        return any(reaches(chunk, limit) for chunk in array.chunks)
    types, kind = pa.types, array.type
    if types.is_struct(kind):
        return any(reaches(part, limit) for part in array.flatten())
    if is_list(kind):
        return reaches(array.flatten(), limit)
    if not types.is_floating(kind):
        return False
    found = compute().min_max(array).as_py().values()
    return any(value is not None and abs(value) >= limit for value in found)


def long_integers(data: bytes) -> np.ndarray:
    """Return the end offsets of integers in ``data`` that may be inexact in float64."""
    stored = np.frombuffer(b"\n%b\n" % data, np.uint8)
    others = np.flatnonzero((stored < ZERO) | (stored > NINE))
    places = np.flatnonzero(np.diff(others) > EXACT_DIGITS)
    before, after = others[places], others[places + 1]
    ends: np.ndarray = after[(stored[before] != POINT) & ~np.isin(stored[after], FRACTION)] - 1
    return ends


def holding(name: str, spelled: Sequence[str], digits: int) -> pa.DataType | None:
    """Return the type that represents all integers ``spelled``; None if one is not an integer.

    None is also returned for a plus sign and for no texts. The type is int64, else uint64, else a
    decimal. Raise RowError for an integer of more than ``digits`` digits.
    """
    if not spelled or any(text[0] == "+" or not WHOLE.fullmatch(text) for text in spelled):
        return None
    longest = max(spelled, key=lambda text: len(text.lstrip("-0")))
    if len(longest.lstrip("-0")) > digits:
        why = f"column {name!r}: {_shorten(longest)} is an integer of more than {digits} digits"
        raise RowError(why, try_=TRY_TEXT.format(name=name))
    numbers = [Decimal(text) for text in spelled]
    low, high = min(numbers), max(numbers)
    if low >= -(1 << 63) and high < 1 << 63:
        return pa.int64()
    if low >= 0 and high < 1 << 64:
        return pa.uint64()
    small = len(longest.lstrip("-0")) <= DIGITS
    return pa.decimal128(DIGITS, 0) if small else pa.decimal256(MOST_DIGITS, 0)


def check_kept(name: str, rows: Iterable[tuple[int, Any, Any]], *, declared: bool) -> None:
    """Raise RowError for the first row of column ``name`` whose float changed a written number.

    ``rows`` are (row number, written value, stored value). If the user ``declared`` the type, a
    float may be a rounded integer, but not infinite; else integers must be stored exactly.
    """
    for row, given, stored in rows:
        if number := _lost(given, stored, declared=declared):
            beyond = declared or float(number) in (math.inf, -math.inf)
            why = "is beyond them" if beyond else "is none of them"
            try_ = (TRY_TEXT if beyond else TRY_FLOATS).format(name=name)
            raise RowError(f"column {name!r} has floats, and {_shorten(number)} {why}", row, try_)


def _lost(given: Any, stored: Any, *, declared: bool) -> str:
    """Return the text of the first number in ``given`` that ``stored`` changed, "" for none."""
    pairs: Iterable[tuple[Any, Any]]
    match stored:
        case float():
            return given if isinstance(given, Number) and _is_lost(given, stored, declared) else ""
        case list():
            pairs = zip(given, stored, strict=True)
        case dict():
            pairs = ((given.get(name), value) for name, value in stored.items())
        case _:
            return ""
    return next(filter(None, (_lost(*pair, declared=declared) for pair in pairs)), "")


def _is_lost(given: str, stored: float, declared: bool) -> bool:  # noqa: FBT001
    if math.isinf(stored):
        return any(letter.isdigit() for letter in given)
    return not declared and bool(WHOLE.fullmatch(given)) and Decimal(given) != Decimal(stored)


def _shorten(number: str) -> str:
    few = len(number) <= SHOWN_DIGITS
    return number if few else f"{number[: SHOWN_DIGITS // 2]}... ({len(number)} characters)"
