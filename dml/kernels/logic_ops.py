"""Comparisons, three-valued logic and the treatment of nulls are computed with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dml.kernels.arithmetic_ops import Op, elementwise
from dml.kernels.vec import Vec, aligned, is_null, over_elements, per_row

Params = tuple[Any, ...]


def kleene_and(args: Sequence[Vec], _code: str, _params: Params) -> Vec:
    """Return false if either argument is false; else null if either is null; else true."""
    a, b = args
    values = np.asarray(np.logical_and(a.values, b.values))
    if a.valid is None and b.valid is None:
        return Vec(values)
    false_a = np.logical_not(a.values) & ~is_null(a)
    false_b = np.logical_not(b.values) & ~is_null(b)
    return Vec(values, np.asarray(false_a | false_b | ~(is_null(a) | is_null(b))))


def kleene_or(args: Sequence[Vec], _code: str, _params: Params) -> Vec:
    """Return true if either argument is true; else null if either is null; else false."""
    a, b = args
    values = np.asarray(np.logical_or(a.values, b.values))
    if a.valid is None and b.valid is None:
        return Vec(values)
    true_a, true_b = a.values & ~is_null(a), b.values & ~is_null(b)
    return Vec(values, np.asarray(true_a | true_b | ~(is_null(a) | is_null(b))))


def null_rows(args: Sequence[Vec], _code: str, _params: Params) -> Vec:
    """Return true where the argument is null."""
    (arg,) = args
    return Vec(np.broadcast_to(is_null(arg), arg.values.shape[:1]).copy())


def nan_rows(args: Sequence[Vec], _code: str, _params: Params) -> Vec:
    """Return true where the argument is NaN; null stays null."""
    (arg,) = args
    if arg.values.dtype.kind != "f":
        return Vec(np.zeros(arg.values.shape, bool), arg.valid)
    return Vec(np.asarray(np.isnan(arg.values)), arg.valid)


def fill_null(args: Sequence[Vec], _code: str, _params: Params) -> Vec:
    """Replace nulls of the first argument by the second argument; NaN is unchanged."""
    arg, other = args
    if arg.valid is None:
        return arg
    values = _choose(arg.valid, arg, other)
    if other.valid is None:
        return Vec(values)
    return Vec(values, np.asarray(arg.valid | other.valid))


def fill_nan(args: Sequence[Vec], code: str, _params: Params) -> Vec:
    """Replace NaN in the first argument by the second argument; null stays null."""
    arg, other = args
    if code not in ("f4", "f8"):
        return arg
    nan = np.asarray(np.isnan(arg.values))
    left, right = aligned(arg, other)
    values = np.asarray(np.where(nan, right, left))
    if arg.valid is None and other.valid is None:
        return Vec(values)
    taken = per_row(nan, max(arg.values.ndim - 1, 0)) & ~is_null(arg)
    return Vec(values, np.asarray(~np.where(taken, is_null(other), is_null(arg))))


def if_else(args: Sequence[Vec], _code: str, _params: Params) -> Vec:
    """Return the second argument where the first is true, the third if false, null if null."""
    condition, a, b = args
    values = _choose(condition.values, a, b)
    if all(arg.valid is None for arg in args):
        return Vec(values)
    absent = is_null(condition) | np.where(condition.values, is_null(a), is_null(b))
    return Vec(values, np.asarray(~absent))


def _choose(mask: np.ndarray, a: Vec, b: Vec) -> np.ndarray:
    """Return ``a`` in the rows where ``mask`` is true, else ``b``."""
    left, right = aligned(a, b)
    mask = over_elements(mask, max(left.ndim, right.ndim, 1) - 1)
    return np.asarray(np.where(mask, left, right))


OPS: dict[str, Op] = {
    "eq": elementwise(np.equal),
    "ne": elementwise(np.not_equal),
    "lt": elementwise(np.less),
    "le": elementwise(np.less_equal),
    "gt": elementwise(np.greater),
    "ge": elementwise(np.greater_equal),
    "and": kleene_and,
    "or": kleene_or,
    "not": elementwise(np.logical_not),
    "is_null": null_rows,
    "is_nan": nan_rows,
    "fill_null": fill_null,
    "fill_nan": fill_nan,
    "if_else": if_else,
}
