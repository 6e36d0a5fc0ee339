"""Encoders map values to positions of a vector, to other values, or to numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute, hash_values
from dml.kernels.functions.function import (
    Function,
    Kinds,
    Params,
    RefusedFailure,
    always,
    is_bytes,
    is_text,
    of_one,
    same,
)
from dml.kernels.functions.lists import LIST, like, lists_of
from dml.kernels.lookup_ops import hash_numbers
from dml.kernels.vec import ARROW_TYPES, Register, Vec, from_arrow


def _is_word(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or is_text(kind) or is_bytes(kind))


def _is_single(kind: pa.DataType) -> bool:
    dated = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return bool(_is_word(kind) or dated or kind in ARROW_TYPES.values())


def _listed(holds: Any) -> Any:
    return lambda kind: LIST.holds(kind) and holds(kind.value_type)


INTEGER = Kinds("whole numbers", pa.types.is_integer, pa.int64())
INTEGERS = Kinds("a list of whole numbers", _listed(pa.types.is_integer))
WORD = Kinds("text, bytes or whole numbers", _is_word, pa.string())
WORDS = Kinds("a list of text, bytes or whole numbers", _listed(_is_word))
SINGLE = Kinds("single values", _is_single)


# ------------------------------------------------------------------------------------------ vectors


def one_hot(columns: Sequence[Register], params: Params) -> Vec:
    """Return vectors (n, k), with a one at the row's index; all zeros if it is not in 0 .. k-1."""
    (places,) = columns
    n = len(places.values)
    return Vec(_ones_at(places, np.arange(n), n, params), places.valid)


def _ones_at(places: Vec, rows: np.ndarray, n: int, params: Params) -> np.ndarray:
    """Return zeros (n, k), with a one at [``rows[i]``, ``places[i]``] for each place in range."""
    k, kind = params
    out = np.zeros((n, k), kind.to_pandas_dtype())
    values = places.values
    inside = (values >= 0) & (values < k)
    if places.valid is not None:
        inside &= places.valid
    if not inside.all():
        rows, values = rows[inside], values[inside]
    # a flat index takes half the time of two indices
    out.reshape(-1)[rows * k + values.astype("i8", copy=False)] = 1
    return out


def multi_hot(columns: Sequence[Register], params: Params) -> Vec:
    """Return vectors (n, k), with ones at the indices in the row's list that are in 0 .. k-1."""
    lists = lists_of(columns[0])
    elements, rows = lists.flat()
    out = _ones_at(from_arrow(elements), rows, len(lists.starts), params)
    return Vec(out, ~lists.absent if lists.absent.any() else None)


def _vector(_kind: pa.DataType, params: Params) -> pa.DataType:
    return pa.fixed_shape_tensor(params[1], (params[0],))


# ----------------------------------------------------------------------------------------- mappings


@lru_cache(maxsize=64)
def _members(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    return _unsigned_zero(pa.array(values, kind))


def _unsigned_zero(array: pa.Array) -> pa.Array:
    """Replace -0.0 in floats by 0.0, so that equal values have equal bits."""
    return compute().add(array, 0.0) if pa.types.is_floating(array.type) else array


def _position(array: pa.Array, values: tuple[Any, ...]) -> pa.Array:
    """Return the index of each value in ``values``, null if it is missing (NaN always is)."""
    pc = compute()
    found = pc.index_in(_unsigned_zero(array), value_set=_members(values, array.type))
    if pa.types.is_floating(array.type):
        found = pc.if_else(pc.is_nan(array), pa.scalar(None, found.type), found)
    return found


def replace(array: pa.Array, keys: tuple[Any, ...], values: tuple[Any, ...]) -> pa.Array:
    """Replace each of ``keys`` by the value at its index; other values are unchanged."""
    found = _position(array, keys)
    return compute().if_else(found.is_valid(), pa.array(values, array.type).take(found), array)


def replace_strict(
    array: pa.Array,
    keys: tuple[Any, ...],
    values: tuple[Any, ...],
    kind: pa.DataType,
    default: tuple[Any, ...],
) -> pa.Array:
    """Replace each of ``keys`` by the value at its index, and other values by ``default[0]``.

    Without a default, which is (), another value raises RefusedFailure. Nulls stay.
    """
    found = _position(array, keys)
    new = pa.array(values, kind).take(found)
    other = compute().and_(found.is_null(), array.is_valid())
    if not default:
        if other.true_count:
            row = other.index(pa.scalar(value=True)).as_py()
            raise RefusedFailure(row, array[row].as_py(), ".replace_strict")
        return new
    return compute().if_else(other, pa.scalar(default[0], kind), new)


def lookup(array: pa.Array, words: tuple[Any, ...], default: int | None, buckets: int) -> pa.Array:
    """Return each value's index in ``words``; ``default`` for other values, null for null.

    With ``buckets``, other values get the hash modulo ``buckets``, plus the number of words.
    """
    pc = compute()
    found = _position(array, words).cast(pa.int64())
    other: Any = pa.scalar(default, pa.int64())
    if buckets:
        other = pa.array((_hashes(array) % np.uint64(buckets)).astype("i8") + len(words))
    found = pc.if_else(found.is_valid(), found, other)
    return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.int64()))


def _hashes(array: pa.Array) -> np.ndarray:
    """Return the result of the operation ``hash`` with seed 0: (n,) u8."""
    if pa.types.is_integer(array.type):
        return hash_numbers([from_arrow(array)], "u8", (0,)).values
    return np.asarray(hash_values([array], "u8", (0,)).values)


def lookup_elements(array: pa.Array, *params: Any) -> pa.Array:
    """Apply ``lookup`` to every element of each list."""
    lists = lists_of(array)
    found = lookup(lists.flat()[0], *params)
    return lists._replace(kind=_numbers(lists.kind, ())).with_elements(found)


def _numbers(kind: pa.DataType, _params: Params) -> pa.DataType:
    return like(kind, pa.int64())


def _of_words(kind: pa.DataType, _params: Params) -> tuple[pa.DataType | None, ...]:
    return (kind.value_type if LIST.holds(kind) else kind, None, None)


FUNCTIONS = (
    Function(".one_hot", INTEGER, _vector, one_hot, vectors=True),
    Function(".multi_hot", INTEGERS, _vector, multi_hot, vectors=True),
    Function(".replace", SINGLE, same, of_one(replace), literals=lambda kind, _: (kind, kind)),
    Function(
        ".replace_strict",
        SINGLE,
        lambda _, params: params[2],
        of_one(replace_strict),
        fails=lambda params: not params[3],
        refusal=("the mapping does not name it", "default=..., or .replace(...), which keeps it"),
        literals=lambda kind, params: (kind, params[2], None, params[2]),
    ),
    Function(".lookup", WORD, always(pa.int64()), of_one(lookup), literals=_of_words),
    Function("list.lookup", WORDS, _numbers, of_one(lookup_elements), literals=_of_words),
)
