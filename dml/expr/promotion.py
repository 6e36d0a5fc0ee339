"""This file finds the common type of operands: NumPy's promotion with weak Python literals."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import SchemaError
from dml.expr.schema import code_of, shape_of, short, tensor
from dml.expr.value import Value, shown

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


@dataclasses.dataclass(frozen=True, slots=True)
class Typed:
    """A register with its type; a weak literal has its Python value and no register yet."""

    register: int
    kind: pa.DataType
    weak: Any = None
    is_weak: bool = False


def fitting(value: Any, kind: pa.DataType) -> Any:
    """A literal as a Python value that ``kind`` holds exactly, or SchemaError."""
    if value is None:
        return None
    code = code_of(kind)
    if code[0] in "iu" and not isinstance(value, float):
        info = np.iinfo(code)
        if not info.min <= value <= info.max:
            raise SchemaError(
                f"the literal {value} does not fit {kind}",
                why=f"{kind} holds {info.min} to {info.max}",
                try_="cast the column to a wider type first",
            )
        return int(value)
    if code[0] == "f":
        return float(value)
    if code == "b1":
        return bool(value)
    return value


def rank_of(kind: pa.DataType) -> str:
    """The first letter of the kernel type code, or "arrow"."""
    code = code_of(kind)
    return code if code == "arrow" else code[0]


def common_type(typed: Sequence[Typed], value: Value) -> pa.DataType:
    """NumPy's promotion of strong types, then of weak literals."""
    strong = [t.kind for t in typed if not t.is_weak and not pa.types.is_null(t.kind)]
    weak = [t for t in typed if t.is_weak and t.weak is not None]
    if not strong:
        strong, weak = [t.kind for t in weak], []
    kind = strong[0] if strong else pa.null()
    for other in strong[1:]:
        kind = _promoted(kind, other, value)
    for t in weak:
        kind = with_literal(kind, t, value)
    return kind


def _promoted(a: pa.DataType, b: pa.DataType, value: Value) -> pa.DataType:
    if a == b:
        return a
    codes = [code_of(a), code_of(b)]
    if "arrow" in codes or shape_of(a) != shape_of(b):
        raise _clash(a, b, value)
    if {codes[0][0], codes[1][0]} == {"u", "i"} and "u8" in codes:
        raise _clash(a, b, value)
    return tensor(np.promote_types(*codes).str[1:], shape_of(a))


def with_literal(kind: pa.DataType, literal: Typed, value: Value) -> pa.DataType:
    """The type of a column of ``kind`` that meets a weak literal."""
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
    """True for two types of text, of bytes, or of moments."""
    families: tuple[Callable[[pa.DataType], bool], ...] = (
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
        lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        lambda t: pa.types.is_timestamp(t) or pa.types.is_date(t),
    )
    return any(family(a) and family(b) for family in families)


def _clash(a: pa.DataType, b: pa.DataType, value: Value) -> SchemaError:
    return SchemaError(
        f"{shown(value)} has operands without a common type",
        why=f"{short(a)} meets {short(b)}",
        try_=".cast(...) one side",
    )
