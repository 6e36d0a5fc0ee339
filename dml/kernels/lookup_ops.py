"""Hashes, buckets, membership, random draws and stacked rows are computed with NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dml.kernels.arithmetic_ops import Op
from dml.kernels.rows.ids import GOLDEN, mix64
from dml.kernels.vec import Vec, aligned, both_valid

Params = tuple[Any, ...]

CANONICAL_NAN = np.uint64(0x7FF8000000000000)
# up to so many members, comparing with each in turn is faster than sorting (65,536 rows)
FEW_MEMBERS = 12


def as_bits(values: np.ndarray) -> np.ndarray:
    """Return the bits to hash: u8 of integers and booleans, canonical f8 bits of floats."""
    if values.dtype.kind != "f":
        return values.astype("u8", copy=False)
    # adding +0.0 makes -0.0 into +0.0
    doubles = values.astype("f8") + 0.0
    bits = np.asarray(doubles).view("u8")
    return np.where(np.isnan(doubles), CANONICAL_NAN, bits)


def hash_numbers(args: Sequence[Vec], _code: str, params: Params) -> Vec:
    """Return mix64(bits + (``params[0]`` + 1) * GOLDEN), u8; null stays null."""
    start = np.uint64((int(params[0]) + 1) * GOLDEN % 2**64)
    return Vec(mix64(np.asarray(as_bits(args[0].values) + start)), args[0].valid)


def uniform(args: Sequence[Vec], _code: str, params: Params) -> Vec:
    """Draw from [0, 1) per row id (hi, lo): key ``params[0]``, draw number ``params[1]`` or 0."""
    high, low = aligned(*args)
    draw = int(params[1]) if len(params) > 1 else 0
    row_key = mix64(np.asarray(low ^ mix64(np.asarray(high ^ np.uint64(params[0])))))
    bits = mix64(np.asarray(row_key + np.uint64((draw + 1) * GOLDEN % 2**64)))
    return Vec(np.asarray((bits >> np.uint64(11)) * 2.0**-53), both_valid(*args))


def bucketize(args: Sequence[Vec], code: str, params: Params) -> Vec:
    """Count the ascending boundaries ``params[0]`` that are at most the value; for NaN: all."""
    (arg,) = args
    edges = boundaries_as(params[0], arg.values.dtype)
    counts = np.searchsorted(edges, arg.values, side="right")
    return Vec(np.asarray(counts).astype(code, copy=False), arg.valid)


def boundaries_as(boundaries: Sequence[float], dtype: np.dtype[Any]) -> np.ndarray:
    """Convert boundaries to the type of the compared values, without changing any comparison.

    For integers only ceil(boundary) matters; a boundary above the type's range is never reached,
    and a boundary below it always is (it becomes the least value).
    """
    if dtype.kind == "f":
        return np.asarray(boundaries, dtype)
    limits = np.iinfo(dtype)
    kept = [edge for edge in boundaries if edge <= limits.max]
    whole = [limits.min if edge <= limits.min else math.ceil(edge) for edge in kept]
    return np.asarray(whole, dtype)


def is_in(args: Sequence[Vec], _code: str, params: Params) -> Vec:
    """Return true if the value equals one of ``params[0]``; null stays null, NaN equals nothing."""
    (arg,) = args
    members = members_as(params[0], arg.values.dtype)
    if len(members) > FEW_MEMBERS:
        return Vec(np.asarray(np.isin(arg.values, members)), arg.valid)
    found = np.zeros(arg.values.shape, bool)
    for member in members:
        found |= arg.values == member
    return Vec(found, arg.valid)


def members_as(members: Sequence[Any], dtype: np.dtype[Any]) -> np.ndarray:
    """Return the members that a value of ``dtype`` can equal, in that type; no None and NaN."""
    wanted = [member for member in members if member is not None and member == member]
    if dtype.kind == "f":
        return np.unique(np.asarray(wanted, dtype))
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    whole = [int(m) for m in wanted if limits[0] <= m <= limits[1] and int(m) == m]
    return np.unique(np.asarray(whole, dtype))


def stack(args: Sequence[Vec], code: str, _params: Params) -> Vec:
    """Stack columns to (n, k, *element shape); a row with any null is null."""
    arrays = [array.astype(code, copy=False) for array in aligned(*args)]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if len(shape) == 1:
        # filled as (k, n) and transposed once: many strided passes over the rows cost more
        columns = np.empty((len(arrays), shape[0]), code)
        for column, array in zip(columns, arrays, strict=True):
            column[...] = array
        return Vec(np.ascontiguousarray(columns.T), both_valid(*args))
    axis = min(1, len(shape))
    return Vec(np.stack([np.broadcast_to(a, shape) for a in arrays], axis=axis), both_valid(*args))


OPS: dict[str, Op] = {
    "hash": hash_numbers,
    "uniform": uniform,
    "bucketize": bucketize,
    "is_in": is_in,
    "stack": stack,
}
