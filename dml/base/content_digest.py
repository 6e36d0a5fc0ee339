"""Arrays, Arrow types and Arrow data are split into pieces to hash, which depend on content alone.

The pieces are small values (type, length, names) and ``Bulk`` bytes, which ``dml.base.encoder``
hashes in place. Layout has no influence: strides, slices, chunks, padding and the bytes under a
null are left out. Metadata of fields and schemas is not content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

ARROW = (
    *(pa.DataType, pa.Field, pa.Schema, pa.Scalar),
    *(pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table),
)


class Bulk(NamedTuple):
    """Contiguous bytes that are part of the content; ``data`` keeps its memory alive."""

    data: memoryview


def is_arrow(value: object) -> bool:
    """Return True if ``arrow_pieces`` accepts the value."""
    return isinstance(value, ARROW)


def dtype_text(dtype: np.dtype[Any]) -> object:
    """Describe a dtype for a digest: its letter code, or names, codes and shapes of its parts."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (dtype_text(base), shape)
    if dtype.names is not None:
        return tuple((name, dtype_text(dtype[name])) for name in dtype.names)
    return dtype.str if dtype.kind != "T" else "T"


def array_pieces(array: np.ndarray[Any, Any]) -> Iterator[object]:
    """Yield the content of an array in C order; objects one by one, records field by field."""
    if array.dtype.names is not None:
        for name in array.dtype.names:
            yield from array_pieces(array[name])
    elif array.dtype.hasobject:
        yield array.ravel().tolist()
    else:
        yield bulk(array)


def bulk(array: np.ndarray[Any, Any]) -> Bulk:
    """Return the bytes of an array in C order, without a copy if it is contiguous."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return Bulk(memoryview(flat.view(np.uint8).data))


def arrow_pieces(value: Any) -> Iterator[object]:
    """Yield the content of any Arrow type, field, schema, scalar, array, batch or table."""
    if isinstance(value, pa.DataType):
        yield type_text(value)
    elif isinstance(value, pa.Field):
        yield field_text(value)
    elif isinstance(value, pa.Schema):
        yield ("schema", tuple(field_text(field) for field in value))
    elif isinstance(value, pa.Scalar):
        yield "scalar"
        yield from arrow_pieces(pa.array([value.as_py()], value.type))
    elif isinstance(value, pa.RecordBatch | pa.Table):
        yield ("table", tuple(field_text(field) for field in value.schema), value.num_rows)
        for column in value.columns:
            yield from values_pieces(_whole(column))
    else:
        yield ("array", type_text(value.type), len(value))
        yield from values_pieces(_whole(value))


def type_text(kind: pa.DataType) -> object:
    """Describe a type for a digest: Arrow's own text for a leaf, a tuple for a nested type."""
    if isinstance(kind, pa.BaseExtensionType):
        inside = kind.__arrow_ext_serialize__() if isinstance(kind, pa.ExtensionType) else str(kind)
        return ("extension", kind.extension_name, type_text(kind.storage_type), inside)
    if pa.types.is_dictionary(kind):
        parts = (type_text(kind.index_type), type_text(kind.value_type))
        return ("dictionary", *parts, kind.ordered)
    if pa.types.is_map(kind):
        return ("map", field_text(kind.key_field), field_text(kind.item_field), kind.keys_sorted)
    if pa.types.is_union(kind):
        return ("union", kind.mode, tuple(kind.type_codes), _fields_text(kind))
    if pa.types.is_run_end_encoded(kind):
        return ("run_ends", type_text(kind.run_end_type), type_text(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return ("fixed_size_list", kind.list_size, field_text(kind.value_field))
    if pa.types.is_nested(kind):
        return (str(kind).partition("<")[0], _fields_text(kind))
    return str(kind)


def field_text(field: pa.Field) -> object:
    """Return name, type, and whether nulls are allowed."""
    return (field.name, type_text(field.type), field.nullable)


def _fields_text(kind: pa.DataType) -> tuple[object, ...]:
    return tuple(field_text(kind.field(i)) for i in range(kind.num_fields))


def _whole(value: Any) -> pa.Array:
    """Join the chunks of ``value``; text gets 64-bit offsets, so that any amount of it fits."""
    if not isinstance(value, pa.ChunkedArray):
        return value
    if _is_text(value.type):
        value = value.cast(pa.large_binary())
    if value.num_chunks == 1:
        return value.chunk(0)
    return pa.concat_arrays(value.chunks) if value.num_chunks else pa.array([], value.type)


def values_pieces(array: pa.Array) -> Iterator[object]:
    """Yield validity (if any null) and values of an array, without its type and length."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from values_pieces(array.storage)
        return
    if pa.types.is_dictionary(kind):
        yield from values_pieces(array.dictionary_decode())
        return
    yield from _validity_pieces(array)
    for is_kind, pieces in LAYOUTS:
        if is_kind(kind):
            yield from pieces(array)
            return
    yield array.to_pylist()


def unpacked(bits: pa.Buffer, offset: int, count: int) -> np.ndarray:
    """Return bits ``offset`` to ``offset + count`` of a buffer of Arrow's as booleans, (count,)."""
    first, last = offset // 8, offset % 8 + count
    packed = np.frombuffer(bits, np.uint8)[first : first + (last + 7) // 8]
    return np.unpackbits(packed, count=last, bitorder="little")[offset % 8 :].view(bool)


def _bits(array: pa.Array) -> np.ndarray[Any, Any]:
    """Pack a boolean array without nulls, eight values per byte."""
    data = array.buffers()[1]
    flags = np.zeros(0, bool) if data is None else unpacked(data, array.offset, len(array))
    return np.packbits(flags)


def _bit_pieces(array: pa.Array) -> Iterator[object]:
    filled = array.fill_null(False) if array.null_count else array  # noqa: FBT003
    yield bulk(_bits(filled))


def _struct_pieces(array: pa.Array) -> Iterator[object]:
    for part in array.flatten():
        yield from values_pieces(part)


def _validity_pieces(array: pa.Array) -> Iterator[object]:
    yield array.null_count
    if array.null_count and not pa.types.is_null(array.type):
        yield bulk(_bits(array.is_valid()))


def _fixed_pieces(array: pa.Array) -> Iterator[object]:
    """Yield values of equal width as ``(n, width) u8``, zero where null."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None or not width:
        yield bulk(np.zeros((len(array), width), np.uint8))
        return
    start = array.offset * width
    rows = np.frombuffer(data, np.uint8)[start : start + len(array) * width]
    rows = rows.reshape(len(array), width)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        rows = np.where(valid[:, None], rows, 0).astype(np.uint8)
    yield bulk(rows)


def _text_pieces(array: pa.Array) -> Iterator[object]:
    """Yield the lengths, then all bytes one after another; a null has length 0."""
    width: np.dtype[Any] = np.dtype(np.int32)
    if array.null_count or array.type not in (pa.string(), pa.binary()):
        array, width = array.cast(pa.large_binary()), np.dtype(np.int64)
        array = array.fill_null(b"") if array.null_count else array
    _, ends, data = array.buffers()
    if not len(array):
        return
    offsets = np.frombuffer(ends, width)[array.offset : array.offset + len(array) + 1]
    yield bulk(np.diff(offsets).astype(np.int64))
    whole = np.frombuffer(data or b"", np.uint8)  # without a buffer where all texts are empty
    yield bulk(whole[offsets[0] : offsets[-1]])


def _list_pieces(array: pa.Array) -> Iterator[object]:
    """Yield the lengths, then the elements of all lists that are not null."""
    lengths = array.value_lengths().fill_null(0).cast(pa.int64())
    yield bulk(lengths.to_numpy(zero_copy_only=False))
    yield from values_pieces(array.flatten())


def _is_text(kind: pa.DataType) -> bool:
    """Return True for variable-length text or bytes, of any offset width, and for their views."""
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return bool(wide or view or pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_fixed(kind: pa.DataType) -> bool:
    number = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return bool(number or pa.types.is_fixed_size_binary(kind))


Layout = tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Iterator[object]]]

# The first matching entry decides how an array is read; maps and unions are read value by value.
LAYOUTS: tuple[Layout, ...] = (
    (pa.types.is_null, lambda _: iter(())),
    (pa.types.is_boolean, _bit_pieces),
    (_is_fixed, _fixed_pieces),
    (_is_text, _text_pieces),
    (_is_list, _list_pieces),
    (pa.types.is_struct, _struct_pieces),
)
