"""Row-group statistics decide whether any row of a row group can pass a predicate.

A wrong "no" loses rows, a wrong "yes" only costs time, so the answer is yes unless "no" is proven.
Used are bounds and null counts of flat columns of integers, floats, booleans, strings, binary and
days. Not used are bounds that are NaN, statistics for ``!=`` and negated comparisons of floats
(they exclude NaN), and those of decimals, timestamps and nested columns.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dml.data.schema import code_of
from dml.expr.columns.value import Value
from dml.io.parquet.chunk_metadata import Bounds

LOGIC = {"and": "and", "bit_and": "and", "or": "or", "bit_or": "or", "not": "not", "bit_not": "not"}
NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}

# The condition on bounds under which a row can pass: (low, high, literal) -> bool.
PASSES: dict[str, Callable[[Any, Any, Any], bool]] = {
    "eq": lambda low, high, x: low <= x <= high,
    "ne": lambda low, high, x: not low == x == high,
    "lt": lambda low, _, x: low < x,
    "le": lambda low, _, x: low <= x,
    "gt": lambda _, high, x: high > x,
    "ge": lambda _, high, x: high >= x,
}


class Facts(NamedTuple):
    """Statistics of one column in one row group; ``low`` and ``high`` are None if unknown.

    ``family`` is the Python type that defines the order of the bounds, None if no bounds are
    trusted.
    """

    family: type | None
    low: Any
    high: Any
    nulls: int | None
    rows: int


# Types of literals without a declared type, by the family of the bounds.
NATURAL: dict[type | None, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
}
EPOCH = dt.date(1970, 1, 1)
UNKNOWN = Facts(None, None, None, None, 1)


def exactly(value: Any, kind: pa.DataType) -> Facts:
    """Return the facts of a column of type ``kind`` that has one value in all rows."""
    return Facts(_family(kind), value, value, int(value is None), 1)


def facts_of(found: Bounds, kind: pa.DataType, rows: int) -> Facts:
    """Return the facts of a flat column of type ``kind`` from the statistics of its chunk."""
    family = _family(kind)
    low, high = (None, None) if family is None else _decoded(found, family, kind)
    return Facts(family, low, high, found.nulls, rows)


def _family(kind: pa.DataType) -> type | None:
    code = code_of(kind)[0] if code_of(kind) != "arrow" else ""
    if code:
        return {"b": bool, "i": int, "u": int, "f": float}[code]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes
    return dt.date if pa.types.is_date32(kind) else None


def is_signed(kind: pa.DataType) -> bool:
    """Return True if values of this type are stored as numbers ordered by their sign."""
    family = _family(kind)
    return family in (bool, float, dt.date) or (family is int and code_of(kind)[0] == "i")


def _decoded(found: Bounds, family: type, kind: pa.DataType) -> tuple[Any, Any]:
    """Decode the minimum and maximum; None, None unless both are valid and in order."""
    if found.low is None or found.high is None:
        return None, None
    decode = DECODED[family]
    try:
        low, high = (decode(bound, kind) for bound in (found.low, found.high))
    # wrong lengths, text cut inside a character, days beyond datetime
    except (ValueError, OverflowError, struct.error):
        return None, None
    return (low, high) if low <= high else (None, None)


def _number(bound: bytes, kind: pa.DataType) -> int:
    """Decode an integer of four or eight bytes."""
    if len(bound) not in (4, 8):
        raise ValueError(bound)
    return int.from_bytes(bound, "little", signed=is_signed(kind))


def _float(bound: bytes, _: pa.DataType) -> float:
    """Decode a float of single or double precision."""
    return float(struct.unpack("<f" if len(bound) == 4 else "<d", bound)[0])


# How bounds are stored: PLAIN encoding without the length (parquet-format, "Statistics").
DECODED: dict[type, Callable[[bytes, pa.DataType], Any]] = {
    bool: lambda bound, _: struct.unpack("<?", bound)[0],
    int: _number,
    float: _float,
    str: lambda bound, _: bound.decode(),
    bytes: lambda bound, _: bound,
    dt.date: lambda bound, _: EPOCH + dt.timedelta(struct.unpack("<i", bound)[0]),
}


def may_match(predicate: tuple[Value, ...], facts: Callable[[str], Facts]) -> bool:
    """Return False only if no row can make all of ``predicate`` true."""
    return all(_may_be(part, facts, wanted=True) for part in predicate)


def _may_be(value: Value, facts: Callable[[str], Facts], *, wanted: bool) -> bool:
    """Return False only if no row gives ``value`` the truth value ``wanted``; null is neither."""
    op = LOGIC.get(value.op, value.op)
    if op == "not":
        return _may_be(value.args[0], facts, wanted=not wanted)
    if op in ("and", "or"):
        parts = (_may_be(arg, facts, wanted=wanted) for arg in value.args)
        return all(parts) if (op == "and") == wanted else any(parts)
    if op == "lit":
        return value.params[0] is wanted or not isinstance(value.params[0], bool | None)
    if op == "is_null" and value.args[0].op == "col":
        return _may_be_null(facts(value.args[0].params[0]), wanted=wanted)
    if op == "is_in" and value.args[0].op == "col" and wanted:
        known = facts(value.args[0].params[0])
        return any(_may_compare("eq", known, item) for item in value.params)
    if op == "col":
        return _may_compare("eq", facts(value.params[0]), wanted)
    return op not in PASSES or _may_hold(value, facts, wanted=wanted)


def _may_be_null(known: Facts, *, wanted: bool) -> bool:
    if known.nulls is None:
        return True
    return known.nulls > 0 if wanted else known.nulls < known.rows


def _may_hold(value: Value, facts: Callable[[str], Facts], *, wanted: bool) -> bool:
    """Return False only if a comparison of a column with a literal is ``wanted`` for no row."""
    op, (left, right) = value.op, value.args
    if left.op == "lit":
        op, left, right = MIRRORED[op], right, left
    if left.op != "col" or right.op != "lit":
        return True
    known = facts(left.params[0])
    if right.params[1] is not None and right.params[1] != NATURAL.get(known.family):
        return True  # a literal of declared type is converted before it is compared
    if not wanted:
        if known.family not in (bool, int, str, bytes, dt.date):
            return True
        op = NEGATED[op]
    return _may_compare(op, known, right.params[0])


def _may_compare(op: str, known: Facts, literal: Any) -> bool:
    """Return False only if ``column op literal`` is true for no row."""
    if literal is None:
        return False
    if known.nulls is not None and known.nulls == known.rows:
        return False
    if known.family is None or known.low is None or (op == "ne" and known.family is float):
        return True
    passes = PASSES[op]
    readings = _readings(known, literal)
    return not readings or any(passes(*reading) for reading in readings)


def _readings(known: Facts, literal: Any) -> list[tuple[Any, Any, Any]]:
    """Return bounds and literal in each type they may be promoted to; [] if incomparable.

    Rounding preserves order, so bounds hold for rounded values. The type in which the values are
    compared is unknown here, so a row group is skipped only if all candidate types agree.
    """
    low, high = known.low, known.high
    if type(literal) is known.family and known.family not in (int, float):
        return [(low, high, literal)]
    if known.family not in (int, float) or type(literal) not in (int, float):
        return []
    if isinstance(literal, float) and not math.isfinite(literal):
        return []
    try:
        as_double = tuple(map(float, (low, high, literal)))
    except OverflowError:
        return []
    with np.errstate(over="ignore"):
        as_single = tuple(float(np.float32(x)) for x in as_double)
    return [(low, high, literal), as_double, as_single]
