"""Literals and parameters of column expressions are validated and converted to plain values."""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.user_line import users_line
from dml.errors import PlanError, SchemaError

PLAIN = (type(None), bool, int, float, str, bytes, dt.datetime, dt.date)
TRY = "a number, bool, text, bytes, date or None; .otherwise(...) closes dml.when; .map(f) for more"


def plain(value: Any) -> Any:
    """Return a literal as a Python value; NumPy and Arrow scalars become the equal Python values.

    Raise SchemaError for other values, such as arrays, and for datetimes finer than microseconds.
    """
    found = _scalar(value)
    if type(found) in PLAIN:
        return found
    where = users_line()
    method = getattr(value, "__name__", "") if inspect.ismethod(value) else ""
    raise SchemaError(
        f"{method or repr(value)} cannot be a literal",
        at=f"an expression, written in {where}" if where else "",
        why="it is a method that is not called"
        if method
        else f"it is of type {type(value).__name__}",
        try_=f".{method}()" if method else TRY,
    )


def _scalar(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        exact = value.astype("M8[us]")
        return exact.item() if exact == value or np.isnat(value) else value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    return value.as_py() if isinstance(value, pa.Scalar) else value


def members(values: Any) -> tuple[Any, ...]:
    """Return the literals ``values`` of an ``is_in``: a list, tuple, set, array or range."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise PlanError(
            f"is_in needs a list of values, got {values!r}",
            why=f"it is of type {type(values).__name__}",
            try_=f".is_in([{values!r}])",
        )
    return tuple(plain(value) for value in values)


def edges(boundaries: Any) -> tuple[int | float, ...]:
    """Return ascending ``boundaries`` of ``bucketize`` as Python numbers, or raise PlanError."""
    found = members(boundaries)
    odd = [e for e in found if type(e) not in (int, float) or _is_nan(e)]
    if odd or any(not a < b for a, b in itertools.pairwise(found)):
        raise PlanError(
            f"bucketize needs ascending boundaries, got {list(boundaries)!r}",
            why=f"{odd[0]!r} is no number" if odd else "a bucket is what lies between two of them",
            try_=".bucketize([18, 30, 65])",
        )
    return found


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return the integer ``value``; raise PlanError unless it is from ``least`` to ``most``."""
    found = _scalar(value)
    fits = type(found) is int and (least is None or found >= least)
    if fits and (most is None or found <= most):
        return int(found)
    ends = [f" of at least {least}"] * (least is not None) + [f" of at most {most}"] * fits
    raise PlanError(
        f"{name} is a whole number{' and'.join(ends)}, got {value!r}",
        why=f"it is of type {type(value).__name__}",
        try_=f"{max(1, least or 0)} instead",
    )
