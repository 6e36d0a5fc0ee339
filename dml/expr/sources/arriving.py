"""This file gives Arrow data that comes from other libraries the types that blocks can hold."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dml.errors import SourceError

# Layouts that few kernels take, and the usual ones of the same values.
VIEWS: dict[pa.DataType, pa.DataType] = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}


def usual_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values in a layout that blocks hold, however deep.

    Views become large strings and binaries; dictionary and run-end encoding is taken off.
    """
    types = pa.types
    if kind in VIEWS:
        return VIEWS[kind]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return usual_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_usual_field(field) for field in kind.fields])
    if types.is_large_list(kind):
        return pa.large_list(_usual_field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(_usual_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_usual_field(kind.value_field), kind.list_size)
    return kind


def _usual_field(field: pa.Field) -> pa.Field:
    return field.with_type(usual_type(field.type))


def usual_column(array: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """The same values in usual types, without a copy where they are; SourceError if they are not.

    Values that are in a layout of their own are copied.
    """
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        array = _listed(array)
    wanted = usual_type(array.type)
    if array.type == wanted:
        return array
    try:
        if pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        if pa.types.is_dictionary(array.type):
            array = _decoded(array)
        return array if array.type == wanted else array.cast(wanted)
    except pa.ArrowException as error:
        raise SourceError(
            f"column {name!r} is {array.type}, which no column can hold",
            why=" ".join(str(error).split()),
            try_=f"cast it to {wanted} where it is made",
        ) from None


def _listed(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Lists in order instead of views of them; pyarrow 26 casts them to empty ones."""
    if isinstance(array, pa.ChunkedArray):
        kind = pa.large_list(array.type.value_field)
        return pa.chunked_array([_listed(chunk) for chunk in array.chunks], kind)
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    kind = pa.large_list(array.type.value_field)
    values = array.flatten()
    return pa.LargeListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())


def _decoded(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Values instead of places in a dictionary."""
    kind = array.type.value_type
    if kind in VIEWS:  # taking from a view is what no kernel does
        array = array.cast(pa.dictionary(array.type.index_type, VIEWS[kind]))
    if isinstance(array, pa.ChunkedArray):
        chunks = [chunk.dictionary_decode() for chunk in array.chunks]
        return pa.chunked_array(chunks, array.type.value_type)
    return array.dictionary_decode()
