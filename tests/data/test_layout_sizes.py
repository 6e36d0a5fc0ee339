"""Sizes that are read off buffers are those that Arrow itself counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dml.data.layouts import array_bytes, value_bytes

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-9, 9)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(9), st.integers(-99, 99)),
    (pa.date32(), st.integers(0, 99)),
    (pa.null(), st.none()),
    (pa.string_view(), st.text(max_size=20)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "bb"])),
]

SHAPES = ["struct", "fixed", "map", "list", "large"]


def above(
    kind: pa.DataType, value: st.SearchStrategy[Any], shape: str
) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A nested type over ``kind``, and its values."""
    value = st.one_of(st.none(), value)
    if shape == "struct":
        fields = [("x", kind), ("y", pa.int16())]
        return pa.struct(fields), st.fixed_dictionaries({"x": value, "y": st.just(1)})
    if shape == "fixed":
        return pa.list_(kind, 2), st.lists(value, min_size=2, max_size=2)
    if shape == "map":
        pairs = st.dictionaries(st.integers(0, 9), value, max_size=3)
        return pa.map_(pa.int32(), kind), pairs.map(lambda some: list(some.items()))
    large = shape == "large"
    return (pa.large_list if large else pa.list_)(kind), st.lists(value, max_size=4)


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    """A slice of an array of any type, with and without nulls."""
    kind, value = draw(st.sampled_from(LEAVES))
    for shape in draw(st.lists(st.sampled_from(SHAPES), max_size=3)):
        if pa.types.is_dictionary(kind) or pa.types.is_string_view(kind):
            break  # Arrow converts no nested ones
        kind, value = above(kind, value, shape)
    rows = draw(st.lists(st.one_of(st.none(), value) if draw(st.booleans()) else value))
    array = pa.array(rows, kind)
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start)))


@given(arrays())
def test_bytes_are_those_that_arrow_counts(array: pa.Array) -> None:
    # the bits of a mask that is cut touch a byte more or less, in Arrow's count
    parts = len(array.buffers())
    assert not len(array) or abs(array.nbytes - array_bytes(array)) <= parts


@given(arrays())
def test_bytes_of_values_do_not_depend_on_where_the_array_begins(array: pa.Array) -> None:
    copy = pa.concat_arrays([array, array.slice(0, 0)])
    assert value_bytes(copy) == value_bytes(array) <= array_bytes(copy) + 1


def test_bytes_of_values_are_added_up_without_masks() -> None:
    rows = pa.array([[1, None, 3], None, [4]], pa.list_(pa.int16()))
    assert value_bytes(rows) == 3 * 4 + 4 * 2
    assert value_bytes(rows.slice(1)) == 2 * 4 + 2
    assert value_bytes(pa.array([True] * 9)) == 2


def test_extension_types_have_the_bytes_of_their_storage() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((3, 2, 2)))
    assert array_bytes(tensors) == value_bytes(tensors) == 3 * 4 * 8
