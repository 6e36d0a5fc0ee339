"""The oracle computes expressions on the values of one row.

A value is None, a Python scalar, or for tensors an array whose elements are computed one by one.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dml.errors import CastError
from dml.testing.functions.table import MEANINGS
from dml.testing.oracle_types import Expr, code, shape
from dml.testing.scalars import ids
from dml.testing.scalars.operations import CastFailed, apply_scalar, fit


class Draws(NamedTuple):
    """The key of an operator's random draws besides the row; ``place`` is the column's position."""

    ordinal: int
    place: int
    epoch: int
    seed: int


def value_of(expr: Expr, row: dict[str, Any], row_id: tuple[int, int], draws: Draws) -> Any:
    """Compute a typed expression for one row; CastError where a strict cast fails."""
    if expr.op == "col":
        return row[expr.params[0]]
    if expr.op == "random":
        return drawn(expr, row_id, draws)
    if expr.op == "row_id":
        return named(row_id, exact=expr.params[0])
    args = [value_of(arg, row, row_id, draws) for arg in expr.args]
    try:
        return applied(expr, args)
    except CastFailed as failure:
        raise CastError(str(failure)) from None


def named(row_id: tuple[int, int], *, exact: bool) -> int | bytes:
    """Return the id of a row hashed to 64 bits, or with ``exact`` all of its bytes."""
    high, low = row_id
    if exact:
        return high.to_bytes(8, "big") + low.to_bytes(8, "big")
    return ids.mix64(low ^ ids.mix64(high))


def drawn(expr: Expr, row_id: tuple[int, int], draws: Draws) -> float:
    """Draw a uniform number by the key (seed, operator, epoch, row), the column and the stream."""
    seed, stream = expr.params[0], expr.params[1]
    seed = draws.seed if seed is None else seed
    key = ids.row_key(*row_id, seed, draws.ordinal, draws.epoch)
    return ids.uniform(key, draws.place * 2**20 + stream)


def applied(expr: Expr, args: list[Any]) -> Any:
    """Apply one operation to values; elementwise where its result is a tensor."""
    if expr.op in MEANINGS:
        return _meant(expr, args)
    dims, letters = shape(expr.kind), code(expr.kind)
    given = code(expr.args[0].kind) if expr.args else ""
    if expr.op == "stack":
        return _tensor(_of(expr, args, given), dims, letters)
    if expr.op in ("is_null", "fill_null", "if_else"):
        found = _of(expr, args, given)
        return _tensor([found], dims, letters) if dims and _plain(found) else found
    if dims:
        return _elementwise(expr, args, dims)
    if expr.op == "hash" and isinstance(args[0], dt.date):
        args = [_ticks(args[0], expr.args[0].kind)]
    if expr.op == "cast" and letters == "arrow":
        return _other_kind(args[0], expr)
    return _of(expr, args, given)


def _meant(expr: Expr, args: list[Any]) -> Any:
    """Apply a function of the table to values; null if an argument is null."""
    if any(arg is None for arg in args):
        return None
    elementwise = (value_of,) if expr.op == "list.eval" else ()
    found = MEANINGS[expr.op].means(*args, *expr.params, *elementwise)
    if isinstance(found, np.ndarray):
        return np.ascontiguousarray(found)
    if found is None or not shape(expr.kind):
        return None if found is None else fit(found, code(expr.kind))
    elements = [fit(element, code(expr.kind)) for element in found]
    return _tensor(elements, shape(expr.kind), code(expr.kind))


def _of(expr: Expr, args: list[Any], given: str) -> Any:
    return apply_scalar(expr.op, tuple(args), code(expr.kind), expr.params, given)


def _plain(value: Any) -> bool:
    return value is not None and not isinstance(value, np.ndarray)


def _elementwise(expr: Expr, args: list[Any], dims: tuple[int, ...]) -> Any:
    """Compute a tensor from tensors and scalars; null if any element is null."""
    size = int(np.prod(dims))
    if expr.op == "lit":
        return _tensor([applied_lit(expr)], dims, code(expr.kind))
    if all(arg is None for arg in args):
        return None
    columns = [arg.reshape(-1).tolist() if isinstance(arg, np.ndarray) else [arg] for arg in args]
    given = code(expr.args[0].kind)
    elements = [_of(expr, [c[i % len(c)] for c in columns], given) for i in range(size)]
    return _tensor(elements, dims, code(expr.kind))


def applied_lit(expr: Expr) -> Any:
    """Return a literal in the type of its elements."""
    return apply_scalar("lit", (), code(expr.kind), expr.params)


def _tensor(elements: list[Any] | None, dims: tuple[int, ...], letters: str) -> Any:
    if elements is None or any(element is None for element in elements):
        return None
    size = int(np.prod(dims))
    flat = [elements[i % len(elements)] for i in range(size)] if elements else []
    return np.array(flat, dtype=letters).reshape(dims)


def _other_kind(value: Any, expr: Expr) -> Any:
    """Cast text to UTF-8 or back, values to text, and dates to timestamps or back."""
    wanted = str(expr.kind)
    if "string" in wanted and not isinstance(value, str | bytes):
        return _written(value, expr.args[0].kind)
    if isinstance(value, str) and "binary" in wanted:
        return value.encode()
    if isinstance(value, bytes) and "string" in wanted:
        return _decoded(value, strict=expr.params[0])
    if wanted.startswith("timestamp") and type(value) is dt.date:
        return dt.datetime(value.year, value.month, value.day)
    if wanted.startswith("date") and isinstance(value, dt.datetime):
        return value.date()
    return value


def _written(value: Any, kind: pa.DataType) -> str | None:
    """Return the text of a number, boolean or date; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(float(str(np.float32(value)))) if kind == pa.float32() else str(value)


def _decoded(value: bytes, *, strict: bool) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        if strict:
            raise CastFailed(f"{value!r} is no text in UTF-8") from None
        return None


def _ticks(value: dt.date, kind: pa.DataType) -> int:
    """Return a date as days, a timestamp as units of its type, since 1970."""
    return int(pa.scalar(value, kind).value)
