"""Blocks are compared bit by bit: values, validity, ids and order; all NaNs are one value.

A difference is reported by column and row. Values are never part of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dml.data.block import Block, Values, concat, mask
from dml.kernels.vec import Vec


def difference(got: Sequence[Block], wanted: Sequence[Block], *, batched: bool) -> str:
    """Return as text where the rows of ``got`` differ from those of ``wanted``; "" if nowhere.

    If ``batched``, each block is one batch, so the limits between blocks must be equal, too.
    """
    one, two = ([block for block in blocks if block.n] for blocks in (got, wanted))
    if not batched:
        one, two = joined(one), joined(two)
    for number, (a, b) in enumerate(zip(one, two, strict=False)):
        if found := block_difference(a, b):
            return f"batch {number}, {found}" if batched else found
    if len(one) != len(two):
        sizes = (sum(block.n for block in blocks) for blocks in (one, two))
        return "{} rows instead of {}".format(*sizes)
    return ""


def joined(blocks: Sequence[Block]) -> list[Block]:
    """Join neighbouring blocks that have one schema."""
    cuts = [i for i, (a, b) in enumerate(pairwise(blocks), 1) if a.schema != b.schema]
    if not blocks:
        return []
    return [concat(blocks[i:j]) for i, j in pairwise([0, *cuts, len(blocks)])]


def part(blocks: Sequence[Block], start: int, stop: int | None) -> list[Block]:
    """Return rows ``start`` to ``stop`` (None: the end) of ``blocks``."""
    found: list[Block] = []
    for block in blocks:
        first, last = max(0, start), block.n if stop is None else min(block.n, stop)
        if first < last:
            found.append(block.slice(first, last))
        start -= block.n
        stop = None if stop is None else stop - block.n
    return found


def block_difference(got: Block, wanted: Block) -> str:
    """Return as text where ``got`` first differs from ``wanted``; "" if nowhere."""
    if got.schema != wanted.schema:
        return f"columns {got.schema} instead of {wanted.schema}"
    if got.n != wanted.n:
        return f"{got.n} rows instead of {wanted.n}"
    (high, low), (other_high, other_low) = got.ids.arrays(), wanted.ids.arrays()
    odd = (high != other_high) | (low != other_low)
    if odd.any():
        return f"row {int(np.argmax(odd))} is another row (its id differs)"
    for name, a, b in zip(got.schema, got.columns, wanted.columns, strict=True):
        row = first_odd(a, b)
        if row is not None:
            return f"row {row}, column {name!r}"
    return ""


def first_odd(a: Values, b: Values) -> int | None:
    """Return the first row in which two columns of equal type and length differ, or None."""
    if isinstance(a, Vec) and isinstance(b, Vec):
        odd = _odd_vec(a, b)
        return int(np.argmax(odd)) if odd.any() else None
    if isinstance(a, Vec) or isinstance(b, Vec):
        return 0  # columns of equal type are both Vec or both Arrow
    if same_array(a, b):
        return None
    return next(i for i in range(len(a)) if not same_array(a.slice(i, 1), b.slice(i, 1)))


def _odd_vec(a: Vec, b: Vec) -> np.ndarray:
    """Return a mask (n,) of rows that differ in validity, or in a value that is not null."""
    present, other = mask(a), mask(b)
    unequal: np.ndarray = ~_same_bits(a.values, b.values)
    if unequal.ndim > 1:
        unequal = np.asarray(unequal.any(axis=tuple(range(1, unequal.ndim))))
    odd: np.ndarray = (present != other) | (present & unequal)
    return odd


def _same_bits(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype != y.dtype or x.shape != y.shape:
        return np.zeros(x.shape, dtype=bool)
    if x.dtype.kind != "f":
        return np.asarray(x == y)
    bits = f"u{x.itemsize}"
    same = np.ascontiguousarray(x).view(bits) == np.ascontiguousarray(y).view(bits)
    return np.asarray(same | (np.isnan(x) & np.isnan(y)))


def same_array(a: pa.Array, b: pa.Array) -> bool:
    """Return True if two Arrow arrays have equal types, nulls and values, floats by their bits."""
    if a.type != b.type or len(a) != len(b) or a.null_count != b.null_count:
        return False
    if isinstance(a, pa.ExtensionArray):
        return same_array(a.storage, b.storage)
    if a.null_count and not a.is_null().equals(b.is_null()):
        return False
    return _same_values(a, b)


def _same_values(a: pa.Array, b: pa.Array) -> bool:
    kind, types = a.type, pa.types
    if types.is_floating(kind):
        x, y = (each.drop_null().to_numpy(zero_copy_only=False) for each in (a, b))
        return bool(_same_bits(x, y).all())
    if types.is_struct(kind):
        parts = zip(a.flatten(), b.flatten(), strict=True)
        return all(same_array(x, y) for x, y in parts)
    if types.is_map(kind):
        return _same_values(*(each.cast(_entries(kind)) for each in (a, b)))
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = (each.value_lengths() for each in (a, b))
        return next(lengths).equals(next(lengths)) and same_array(a.flatten(), b.flatten())
    if types.is_fixed_size_list(kind):
        return same_array(a.flatten(), b.flatten())
    return bool(a.equals(b))


def _entries(kind: pa.MapType) -> pa.DataType:
    """Return the type of a map as a list of its entries."""
    return pa.list_(pa.struct([kind.key_field, kind.item_field]))
