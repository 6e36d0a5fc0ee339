"""Columns are converted between number types with NumPy, and values that do not fit are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dml.kernels.arithmetic_ops import Op
from dml.kernels.vec import CastFailure, Vec, code_of, per_row


def cast(args: Sequence[Vec], code: str, params: tuple[Any, ...]) -> Vec:
    """Convert ``args[0]`` to ``code``; a true ``params[0]`` raises where a value does not fit.

    Floats are truncated to integers, integers are rounded to floats. A value does not fit if it is
    too large, NaN or infinite for an integer, or too large for f4: then CastFailure is raised or,
    if ``params[0]`` is false, the row is null. Numbers become booleans by comparison with zero.
    """
    (arg,) = args
    values = np.asarray(arg.values.astype(code, copy=False))
    misfit = misfits(arg.values, values, code)
    if misfit is None:
        return Vec(values, arg.valid)
    rows = per_row(misfit, max(arg.values.ndim - 1, 0))
    if arg.valid is not None:
        rows = rows & arg.valid
    if not rows.any():
        return Vec(values, arg.valid)
    if params and params[0]:
        row = int(np.argmax(rows))
        value = arg.values[row] if arg.values.ndim else arg.values
        raise CastFailure(row, value.tolist(), code)
    return Vec(values, ~rows if arg.valid is None else arg.valid & ~rows)


def misfits(values: np.ndarray, converted: np.ndarray, code: str) -> np.ndarray | None:
    """Return a mask of the elements that ``code`` cannot represent; None if it represents all."""
    source, target = code_of(values.dtype)[0], code[0]
    if target == "b" or source == "b":
        return None
    if target == "f":
        narrowing = source == "f" and converted.itemsize < values.itemsize
        return np.isinf(converted) & np.isfinite(values) if narrowing else None
    low, high = np.iinfo(code).min, np.iinfo(code).max
    if source == "f":
        return outside_integers(values, low, high)
    limits = np.iinfo(values.dtype)
    if limits.min >= low and limits.max <= high:
        return None
    kind = values.dtype.type
    below = values < kind(low) if limits.min < low else None
    above = values > kind(high) if limits.max > high else None
    if below is None or above is None:
        return np.asarray(above if below is None else below)
    return np.asarray(below | above)


def outside_integers(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Mask floats that are outside ``low`` .. ``high`` after truncation (NaN always is)."""
    kind = values.dtype.type
    whole = np.trunc(values)
    # both limits are powers of two (or 0), hence exact in either float type
    return np.asarray(~((whole >= kind(low)) & (whole < kind(float(high + 1)))))


OPS: dict[str, Op] = {"cast": cast}
