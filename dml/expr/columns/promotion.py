"""The common type of operands is determined here: NumPy's promotion, with weak Python literals."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.schema import code_of, shape_of, short, tensor
from dml.errors import SchemaError
from dml.expr.columns.value import Value, value_text
from dml.kernels.functions.function import is_bytes, is_text

NATURAL: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    type(None): pa.null(),
    dt.datetime: pa.timestamp("us"),
    dt.date: pa.date32(),
}


# Python types of literals that numeric and boolean columns accept, by first letter of the code.
PLAIN: dict[str, tuple[type, ...]] = {
    "b": (bool,),
    "i": (int, bool),
    "u": (int, bool),
    "f": (int, float, bool),
}


@dataclasses.dataclass(frozen=True, slots=True)
class TypedRegister:
    """A register and its type; for a weak literal, its Python value, and no register yet (-1)."""

    register: int
    kind: pa.DataType
    weak: Any = None
    is_weak: bool = False


def natural(value: Any) -> pa.DataType | None:
    """Return the default type of a literal; None for a value that cannot be a literal."""
    if type(value) is dt.datetime and value.tzinfo is not None:
        return pa.timestamp("us", "UTC")
    return NATURAL.get(type(value))


def fitting(value: Any, kind: pa.DataType) -> Any:
    """Return ``value`` as a value of ``kind`` (floats are rounded), or raise SchemaError."""
    if value is None:
        return None
    code = code_of(kind)
    if code == "arrow":
        if not _holds(kind, value):
            raise _unfit(value, kind, f"{kind} does not hold it exactly")
        return _moment(value, kind)
    if type(value) not in PLAIN[code[0]]:
        raise _unfit(value, kind, f"it is a {type(value).__name__}")
    if code[0] in "iu":
        info = np.iinfo(code)
        if not info.min <= value <= info.max:
            raise _unfit(value, kind, f"{kind} holds {info.min} to {info.max}")
        return int(value)
    try:
        return float(value) if code[0] == "f" else value
    except OverflowError:
        raise _unfit(value, kind, "it is larger than any float") from None


def _holds(kind: pa.DataType, value: Any) -> bool:
    """Return True if ``value`` survives a round trip through a column of text, bytes or times."""
    own = natural(value)
    if own is None or not (own == kind or same_family(own, kind)):
        return False
    scalar = pa.scalar(value, own)
    try:
        return bool(scalar.cast(kind).cast(own).equals(scalar))
    except pa.ArrowInvalid:
        return False


def _moment(value: Any, kind: pa.DataType) -> Any:
    """Convert a date to midnight for timestamp columns, and midnight to a date for date columns."""
    if type(value) is dt.date and pa.types.is_timestamp(kind):
        return dt.datetime(value.year, value.month, value.day)
    return value.date() if type(value) is dt.datetime and pa.types.is_date(kind) else value


def _unfit(value: Any, kind: pa.DataType, why: str) -> SchemaError:
    return SchemaError(
        f"the literal {value!r} does not fit {short(kind)}",
        why=why,
        try_="cast the column to a wider type first",
    )


def rank_of(kind: pa.DataType) -> str:
    """Return the first letter of the kernel type code of ``kind``, or "arrow" if it has none."""
    code = code_of(kind)
    return code if code == "arrow" else code[0]


def common_type(typed: Sequence[TypedRegister], value: Value) -> pa.DataType:
    """Return the type of operands: NumPy's promotion of strong types, then of weak literals.

    Raise SchemaError, which quotes ``value``, if the operands have no common type.
    """
    strong = [t.kind for t in typed if not t.is_weak and not pa.types.is_null(t.kind)]
    weak = [t for t in typed if t.is_weak and t.weak is not None]
    if not strong:
        strong, weak = [t.kind for t in weak], []
    kind = strong[0] if strong else pa.null()
    for other in strong[1:]:
        found = wider(kind, other)
        if found is None:
            raise _clash(kind, other, value)
        kind = found
    for t in weak:
        kind = with_literal(kind, t, value)
    return kind


def wider(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Return the type that NumPy promotes two numeric types to; None if there is none."""
    if a == b:
        return a
    codes = [code_of(a), code_of(b)]
    if "arrow" in codes or shape_of(a) != shape_of(b):
        return None
    if {codes[0][0], codes[1][0]} == {"u", "i"} and "u8" in codes:
        return None
    return tensor(np.promote_types(*codes).str[1:], shape_of(a))


def with_literal(kind: pa.DataType, literal: TypedRegister, value: Value) -> pa.DataType:
    """Return the result type of a column of ``kind`` and a weak literal.

    Raise SchemaError, which quotes ``value``, if they have no common type.
    """
    rank, other = rank_of(kind), rank_of(literal.kind)
    if kind == literal.kind or (rank == "f" and other in "fib"):
        return kind
    if (rank in "iu" and other in "ib") or rank == other == "b":
        return kind
    if (rank in "iu" and other == "f") or (rank == "b" and other in "if"):
        return tensor(code_of(literal.kind), shape_of(kind))
    if rank == "arrow" and same_family(kind, literal.kind):
        return kind
    raise _clash(kind, literal.kind, value)


def same_family(a: pa.DataType, b: pa.DataType) -> bool:
    """Return True for two types of text, of bytes, or of times (both or neither with a zone)."""
    families: tuple[Callable[[pa.DataType], bool], ...] = (
        is_text,
        is_bytes,
        lambda t: pa.types.is_date(t) or (pa.types.is_timestamp(t) and t.tz is None),
        lambda t: pa.types.is_timestamp(t) and t.tz is not None,
    )
    return any(family(a) and family(b) for family in families)


def castable(a: pa.DataType, b: pa.DataType) -> bool:
    """Return True for two types of one family, for text and bytes, and for values to text.

    Text and bytes convert by UTF-8. Numbers, booleans and dates have a usual text.
    """
    coded = (is_text(a) and is_bytes(b)) or (is_bytes(a) and is_text(b))
    plain = (code_of(a) != "arrow" and not shape_of(a)) or pa.types.is_date32(a)
    return coded or (plain and is_text(b)) or same_family(a, b)


def parsing(a: pa.DataType, b: pa.DataType) -> str:
    """Return the name of the function that parses text of type ``a`` as a number ``b``, or ""."""
    if not is_text(a):
        return ""
    if pa.types.is_integer(b):
        return "str.to_integer"
    return "str.to_float" if b in {pa.float32(), pa.float64()} else ""


def conversion(a: pa.DataType, b: pa.DataType) -> str:
    """Return the error's advice for a cast from ``a`` to ``b`` that does not exist."""
    ways = (
        (is_text, pa.types.is_date, '.str.to_date("%Y-%m-%d")'),
        (is_text, pa.types.is_timestamp, '.str.to_datetime("%Y-%m-%d %H:%M:%S")'),
        (pa.types.is_timestamp, is_text, '.dt.strftime("%Y-%m-%d %H:%M:%S")'),
    )
    found = [way for of, to, way in ways if of(a) and to(b)]
    return found[0] if found else ".map(f) with a function that converts"


def comparable(kind: pa.DataType) -> bool:
    """Return True if values of ``kind`` are ordered: numbers, booleans, text, bytes, times."""
    types = pa.types
    bytewise = types.is_fixed_size_binary(kind) or same_family(kind, kind)
    timed = types.is_time(kind) or types.is_duration(kind)
    ordered = bytewise or timed or types.is_decimal(kind) or types.is_null(kind)
    return bool(ordered or (code_of(kind) != "arrow" and not shape_of(kind)))


def _clash(a: pa.DataType, b: pa.DataType, value: Value) -> SchemaError:
    lone = "arrow" in (code_of(a), code_of(b)) and not castable(a, b)
    number = next((short(to) for of, to in ((a, b), (b, a)) if parsing(of, to)), "")
    way = f'.cast("{number}") of the text' if number else ".cast(...) one side"
    return SchemaError(
        f"{value_text(value)} has operands without a common type",
        why=f"{short(a)} meets {short(b)}",
        try_=".map(f) with a function of Python's values" if lone and not number else way,
    )
