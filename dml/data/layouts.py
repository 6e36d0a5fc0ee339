"""Arrow data is converted to the layouts that blocks use: no views, no encodings.

Sizes of arrays are read off their buffers, while Python's lock is held. ``pyarrow.Array.nbytes``
gives up the lock to add a few integers; where many threads run short pieces of Python, each of them
then waits for all others.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import SourceError

# Layouts of text and bytes, and the layout of columns: one for the files of all writers.
TEXT_LAYOUTS: dict[pa.DataType, pa.DataType] = {
    pa.string_view(): pa.string(),
    pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}

# Values of at most FEW rows are joined here, since Arrow would copy them twice.
FEW, MOST_TEXT = 64, 2**31 - 1
TEXTS = (pa.string(), pa.binary())
ALL_TEXTS = (*TEXTS, pa.large_string(), pa.large_binary())
# How an offset of so many bytes is read, and the bytes of one in the arrays that have offsets.
OFFSETS = {4: struct.Struct("=i"), 8: struct.Struct("=q")}
WIDTHS = {
    pa.ListArray: 4,
    pa.MapArray: 4,
    pa.LargeListArray: 8,
    pa.StringArray: 4,
    pa.BinaryArray: 4,
    pa.LargeStringArray: 8,
    pa.LargeBinaryArray: 8,
}


@lru_cache(maxsize=1024)
def usual_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values in the layout of blocks, at every nesting level.

    Large types and views become strings, binaries and lists; dictionaries and runs are decoded.
    """
    if _is_list_view(kind):
        return pa.list_(_usual_field(kind.value_field))
    return _usual(kind)


def _usual(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if kind in TEXT_LAYOUTS:
        return TEXT_LAYOUTS[kind]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _usual(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_usual_field(field) for field in kind.fields])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_usual_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_usual_field(kind.value_field), kind.list_size)
    if types.is_map(kind):
        return pa.map_(_usual(kind.key_type), _usual(kind.item_type), kind.keys_sorted)
    return kind


def _usual_field(field: pa.Field) -> pa.Field:
    """Return a nullable field of usual type; a declaration that nulls are absent is ignored."""
    return pa.field(field.name, _usual(field.type))


def is_text_or_bytes(kind: pa.DataType) -> bool:
    """Return True for texts and bytes of variable length."""
    return kind in ALL_TEXTS


def check_names(kind: pa.DataType) -> None:
    """Raise UnicodeDecodeError for a field name that is not valid text, at any depth."""
    for number in range(kind.num_fields):
        field = kind.field(number)
        if field.name is not None:
            check_names(field.type)


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def usual_column(
    array: pa.Array | pa.ChunkedArray, name: str = "of values"
) -> pa.Array | pa.ChunkedArray:
    """Convert values to their usual type; raise SourceError if Arrow cannot convert them.

    Values of the usual type are not copied; of large types only the offsets are copied.
    """
    wanted = usual_type(array.type)
    if array.type == wanted:
        return array
    if isinstance(array, pa.ChunkedArray):
        parts = (part for chunk in array.chunks for part in _addressable(chunk))
        return pa.chunked_array([usual_column(part, name) for part in parts], wanted)
    try:
        return _cast(_decoded(array), wanted)
    except MemoryError:  # Arrow's own MemoryError is an ArrowException, too
        raise
    except pa.ArrowException as error:
        raise SourceError(
            f"column {name!r} is {array.type}, which no column can hold",
            why=" ".join(str(error).split()),
            try_=f"cast it to {wanted} where it is made",
        ) from None


def _addressable(array: pa.Array) -> Iterator[pa.Array]:
    """Yield parts of the rows whose values are few enough for offsets of 32 bits."""
    if array.nbytes <= MOST_TEXT or len(array) < 2:
        yield array
        return
    half = len(array) // 2
    yield from _addressable(array.slice(0, half))
    yield from _addressable(array.slice(half))


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type == wanted:
        return array
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        if array.nbytes > MOST_TEXT:
            raise
        # the offsets of a slice may be large although its values are few
        return pa.concat_arrays([array]).cast(wanted)


def _decoded(array: pa.Array) -> pa.Array:
    """Decode list views, run-end and dictionary encoding to plain values."""
    if _is_list_view(array.type):
        return _listed(array)
    if isinstance(array, pa.RunEndEncodedArray):
        places = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(np.asarray(array.run_ends), places, side="right")
        return usual_column(array.values, "of runs").take(pa.array(runs))
    if isinstance(array, pa.DictionaryArray):
        return usual_column(array.dictionary, "of a dictionary").take(array.indices)
    return array


def _listed(array: pa.Array) -> pa.Array:
    """Convert list views to lists; a cast in pyarrow 26 would make them empty."""
    sizes = np.where(np.asarray(array.is_null()), 0, np.asarray(array.sizes))
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int64())
    kind = pa.large_list(array.type.value_field)
    return pa.LargeListArray.from_arrays(offsets, array.flatten(), type=kind, mask=array.is_null())


def texts(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build a column of a few texts or bytes, which may be large; a single value is not copied."""
    plain = bytes if kind == pa.binary() else str
    if frozenset(map(type, column)) != {plain}:
        return pa.array(column, type=kind)
    values = column if plain is bytes else [value.encode() for value in column]
    ends = np.cumsum([0, *map(len, values)])
    if ends[-1] > MOST_TEXT:
        return pa.array(column, type=kind)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(column), buffers)


def array_bytes(array: pa.Array) -> int:
    """Return the bytes of the sliced elements: ``array.nbytes``, to a byte for each mask."""
    return math.ceil(_bytes(array, 0, len(array), masks=True))


def value_bytes(array: pa.Array) -> int:
    """Return the bytes of the values without any validity masks, however deep, rounded up.

    Equal values have as many bytes, whether their array has masks or not, and wherever it begins.
    """
    return math.ceil(_bytes(array, 0, len(array), masks=False))


def _bytes(array: Any, start: int, stop: int, *, masks: bool) -> float:
    """Return the bytes of elements ``start`` to ``stop``; without masks a bit is an eighth."""
    if start == stop:
        return 0
    if isinstance(array, pa.ExtensionArray):
        return _bytes(array.storage, start, stop, masks=masks)
    buffers = array.buffers()
    begin, end = array.offset + start, array.offset + stop
    mask_bytes = _packed(begin, stop - start) if masks and buffers[0] is not None else 0
    if isinstance(array, pa.StructArray):
        fields = map(array.field, range(array.type.num_fields))
        return mask_bytes + sum(_bytes(field, start, stop, masks=masks) for field in fields)
    if isinstance(array, pa.FixedSizeListArray):
        size = array.type.list_size
        return mask_bytes + _bytes(array.values, begin * size, end * size, masks=masks)
    width = WIDTHS.get(type(array))
    if width is None:
        return mask_bytes + _flat(array, start, stop, masks=masks)
    read = OFFSETS[width].unpack_from
    (first,), (last,) = read(buffers[1], width * begin), read(buffers[1], width * end)
    nested = isinstance(array, pa.lib.BaseListArray)
    inner = _bytes(array.values, first, last, masks=masks) if nested else last - first
    return mask_bytes + width * (stop - start) + inner


def _flat(array: Any, start: int, stop: int, *, masks: bool) -> float:
    """Return the bytes of elements that are not nested, without their mask."""
    rows, begin = stop - start, array.offset + start
    if isinstance(array, pa.lib.NumericArray | pa.FixedSizeBinaryArray):
        return float(array.type.bit_width // 8 * rows)
    if isinstance(array, pa.BooleanArray):
        return _packed(begin, rows) if masks else rows / 8
    part = array.slice(start, rows)  # of a layout that Arrow alone knows
    masked = part.buffers()[0] is not None
    return float(part.nbytes - (_packed(begin, rows) if masked else 0))


def _packed(begin: int, rows: int) -> int:
    """Return in how many bytes the bits of ``rows`` elements from ``begin`` on lie."""
    return (begin % 8 + rows + 7) // 8
