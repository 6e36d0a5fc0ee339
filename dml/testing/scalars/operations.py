"""The oracle computes every operation of an expression for one row, on Python values.

Values are None for null, Python ints, floats, bools, str and bytes. The code is independent of the
engine and of NumPy; only the tables of math steps are shared.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import xxhash

from dml.kernels.math import MATH_OPS
from dml.kernels.math.functions import step_table
from dml.testing.scalars import ids
from dml.testing.scalars.floats import (
    INTEGER_LIMITS,
    divide,
    floor_divmod,
    from_integer,
    greater,
    lesser,
    rounded,
    square_root,
    to_bits,
    toward,
    wrap,
)
from dml.testing.scalars.steps import evaluate

Args = tuple[Any, ...]

_G = 0x9E3779B97F4A7C15
_CANONICAL_NAN = 0x7FF8000000000000


class CastFailed(ValueError):  # noqa: N818 - it is the outcome of a cast, not a fault
    """A strict cast met a value that the target type cannot hold."""


def apply_scalar(op: str, args: Args, code: str, params: Args = (), given: str = "") -> Any:
    """Return the result of one operation on one row.

    ``code`` is the type of the result and ``given`` that of the operands; only ``is_in`` and
    ``bucketize`` on f4 need it, whose literals are rounded to f4. Where ``overflow_<x>`` is true,
    ``py_<x>`` is null here and unspecified in the engine. Raises CastFailed for a strict cast that
    does not fit, KeyError for an unknown operation.
    """
    if any(arg is None for arg in args) and op not in _SEES_NULLS:
        return None
    if op in MATH_OPS:
        return evaluate(step_table(op, code), args[0])
    if op in _UNTYPED:
        return _UNTYPED[op](*args)
    if op in _TYPED:
        return _TYPED[op](code, *args)
    if given == "f4" and op in ("is_in", "bucketize"):
        params = (tuple(_as_f4(value) for value in params[0]),)
    return _WITH_PARAMS[op](code, params, *args)


def fit(value: Any, code: str) -> Any:
    """Convert a Python number to the type: integers wrap, floats are rounded."""
    if code == "b1":
        return bool(value)
    if code in INTEGER_LIMITS:
        return wrap(int(value), code)
    if code in ("f4", "f8"):
        return from_integer(value, code) if isinstance(value, int) else rounded(value, code)
    return value


def _as_f4(value: Any) -> Any:
    return fit(value, "f4") if isinstance(value, int | float) else value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


# ------------------------------------------------------------------------------------ arithmetic


def _fitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an operation on numbers, so that its result is converted to the type."""
    return lambda code, *args: fit(function(*args), code)


def _truediv(code: str, a: Any, b: Any) -> float:
    return divide(fit(a, code), fit(b, code), code)


def _floordiv(code: str, a: Any, b: Any) -> Any:
    if b == 0:
        return None
    return wrap(a // b, code) if code in INTEGER_LIMITS else floor_divmod(a, b, code)[0]


def _mod(code: str, a: Any, b: Any) -> Any:
    if b == 0:
        return None
    return wrap(a % b, code) if code in INTEGER_LIMITS else floor_divmod(a, b, code)[1]


def _shift_left(code: str, value: int, count: int) -> int:
    return wrap(value << count, code) if 0 <= count < 8 * int(code[1]) else 0


def _shift_right(code: str, value: int, count: int) -> int:
    if 0 <= count < 8 * int(code[1]):
        return value >> count
    return -1 if value < 0 else 0


def _of_kind(of_floats: Callable[..., Any], of_others: Callable[..., Any]) -> Callable[..., Any]:
    """Combine a function of floats with a function of integers and booleans."""
    return lambda *args: of_floats(*args) if isinstance(args[0], float) else of_others(*args)


def _whole(rounding: Callable[[float], int]) -> Callable[..., Any]:
    return _of_kind(lambda value: toward(rounding, value), lambda value: value)


def _round(code: str, params: Args, value: Any) -> Any:
    """Round half to even; floats as rint(x * 10**d) / 10**d, or x where that is not finite."""
    digits = int(params[0]) if params else 0
    if not isinstance(value, float):
        return wrap(round(value, digits), code) if digits < 0 else value
    if digits == 0:
        return toward(round, value)
    scale = rounded(float(f"1e{abs(digits)}"), code)
    if digits > 0:
        result = divide(toward(round, rounded(value * scale, code)), scale, code)
    else:
        result = rounded(toward(round, divide(value, scale, code)) * scale, code)
    return result if math.isfinite(result) else rounded(value, code)


# ------------------------------------------------------------------------------------------ logic


def _and(a: bool | None, b: bool | None) -> bool | None:  # noqa: FBT001 - these are the values
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def _or(a: bool | None, b: bool | None) -> bool | None:  # noqa: FBT001 - these are the values
    if a is True or b is True:
        return True
    return None if a is None or b is None else False


def _if_else(condition: bool | None, a: Any, b: Any) -> Any:  # noqa: FBT001 - a value
    if condition is None:
        return None
    return a if condition else b


# ---------------------------------------------------------------------- hashes, buckets, members


def _hash(code: str, params: Args, value: Any) -> int:
    del code
    seed = int(params[0])
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return int(xxhash.xxh64_intdigest(text, seed % (1 << 64)))
    if isinstance(value, float):
        value = _CANONICAL_NAN if math.isnan(value) else to_bits(value + 0.0, "f8")
    return ids.mix64(int(value) + (seed + 1) * _G)


def _bucketize(code: str, params: Args, value: Any) -> int:
    del code
    boundaries = params[0]
    return len(boundaries) if _is_nan(value) else sum(bool(edge <= value) for edge in boundaries)


def _is_in(code: str, params: Args, value: Any) -> bool:
    del code
    return any(member is not None and value == member for member in params[0])


def _uniform(code: str, params: Args, hi: int, lo: int) -> float:
    del code
    key = ids.mix64(lo ^ ids.mix64(hi ^ int(params[0])))
    return ids.uniform(key, int(params[1]) if len(params) > 1 else 0)


# ----------------------------------------------------------------------------------------- casts


def _lit(code: str, params: Args) -> Any:
    return None if params[0] is None else fit(params[0], code)


def _cast(code: str, params: Args, value: Any) -> Any:
    """Cast a number, floats toward zero; a number out of range fails if strict, else is null."""
    found = _represented(value, code)
    if found is None and params and params[0]:
        raise CastFailed(f"{value!r} is not representable as {code}")
    return found


def _represented(value: Any, code: str) -> Any:
    """Return the number in the type, or None where it does not fit."""
    if code == "b1":
        return bool(value)
    if code in INTEGER_LIMITS:
        if not math.isfinite(value):
            return None
        whole = math.trunc(value)
        low, high = INTEGER_LIMITS[code]
        return whole if low <= whole <= high else None
    if code not in ("f4", "f8"):
        raise KeyError(f"no scalar cast to {code}")
    result = fit(int(value) if isinstance(value, bool) else value, code)
    return None if math.isinf(result) and not math.isinf(value) else result


# ------------------------------------------------------------------------------- Python's meaning


def _outside(function: Callable[..., Any], args: Args) -> bool:
    """True where Python raises or its result leaves int64, and for a null."""
    if any(arg is None for arg in args):
        return True
    try:
        result = function(*args)
    except (ZeroDivisionError, OverflowError, ValueError):
        return True
    low, high = INTEGER_LIMITS["i8"]
    return isinstance(result, int) and not low <= result <= high


def _pythons(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a Python function: its result, or null where ``_outside`` is true."""
    return lambda *args: None if _outside(function, args) else function(*args)


def _check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a Python function: true where ``_outside`` is true."""
    return lambda *args: _outside(function, args)


def _check_truediv(a: Any, b: Any) -> bool:
    """True also where an integer is no float64, since Python rounds the exact quotient once."""
    inexact = any(isinstance(arg, int) and abs(arg) > 1 << 53 for arg in (a, b))
    return inexact or _outside(operator.truediv, (a, b))


# ----------------------------------------------------------------------------------------- tables

_PYTHONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "abs": abs,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "truediv": operator.truediv,
}

_UNTYPED: dict[str, Callable[..., Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": _and,
    "or": _or,
    "not": operator.not_,
    "is_null": lambda value: value is None,
    "is_nan": _is_nan,
    "fill_null": lambda value, other: other if value is None else value,
    "fill_nan": lambda value, other: other if _is_nan(value) else value,
    "if_else": _if_else,
    "minimum": _of_kind(lesser, min),
    "maximum": _of_kind(greater, max),
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "trunc": _whole(math.trunc),
    **{f"py_{name}": _pythons(function) for name, function in _PYTHONS.items()},
    **{f"overflow_{name}": _check(function) for name, function in _PYTHONS.items()},
    "overflow_truediv": _check_truediv,
}

_TYPED: dict[str, Callable[..., Any]] = {
    "add": _fitted(operator.add),
    "sub": _fitted(operator.sub),
    "mul": _fitted(operator.mul),
    "neg": _fitted(operator.neg),
    "abs": _fitted(abs),
    "truediv": _truediv,
    "floordiv": _floordiv,
    "mod": _mod,
    "bit_and": _fitted(operator.and_),
    "bit_or": _fitted(operator.or_),
    "bit_xor": _fitted(operator.xor),
    "bit_not": lambda code, value: not value if code == "b1" else wrap(~value, code),
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "sqrt": lambda code, value: square_root(value, code),
    "stack": lambda code, *args: [fit(arg, code) for arg in args],
}

_WITH_PARAMS: dict[str, Callable[..., Any]] = {
    "lit": _lit,
    "round": _round,
    "cast": _cast,
    "hash": _hash,
    "bucketize": _bucketize,
    "is_in": _is_in,
    "uniform": _uniform,
}

_SEES_NULLS = {"and", "or", "is_null", "fill_null", "fill_nan", "if_else"} | {
    name for name in _UNTYPED if name.startswith(("py_", "overflow_"))
}
