"""Python arithmetic is computed with NumPy, with checks for rows whose result would differ.

A lifted row function uses ``py_*`` operations, each with an ``overflow_*`` check, which is true in
rows where Python would give another result, or raise. The block is then run in Python instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dml.kernels.arithmetic_ops import Op, coded
from dml.kernels.vec import Vec, aligned, both_valid, per_row

INT64_MIN = np.int64(-(2**63))
# float64 represents every integer up to here, so that converting both operands is exact
EXACT_INTEGER = np.int64(2**53)

Arrays = Sequence[np.ndarray]


def plain(ufunc: Callable[..., Any]) -> Op:
    """Make a ``py_*`` operation of ``ufunc``; its check finds rows that differ from Python's."""

    def op(args: Sequence[Vec], code: str, _params: tuple[Any, ...]) -> Vec:
        values = (array.astype(code, copy=False) for array in aligned(*args))
        return Vec(coded(ufunc(*values), code))

    return op


def outside(differs: Callable[[Arrays], Any]) -> Op:
    """Make a check that is true in rows with a null operand, and where ``differs`` is true."""

    def op(args: Sequence[Vec], _code: str, _params: tuple[Any, ...]) -> Vec:
        arrays = aligned(*args)
        most = max(array.ndim for array in arrays)
        bad = per_row(np.asarray(differs(arrays), bool), max(most - 1, 0) if most else 0)
        valid = both_valid(*args)
        return Vec(bad if valid is None else bad | ~valid)

    return op


def _is_float(arrays: Arrays) -> bool:
    return arrays[0].dtype.kind == "f"


def _never(arrays: Arrays) -> np.ndarray:
    return np.zeros(np.broadcast_shapes(*(array.shape for array in arrays)), bool)


def _integers(differs: Callable[[Arrays], Any]) -> Op:
    """Make a check like ``outside`` that is false on floats, where NumPy's result is Python's."""
    return outside(lambda arrays: _never(arrays) if _is_float(arrays) else differs(arrays))


def _add(arrays: Arrays) -> Any:
    a, b = arrays
    total = a + b
    return ((a ^ total) & (b ^ total)) < 0


def _sub(arrays: Arrays) -> Any:
    a, b = arrays
    return ((a ^ b) & (a ^ (a - b))) < 0


def _mul(arrays: Arrays) -> Any:
    a, b = np.broadcast_arrays(*arrays)
    near = np.abs(a.astype("f8") * b.astype("f8")) >= 2.0**62
    if not near.any():
        return near
    wrong = np.array(near)
    x, y = a[near], b[near]
    # where the product may overflow, divide it by x: if the result is y, it did not overflow
    wrong[near] = (np.floor_divide(x * y, x) != y) | ((x == -1) & (y == INT64_MIN))
    return wrong


def _least(arrays: Arrays) -> Any:
    return arrays[0] == INT64_MIN


def _floor_division(arrays: Arrays) -> Any:
    a, b = arrays
    zero = b == 0
    return zero if _is_float(arrays) else zero | ((b == -1) & (a == INT64_MIN))


def _mod(arrays: Arrays) -> Any:
    zero = arrays[1] == 0
    return np.broadcast_to(zero, np.broadcast_shapes(*(array.shape for array in arrays)))


def _true_division(arrays: Arrays) -> Any:
    a, b = arrays
    zero = _mod(arrays)
    if _is_float(arrays):
        return zero
    large = (a > EXACT_INTEGER) | (a < -EXACT_INTEGER) | (b > EXACT_INTEGER) | (b < -EXACT_INTEGER)
    return zero | large


OPS: dict[str, Op] = {
    "py_add": plain(np.add),
    "py_sub": plain(np.subtract),
    "py_mul": plain(np.multiply),
    "py_neg": plain(np.negative),
    "py_abs": plain(np.absolute),
    "py_floordiv": plain(np.floor_divide),
    "py_mod": plain(np.remainder),
    "py_truediv": plain(np.true_divide),
    "overflow_add": _integers(_add),
    "overflow_sub": _integers(_sub),
    "overflow_mul": _integers(_mul),
    "overflow_neg": _integers(_least),
    "overflow_abs": _integers(_least),
    "overflow_floordiv": outside(_floor_division),
    "overflow_mod": outside(_mod),
    "overflow_truediv": outside(_true_division),
}
