"""This file says what every operation of an expression means for one row, on Python values.

It is the oracle's half of "one arithmetic": None for null, Python ints, floats, bools, str, bytes.
Written apart from the engine, with no NumPy; only the tables of math steps are shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import xxhash

from dml.kernels.steps import MATH_OPS, step_table
from dml.testing import scalar_ids
from dml.testing.scalar_floats import (
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
from dml.testing.scalar_steps import evaluate

Args = tuple[Any, ...]
Meaning = Callable[[Args, str, Args], Any]

_G = 0x9E3779B97F4A7C15
_CANONICAL_NAN = 0x7FF8000000000000


class CastFailed(ValueError):
    """A strict cast met a value that the target type cannot hold."""


def apply_scalar(op: str, args: Args, code: str, params: Args = (), given: str = "") -> Any:
    """Return the result of one operation on one row.

    ``code`` is the type of the result and ``given`` that of the operands (they are equal where it
    matters; only ``is_in`` and ``bucketize`` on f4 need it, whose literals are rounded to f4).
    Raises CastFailed for a strict cast that does not fit, KeyError for an unknown operation.
    """
    if op in _WITH_NULLS:
        return _WITH_NULLS[op](args, code, params)
    if any(arg is None for arg in args):
        return None
    if op in MATH_OPS:
        return evaluate(step_table(op, code), args[0])
    if given == "f4" and op in ("is_in", "bucketize"):
        params = (tuple(_as_f4(value) for value in params[0]),)
    return _OF_VALUES[op](args, code, params)


def fit(value: Any, code: str) -> Any:
    """A Python number as a value of the type: integers wrap, floats are rounded."""
    if code == "b1":
        return bool(value)
    if code in INTEGER_LIMITS:
        return wrap(int(value), code)
    if code in ("f4", "f8"):
        return from_integer(value, code) if isinstance(value, int) else rounded(value, code)
    return value


def _as_f4(value: Any) -> Any:
    return fit(value, "f4") if isinstance(value, int | float) else value


# ------------------------------------------------------------------------------------ arithmetic


def _fitted(function: Callable[..., Any]) -> Meaning:
    """An operation on numbers whose result is taken into the type."""
    return lambda args, code, params: fit(function(*args), code)


def _truediv(args: Args, code: str, params: Args) -> float:
    a, b = (fit(arg, code) for arg in args)
    return divide(a, b, code)


def _floordiv(args: Args, code: str, params: Args) -> Any:
    a, b = args
    if b == 0:
        return None
    return wrap(a // b, code) if code in INTEGER_LIMITS else floor_divmod(a, b, code)[0]


def _mod(args: Args, code: str, params: Args) -> Any:
    a, b = args
    if b == 0:
        return None
    return wrap(a % b, code) if code in INTEGER_LIMITS else floor_divmod(a, b, code)[1]


def _shift_left(args: Args, code: str, params: Args) -> int:
    value, count = args
    return wrap(value << count, code) if 0 <= count < 8 * int(code[1]) else 0


def _shift_right(args: Args, code: str, params: Args) -> int:
    value, count = args
    if 0 <= count < 8 * int(code[1]):
        return int(value >> count)
    return -1 if value < 0 else 0


def _extreme(of_floats: Callable[[float, float], float], of_others: Callable[..., Any]) -> Meaning:
    def meaning(args: Args, code: str, params: Args) -> Any:
        return of_floats(*args) if isinstance(args[0], float) else of_others(*args)

    return meaning


def _whole(rounding: Callable[[float], int]) -> Meaning:
    def meaning(args: Args, code: str, params: Args) -> Any:
        return toward(rounding, args[0]) if isinstance(args[0], float) else args[0]

    return meaning


def _round(args: Args, code: str, params: Args) -> Any:
    """Half to even; floats as rint(x * 10**d) / 10**d, and x where that is not finite."""
    digits = int(params[0]) if params else 0
    value = args[0]
    if not isinstance(value, float):
        return wrap(round(value, digits), code) if digits < 0 else value
    if digits == 0:
        return toward(round, value)
    scale = rounded(float(f"1e{abs(digits)}"), code)
    if digits > 0:
        result = divide(_rint(rounded(value * scale, code)), scale, code)
    else:
        result = rounded(_rint(divide(value, scale, code)) * scale, code)
    return result if math.isfinite(result) else rounded(value, code)


def _rint(value: float) -> float:
    return toward(round, value)


# ----------------------------------------------------------------------- comparisons, logic, nulls


def _kleene(absorbing: bool) -> Meaning:  # noqa: FBT001 - the value that decides alone
    def meaning(args: Args, code: str, params: Args) -> bool | None:
        if any(arg is absorbing for arg in args):
            return absorbing
        return None if any(arg is None for arg in args) else not absorbing

    return meaning


def _fill_nan(args: Args, code: str, params: Args) -> Any:
    return args[1] if args[0] is not None and args[0] != args[0] else args[0]


def _if_else(args: Args, code: str, params: Args) -> Any:
    return None if args[0] is None else args[1] if args[0] else args[2]


def _is_in(args: Args, code: str, params: Args) -> bool:
    return any(value is not None and args[0] == value for value in params[0])


# --------------------------------------------------------------------------------- hashes, buckets


def _hash(args: Args, code: str, params: Args) -> int:
    value, seed = args[0], int(params[0])
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return int(xxhash.xxh64_intdigest(text, seed % (1 << 64)))
    if isinstance(value, float):
        value = _CANONICAL_NAN if value != value else to_bits(value + 0.0, "f8")
    return scalar_ids.mix64(int(value) + (seed + 1) * _G)


def _bucketize(args: Args, code: str, params: Args) -> int:
    value, boundaries = args[0], params[0]
    return len(boundaries) if value != value else sum(bool(edge <= value) for edge in boundaries)


def _uniform(args: Args, code: str, params: Args) -> float:
    hi, lo = args
    key = scalar_ids.mix64(lo ^ scalar_ids.mix64(hi ^ int(params[0])))
    return scalar_ids.uniform(key, int(params[1]) if len(params) > 1 else 0)


# ------------------------------------------------------------------------------------------- casts


def _cast(args: Args, code: str, params: Args) -> Any:
    """A float loses its fraction toward zero; what the type cannot hold fails, or is null."""
    value = args[0]
    if code == "b1":
        return bool(value)
    found = _represented(value, code)
    if found is None and params and params[0]:
        raise CastFailed(f"{value!r} is not representable as {code}")
    return found


def _represented(value: Any, code: str) -> Any:
    """The number in the type, or None where it does not fit."""
    if code in INTEGER_LIMITS:
        if isinstance(value, float) and not math.isfinite(value):
            return None
        whole = math.trunc(value)
        low, high = INTEGER_LIMITS[code]
        return whole if low <= whole <= high else None
    if code not in ("f4", "f8"):
        raise KeyError(f"no scalar cast to {code}")
    result = fit(int(value) if isinstance(value, bool) else value, code)
    return None if math.isinf(result) and not math.isinf(value) else result


# -------------------------------------------------------------------------------- Python's meaning


def _pythons(function: Callable[..., Any]) -> Meaning:
    """Python's own result; where it raises or leaves int64 the row lies outside, here null."""

    def meaning(args: Args, code: str, params: Args) -> Any:
        return None if _outside(function, args) else function(*args)

    return meaning


def _outside(function: Callable[..., Any], args: Args) -> bool:
    if any(arg is None for arg in args):
        return True
    try:
        result = function(*args)
    except (ZeroDivisionError, OverflowError, ValueError):
        return True
    low, high = INTEGER_LIMITS["i8"]
    return isinstance(result, int) and not low <= result <= high


def _check(function: Callable[..., Any]) -> Meaning:
    """True where Python's result is not that of the plain operation, or there is none."""
    return lambda args, code, params: _outside(function, args)


def _check_truediv(args: Args, code: str, params: Args) -> bool:
    """Also true where Python's correctly rounded quotient of integers is not that of floats."""
    if _outside(lambda a, b: a / b, args):
        return True
    return any(abs(arg) > 1 << 53 for arg in args if isinstance(arg, int))


_PYTHONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": abs,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "truediv": lambda a, b: a / b,
}

_WITH_NULLS: dict[str, Meaning] = {
    "lit": lambda args, code, params: None if params[0] is None else fit(params[0], code),
    "and": _kleene(False),  # noqa: FBT003 - the value that decides alone
    "or": _kleene(True),  # noqa: FBT003
    "is_null": lambda args, code, params: args[0] is None,
    "fill_null": lambda args, code, params: args[1] if args[0] is None else args[0],
    "fill_nan": _fill_nan,
    "if_else": _if_else,
    **{f"py_{name}": _pythons(function) for name, function in _PYTHONS.items()},
    **{f"overflow_{name}": _check(function) for name, function in _PYTHONS.items()},
    "overflow_truediv": _check_truediv,
}

_OF_VALUES: dict[str, Meaning] = {
    "add": _fitted(lambda a, b: a + b),
    "sub": _fitted(lambda a, b: a - b),
    "mul": _fitted(lambda a, b: a * b),
    "neg": _fitted(lambda a: -a),
    "abs": _fitted(abs),
    "truediv": _truediv,
    "floordiv": _floordiv,
    "mod": _mod,
    "bit_and": _fitted(lambda a, b: a & b),
    "bit_or": _fitted(lambda a, b: a | b),
    "bit_xor": _fitted(lambda a, b: a ^ b),
    "bit_not": lambda args, code, params: not args[0] if code == "b1" else wrap(~args[0], code),
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "eq": lambda args, code, params: bool(args[0] == args[1]),
    "ne": lambda args, code, params: bool(args[0] != args[1]),
    "lt": lambda args, code, params: bool(args[0] < args[1]),
    "le": lambda args, code, params: bool(args[0] <= args[1]),
    "gt": lambda args, code, params: bool(args[0] > args[1]),
    "ge": lambda args, code, params: bool(args[0] >= args[1]),
    "not": lambda args, code, params: not args[0],
    "is_nan": lambda args, code, params: args[0] != args[0],
    "minimum": _extreme(lesser, min),
    "maximum": _extreme(greater, max),
    "sqrt": lambda args, code, params: square_root(args[0], code),
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "trunc": _whole(math.trunc),
    "round": _round,
    "cast": _cast,
    "hash": _hash,
    "bucketize": _bucketize,
    "is_in": _is_in,
    "stack": lambda args, code, params: [fit(arg, code) for arg in args],
    "uniform": _uniform,
}
