"""Functions of lists return null for a null list; reductions skip null elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import (
    Arrays,
    Function,
    Kinds,
    NoSuchElementFailure,
    Params,
    always,
    is_bytes,
    is_plain_list,
    is_text,
    of_one,
)
from dml.kernels.vec import Vec, from_arrow, validity


def _of(holds: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: is_plain_list(kind) and holds(kind.value_type)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_plain(kind: pa.DataType) -> bool:
    moment = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return (
        is_text(kind) or is_bytes(kind) or _is_number(kind) or moment or pa.types.is_boolean(kind)
    )


LIST = Kinds("a list", is_plain_list)
NUMBERS = Kinds("a list of numbers", _of(_is_number))
TEXTS = Kinds("a list of text", _of(is_text))
PLAIN = Kinds("a list of numbers, booleans, text, bytes or times", _of(_is_plain))

# With at least so many lists per gap, the elements between two gaps are copied in one piece.
SPARSE = 8


class ListColumn(NamedTuple):
    """A column of lists: list i is ``values[starts[i] : starts[i] + lengths[i]]``.

    ``absent`` (n,) bool marks the lists that are null; their length is 0.
    """

    kind: pa.DataType
    values: pa.Array
    starts: np.ndarray
    lengths: np.ndarray
    absent: np.ndarray

    def flat(self) -> tuple[pa.Array, np.ndarray]:
        """Return the concatenated elements of all lists, and the list number of each."""
        return self.elements(), self.rows()

    def elements(self) -> pa.Array:
        """Return the concatenated elements of all lists; without a copy if they are contiguous."""
        ends = self.starts + self.lengths
        gaps = np.flatnonzero(self.starts[1:] != ends[:-1]) + 1
        if not len(ends) or len(gaps) * SPARSE > len(ends):
            return self.values.take(pa.array(self.places()))
        firsts = self.starts[[0, *gaps]].tolist()
        lasts = ends[[*gaps - 1, -1]].tolist()
        parts = [self.values.slice(a, b - a) for a, b in zip(firsts, lasts, strict=True)]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def rows(self) -> np.ndarray:
        """Return the list number of each element."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)

    def places(self) -> np.ndarray:
        """Return the index of each element in ``values``."""
        ends = np.cumsum(self.lengths)
        before = np.repeat(self.starts - ends + self.lengths, self.lengths)
        return np.asarray(before + np.arange(len(before)))

    def column(self) -> pa.Array:
        """Return the lists as an Arrow array."""
        return self.with_elements(self.elements())

    def with_elements(self, elements: pa.Array) -> pa.Array:
        """Return lists of length ``lengths``, filled from ``elements`` in order."""
        offsets = np.concatenate(([0], np.cumsum(self.lengths)))
        large = pa.types.is_large_list(self.kind)
        maker, width = (pa.LargeListArray, "i8") if large else (pa.ListArray, "i4")
        mask = pa.array(self.absent) if self.absent.any() else None
        places = pa.array(offsets.astype(width))
        return maker.from_arrays(places, elements, type=self.kind, mask=mask)


def like(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    """Return the type of lists of ``element``; a large list if ``kind`` is one."""
    return pa.large_list(element) if pa.types.is_large_list(kind) else pa.list_(element)


def lists_of(array: pa.Array) -> ListColumn:
    """Convert an Arrow array of lists, also of fixed size, to ``ListColumn``."""
    array = _loosened(array)
    n = len(array)
    valid = validity(array)
    absent = np.zeros(n, bool) if valid is None else ~valid
    offsets = array.offsets.to_numpy().astype("i8") if n else np.zeros(1, "i8")
    lengths = np.where(absent, 0, np.diff(offsets))
    return ListColumn(array.type, array.values, offsets[:-1], lengths, absent)


def _loosened(array: pa.Array) -> pa.Array:
    """Convert lists of fixed size to lists of variable length; return other lists unchanged.

    They are not cast to their own type, since pyarrow's cast is wrong.
    """
    kind = loose(array.type, ())
    return array if array.type == kind else array.cast(kind)


def loose(kind: pa.DataType, _params: Params) -> pa.DataType:
    """Return the type of variable-length lists with the same elements."""
    return pa.list_(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


def _element(kind: pa.DataType, _params: Params) -> pa.DataType:
    return kind.value_type


def length(array: pa.Array) -> pa.Array:
    """Return the number of elements of each list, including nulls."""
    lists = lists_of(array)
    return pa.array(lists.lengths, mask=lists.absent)


def get(array: pa.Array, index: int, null_on_oob: bool) -> pa.Array:  # noqa: FBT001 - a parameter
    """Return element ``index`` of each list, counted from the end if negative.

    For a shorter list: null if ``null_on_oob``, else raise NoSuchElementFailure.
    """
    lists = lists_of(array)
    place = np.full(len(array), index) + (lists.lengths if index < 0 else 0)
    outside = (place < 0) | (place >= lists.lengths)
    missing = outside & ~lists.absent
    if not null_on_oob and missing.any():
        row = int(np.argmax(missing))
        raise NoSuchElementFailure(row, int(lists.lengths[row]), str(index))
    return lists.values.take(pa.array(lists.starts + place, mask=outside))


def slice_list(array: pa.Array, offset: int, size: int | None) -> pa.Array:
    """Return ``list[offset:][:size]`` of each list."""
    lists = lists_of(array)
    lengths = lists.lengths
    skipped = np.minimum(offset, lengths) if offset >= 0 else np.maximum(lengths + offset, 0)
    left = lengths - skipped
    left = left if size is None else np.minimum(left, size)
    return lists._replace(starts=lists.starts + skipped, lengths=left).column()


def reverse(array: pa.Array) -> pa.Array:
    """Return each list with its elements from the last to the first."""
    lists = lists_of(array)
    # element k of list i stands where element lengths[i] - 1 - k stood
    mirror = np.repeat(2 * lists.starts + lists.lengths - 1, lists.lengths)
    return lists.with_elements(lists.values.take(pa.array(mirror - lists.places())))


def drop_nulls(array: pa.Array) -> pa.Array:
    """Return each list without its null elements."""
    lists = lists_of(array)
    return filtered(lists, lists.flat()[0].is_valid())


def filtered(lists: ListColumn, flags: pa.Array) -> pa.Array:
    """Keep the elements whose flag is true; ``flags`` has one for each of ``lists.elements()``."""
    elements, rows = lists.flat()
    kept = rows[flags.to_numpy(zero_copy_only=False).astype(bool)]
    lengths = np.bincount(kept, minlength=len(lists.starts))
    return lists._replace(lengths=lengths).with_elements(elements.filter(flags))


def sort(array: pa.Array, descending: bool) -> pa.Array:  # noqa: FBT001 - a parameter
    """Sort each list, stably; NaN is after other values, and nulls are last, in both orders."""
    lists = lists_of(array)
    elements, rows = lists.flat()
    table = pa.table({"list": pa.array(rows), "element": elements})
    order = "descending" if descending else "ascending"
    keys = [("list", "ascending"), ("element", order)]
    index = compute().sort_indices(table, sort_keys=keys)
    return lists.with_elements(elements.take(index))


def unique(array: pa.Array) -> pa.Array:
    """Keep the first of equal elements of each list; NaNs are equal, nulls too, and both zeros."""
    lists = lists_of(array)
    elements, rows = lists.flat()
    floats = pa.types.is_floating(elements.type)
    alike = compute().add(elements, 0.0) if floats else elements
    if floats:
        nan = pa.scalar(float("nan"), elements.type)
        alike = compute().if_else(compute().is_nan(alike), nan, alike)
    codes = alike.dictionary_encode(null_encoding="encode").indices.to_numpy().astype("i8")
    _, firsts = np.unique(rows * (codes.max(initial=0) + 1) + codes, return_index=True)
    flags = np.zeros(len(rows), bool)
    flags[firsts] = True
    return filtered(lists, pa.array(flags))


def join(array: pa.Array, separator: str, ignore_nulls: bool) -> pa.Array:  # noqa: FBT001 - a parameter
    """Join each list with ``separator``; null if an element is null, unless ``ignore_nulls``."""
    array = drop_nulls(array) if ignore_nulls else _loosened(array)
    return compute().binary_join(array, pa.scalar(separator, array.type.value_type))


def contains(arrays: Arrays, _params: Params) -> pa.Array:
    """Return true where an element equals the row's item; a null element equals no item."""
    lists, items = lists_of(arrays[0]), arrays[1]
    elements, rows = lists.flat()
    equal = compute().equal(elements, items.take(pa.array(rows)))
    found = np.zeros(len(items), bool)
    found[rows[equal.fill_null(fill_value=False).to_numpy(zero_copy_only=False)]] = True
    absent = lists.absent | ~items.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(found, mask=absent)


# ------------------------------------------------------------------------------------- reductions


def _present(lists: ListColumn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the elements that are not null, their list numbers, and the count per list."""
    elements, rows = lists.flat()
    vec: Vec = from_arrow(elements)
    values = vec.values
    if vec.valid is not None:
        values, rows = values[vec.valid], rows[vec.valid]
    return values, rows, np.bincount(rows, minlength=len(lists.starts))


def sum_type(element: pa.DataType) -> pa.DataType:
    """Return the type of a sum: 64 bits for integers, floats in their own type."""
    if pa.types.is_floating(element):
        return element
    return pa.int64() if pa.types.is_signed_integer(element) else pa.uint64()


def mean_type(element: pa.DataType) -> pa.DataType:
    """Return the type of a mean: float64, or float32 for float32."""
    return pa.float32() if pa.types.is_float32(element) else pa.float64()


def _total(values: np.ndarray, rows: np.ndarray, n: int) -> np.ndarray:
    """Return the sum of each list in float64, added from 0.0 in order (as bincount does): (n,)."""
    return np.bincount(rows, weights=values.astype("f8", copy=False), minlength=n)


def _floats(found: np.ndarray, kind: pa.DataType, absent: np.ndarray) -> pa.Array:
    with np.errstate(over="ignore"):
        rounded = found.astype(kind.to_pandas_dtype())
    return pa.array(rounded, kind, mask=absent)


def total(array: pa.Array) -> pa.Array:
    """Sum each list: integers in 64 bits, wrapping; floats in float64 from the left, then rounded.

    An empty list has the sum 0.
    """
    lists = lists_of(array)
    kind = sum_type(lists.kind.value_type)
    values, rows, counts = _present(lists)
    if pa.types.is_floating(kind):
        return _floats(_total(values, rows, len(counts)), kind, lists.absent)
    dtype = kind.to_pandas_dtype()
    # differences of running sums that wrap are sums that wrap
    running = np.concatenate((np.zeros(1, dtype), np.cumsum(values.astype(dtype), dtype=dtype)))
    ends = np.cumsum(counts)
    return pa.array(running[ends] - running[ends - counts], kind, mask=lists.absent)


def mean(array: pa.Array) -> pa.Array:
    """Return each list's sum (float64, from the left) over its count; null without elements."""
    lists = lists_of(array)
    values, rows, counts = _present(lists)
    sums = _total(values, rows, len(counts))
    found = sums / np.maximum(counts, 1)
    return _floats(found, mean_type(lists.kind.value_type), counts == 0)


def _extreme(ufunc: np.ufunc, array: pa.Array) -> pa.Array:
    """Return the least or greatest element of each list, by ``ufunc``; null without elements.

    The result is NaN if any element is NaN; -0.0 is less than 0.0.
    """
    lists = lists_of(array)
    values, _, counts = _present(lists)
    some = counts > 0
    found = np.zeros(len(counts), values.dtype)
    if some.any():
        starts = (np.cumsum(counts) - counts)[some]
        found[some] = _reduced(values, starts, ufunc)
    return pa.array(found, lists.kind.value_type, mask=~some)


def _reduced(values: np.ndarray, starts: np.ndarray, ufunc: np.ufunc) -> np.ndarray:
    if values.dtype.kind != "f":
        return np.asarray(ufunc.reduceat(values, starts))
    nan = np.logical_or.reduceat(np.isnan(values), starts)
    # bits read as integers have the order of the floats, if negative ones invert all but the sign
    ordered = _turned(np.where(np.isnan(values), values.dtype.type(0), values))
    found = _turned(ufunc.reduceat(ordered, starts)).view(values.dtype)
    found[nan] = np.nan
    return found


def _turned(values: np.ndarray) -> np.ndarray:
    bits = values.view(f"i{values.dtype.itemsize}")
    return np.asarray(np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits))


FUNCTIONS = (
    Function("list.len", LIST, always(pa.int64()), of_one(length)),
    Function("list.get", LIST, _element, of_one(get), fails=lambda params: not params[1]),
    Function("list.slice", LIST, loose, of_one(slice_list)),
    Function("list.reverse", LIST, loose, of_one(reverse)),
    Function("list.sort", PLAIN, loose, of_one(sort)),
    Function("list.unique", PLAIN, loose, of_one(unique)),
    Function("list.drop_nulls", LIST, loose, of_one(drop_nulls)),
    Function("list.join", TEXTS, _element, of_one(join)),
    Function("list.sum", NUMBERS, lambda kind, _: sum_type(kind.value_type), of_one(total)),
    Function("list.mean", NUMBERS, lambda kind, _: mean_type(kind.value_type), of_one(mean)),
    Function("list.min", NUMBERS, _element, of_one(partial(_extreme, np.minimum))),
    Function("list.max", NUMBERS, _element, of_one(partial(_extreme, np.maximum))),
    Function(
        "list.contains", PLAIN, always(pa.bool_()), contains, rest=lambda kind: kind.value_type
    ),
)
