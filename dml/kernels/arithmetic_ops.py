"""Arithmetic on columns is computed with NumPy: integers wrap, floats follow IEEE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dml.kernels.vec import Vec, aligned, both_valid, per_row

Op = Callable[[Sequence[Vec], str, tuple[Any, ...]], Vec]

SIGN_BITS = {"f4": "u4", "f8": "u8"}


def elementwise(ufunc: Callable[..., Any]) -> Op:
    """Make an operation that calls ``ufunc``, and is null where any argument is null."""

    def op(args: Sequence[Vec], code: str, _params: tuple[Any, ...]) -> Vec:
        return Vec(coded(ufunc(*aligned(*args)), code), both_valid(*args))

    return op


def coded(values: Any, code: str) -> np.ndarray:
    """Return ``values`` as an array of type ``code``; no copy if it has that type."""
    return np.asarray(values).astype(code, copy=False)


def without_zero_divisor(ufunc: Callable[..., Any]) -> Op:
    """Make an operation like ``elementwise``, but null where the second argument is zero."""

    def op(args: Sequence[Vec], code: str, _params: tuple[Any, ...]) -> Vec:
        left, right = aligned(*args)
        values = coded(ufunc(left, right), code)
        zero = per_row(np.asarray(args[1].values == 0), max(args[1].values.ndim - 1, 0))
        valid = both_valid(*args)
        if zero.any():
            valid = np.logical_not(zero) if valid is None else valid & ~zero
        return Vec(values, valid)

    return op


def divide(args: Sequence[Vec], code: str, _params: tuple[Any, ...]) -> Vec:
    """Divide without rounding to integers; x / 0 is an infinity or NaN as in IEEE."""
    left, right = (values.astype(code, copy=False) for values in aligned(*args))
    return Vec(np.asarray(np.true_divide(left, right)), both_valid(*args))


def minimum(args: Sequence[Vec], code: str, _params: tuple[Any, ...]) -> Vec:
    """Return the lesser; NaN if either is, and -0.0 is less than +0.0 (IEEE 754-2019 minimum)."""
    left, right = aligned(*args)
    values = coded(np.minimum(left, right), code)
    if code in SIGN_BITS and not _has_nonzero_literal(args):
        values = _zeros_by_sign(values, left, right, np.bitwise_or)
    return Vec(values, both_valid(*args))


def maximum(args: Sequence[Vec], code: str, _params: tuple[Any, ...]) -> Vec:
    """Return the greater; NaN if either is, and +0.0 is above -0.0 (IEEE 754-2019 maximum)."""
    left, right = aligned(*args)
    values = coded(np.maximum(left, right), code)
    if code not in SIGN_BITS or _has_nonzero_literal(args):
        return Vec(values, both_valid(*args))
    if any(arg.is_literal and arg.values == 0 and not np.signbit(arg.values) for arg in args):
        # a zero in the result must be +0.0 here, and adding +0.0 changes nothing else
        return Vec(np.asarray(values + values.dtype.type(0)), both_valid(*args))
    return Vec(_zeros_by_sign(values, left, right, np.bitwise_and), both_valid(*args))


def _has_nonzero_literal(args: Sequence[Vec]) -> bool:
    return any(arg.is_literal and arg.values != 0 for arg in args)


def _zeros_by_sign(
    values: np.ndarray, left: np.ndarray, right: np.ndarray, merge: np.ufunc
) -> np.ndarray:
    """Return ``values`` with the right sign of zero where both operands are zero.

    ``merge`` combines the bits of the two zeros: "and" for the maximum, "or" for the minimum.
    """
    ties = (values == 0) & (left == right)
    if not ties.any():
        return values
    bits = f"u{values.dtype.itemsize}"
    merged = np.asarray(merge(left.view(bits), right.view(bits))).view(values.dtype)
    return np.where(ties, merged, values)


def round_half_even(args: Sequence[Vec], code: str, params: tuple[Any, ...]) -> Vec:
    """Round to ``params[0]`` decimal digits, ties to even.

    Floats x, with d digits: rint(x * 10**d) / 10**d in their own type (d < 0: rint(x / 10**-d) *
    10**-d), and x where that is not finite. Integers: exact for d < 0, else unchanged.
    """
    digits = int(params[0]) if params else 0
    values = args[0].values
    if code not in SIGN_BITS:
        rounded = values if digits >= 0 else _round_integers(values, -digits)
    elif digits == 0:
        rounded = np.rint(values)
    else:
        rounded = _round_floats(values, digits)
    return Vec(np.asarray(rounded), args[0].valid)


def _round_floats(values: np.ndarray, digits: int) -> np.ndarray:
    # the decimal text is the correctly rounded power, and an infinity beyond the type
    scale = values.dtype.type(float(f"1e{abs(digits)}"))
    up, down = (np.multiply, np.divide) if digits > 0 else (np.divide, np.multiply)
    rounded = down(np.rint(up(values, scale)), scale)
    return np.where(np.isfinite(rounded), rounded, values)


def _round_integers(values: np.ndarray, zeros: int) -> np.ndarray:
    unit = 10**zeros
    if unit > np.iinfo(values.dtype).max:
        return np.zeros_like(values)
    step = values.dtype.type(unit)
    quotient = np.floor_divide(values, step)
    rest = values - quotient * step
    # compared with the distance to the next multiple, since twice the rest might overflow
    above = step - rest
    up = (rest > above) | ((rest == above) & (quotient % 2 == 1))
    return np.asarray((quotient + up.astype(values.dtype)) * step)


def to_whole(ufunc: Callable[..., Any]) -> Op:
    """Make an operation of floor, ceil or trunc, which leaves integers unchanged."""

    def op(args: Sequence[Vec], code: str, _params: tuple[Any, ...]) -> Vec:
        values = args[0].values
        return Vec(np.asarray(ufunc(values)) if code in SIGN_BITS else values, args[0].valid)

    return op


OPS: dict[str, Op] = {
    "add": elementwise(np.add),
    "sub": elementwise(np.subtract),
    "mul": elementwise(np.multiply),
    "neg": elementwise(np.negative),
    "abs": elementwise(np.absolute),
    "truediv": divide,
    "floordiv": without_zero_divisor(np.floor_divide),
    "mod": without_zero_divisor(np.remainder),
    "bit_and": elementwise(np.bitwise_and),
    "bit_or": elementwise(np.bitwise_or),
    "bit_xor": elementwise(np.bitwise_xor),
    "bit_not": elementwise(np.invert),
    # NumPy already gives 0 (or -1 for a negative shifted right) for counts outside the width
    "shift_left": elementwise(np.left_shift),
    "shift_right": elementwise(np.right_shift),
    "minimum": minimum,
    "maximum": maximum,
    "sqrt": elementwise(np.sqrt),
    "floor": to_whole(np.floor),
    "ceil": to_whole(np.ceil),
    "trunc": to_whole(np.trunc),
    "round": round_half_even,
}
