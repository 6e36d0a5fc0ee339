"""Tensors whose shapes differ by row are Arrow columns of the elements and shape of each row.

kind = OpenTensor(pa.uint8(), (None, None, 3))       # images of any height and width
column = column_of([np.zeros((4, 6, 3), "u1")], kind)
arrays_in(column)                                    # the arrays again, as read-only views
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa

from dml.errors import InternalError

Shape: TypeAlias = "tuple[int | None, ...]"
NAME = "dml.tensor"


class ExactType(pa.ExtensionType):  # type: ignore[misc]
    """A type that is equal by class and ``parts``; Arrow compares name and storage alone."""

    def parts(self) -> tuple[object, ...]:
        """Return the values in which types of the same class differ."""
        raise InternalError(f"{type(self).__name__} has no parts")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.parts() == other.parts()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self), self.parts()))


class OpenTensor(ExactType):
    """Tensors of one type and number of axes; an axis that is None in ``shape`` is of any length.

    ``stacked`` tensors come from a function of batches: if the rows of a batch have equal shapes,
    they are delivered as one array.
    """

    def __init__(self, value_type: pa.DataType, shape: Shape, *, stacked: bool = False) -> None:
        self.value_type, self.shape, self.stacked = value_type, tuple(shape), stacked
        lengths = pa.list_(pa.int32(), len(self.shape))
        super().__init__(pa.struct({"data": pa.large_list(value_type), "shape": lengths}), NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps([self.shape, self.stacked]).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Self:
        shape, stacked = json.loads(serialized)
        return cls(storage.field("data").type.value_type, tuple(shape), stacked=stacked)

    @property
    def axes(self) -> str:
        """The axes as text: ``?,?,3``."""
        return ",".join("?" if length is None else str(length) for length in self.shape)

    def __str__(self) -> str:
        return f"{self.value_type}[{self.axes}]"

    def parts(self) -> tuple[object, ...]:
        """Return the type of the elements, the axes, and ``stacked``."""
        return self.value_type, self.shape, self.stacked

    def covers(self, shape: tuple[int, ...]) -> bool:
        """Return True if ``shape`` has this number of axes, of these known lengths."""
        pairs = zip(shape, self.shape, strict=False)
        return len(shape) == len(self.shape) and all(b is None or a == b for a, b in pairs)


# Arrow finds the type by this name when it reads data of other processes and files; if the module
# is loaded a second time, as in a notebook, the new type replaces the old one.
with suppress(pa.ArrowKeyError):
    pa.unregister_extension_type(NAME)
pa.register_extension_type(OpenTensor(pa.uint8(), (None, None)))


def column_of(arrays: Sequence[np.ndarray | None], kind: OpenTensor) -> pa.ExtensionArray:
    """Build a column with one row per array, each of which fits ``kind``; None is null."""
    dtype, axes = kind.value_type.to_pandas_dtype(), len(kind.shape)
    there = [np.zeros((0,) * axes, dtype) if array is None else array for array in arrays]
    ends = np.cumsum([0, *(array.size for array in there)], dtype=np.int64)
    flat = np.empty(int(ends[-1]), dtype)
    for array, start, stop in zip(there, ends[:-1], ends[1:], strict=True):
        flat[start:stop] = array.reshape(-1)
    shapes = np.array([array.shape for array in there], np.int32).reshape(len(there), axes)
    absent = pa.array([array is None for array in arrays], pa.bool_())
    return _column(kind, ends, flat, shapes, absent)


def _column(
    kind: OpenTensor, ends: np.ndarray, flat: np.ndarray, shapes: np.ndarray, absent: Any
) -> pa.ExtensionArray:
    """Return the column whose row i has ``flat[ends[i] : ends[i + 1]]``, null where ``absent``."""
    lengths = pa.array(shapes.reshape(-1).astype(np.int32))
    parts = [
        pa.LargeListArray.from_arrays(pa.array(ends), pa.array(flat)),
        pa.FixedSizeListArray.from_arrays(lengths, len(kind.shape)),
    ]
    fields = list(kind.storage_type)
    storage = pa.StructArray.from_arrays(parts, fields=fields, mask=absent)
    return pa.ExtensionArray.from_storage(kind, storage)


def arrays_in(column: pa.ExtensionArray) -> list[np.ndarray | None]:
    """Return the array of each row, as a read-only view; None where it is null."""
    flat, ends, shapes = _parts_of(column)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return [
        flat[start:stop].reshape(shape) if there else None
        for start, stop, shape, there in zip(ends[:-1], ends[1:], shapes, valid, strict=True)
    ]


def tensors_at(column: pa.ExtensionArray, index: np.ndarray) -> pa.ExtensionArray:
    """Return the tensors at ``index``; below 0 is null.

    Arrow's ``take`` makes an index of 8 bytes for each number of the tensors.
    """
    wanted = index[index >= 0]
    first = int(wanted.min(initial=len(column)))
    arrays = arrays_in(column.slice(first, int(wanted.max(initial=first)) + 1 - first))
    chosen = [None if place < 0 else arrays[place - first] for place in index.tolist()]
    return column_of(chosen, column.type)


def element_type(kind: OpenTensor) -> pa.DataType:
    """Return the type of the elements along the first axis."""
    shape = kind.shape[1:]
    if None in shape:
        return OpenTensor(kind.value_type, shape)
    return pa.fixed_shape_tensor(kind.value_type, shape) if shape else kind.value_type


def elements_in(column: pa.ExtensionArray) -> tuple[pa.ExtensionArray | np.ndarray, np.ndarray]:
    """Return the elements of all rows along the first axis, and how many each row has.

    Elements of one shape are an array (n, *shape), others a column. A row that is null has none.
    """
    counts = shapes_in(column)[:, 0].astype(np.int64)
    kind, storage = element_type(column.type), column.storage
    if column.null_count:
        storage = storage.filter(column.is_valid())
    flat, _, shapes = _parts_of(pa.ExtensionArray.from_storage(column.type, storage))
    each = np.repeat(shapes[:, 1:], shapes[:, 0], axis=0)
    if not isinstance(kind, OpenTensor):
        return flat.reshape(len(each), *column.type.shape[1:]), counts
    ends = np.concatenate([[0], np.cumsum(each.prod(1, dtype=np.int64))])
    return _column(kind, ends, flat, each, None), counts


def open_axis(kind: pa.DataType) -> int | None:
    """Return the only axis of tensors ``kind`` that is of any length; None for other types."""
    if not isinstance(kind, OpenTensor) or kind.shape.count(None) != 1:
        return None
    return kind.shape.index(None)


def shapes_in(column: pa.ExtensionArray) -> np.ndarray:
    """Return the shapes of the rows (n, axes), of zeros where a row is null."""
    shapes = _parts_of(column)[2]
    absent = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(absent[:, None], 0, shapes)


def padded_in(column: pa.ExtensionArray, fill: float, width: int | None) -> np.ndarray:
    """Return all rows as one array of ``padded_shape``, with ``fill`` after shorter axes.

    A row that is null is ``fill``.
    """
    dtype = column.type.value_type.to_pandas_dtype()
    out = np.full(padded_shape(column, width), fill, dtype)
    for row, array in zip(out, arrays_in(column), strict=True):
        if array is not None:
            row[tuple(map(slice, array.shape))] = array
    return out


def padded_shape(column: pa.ExtensionArray, width: int | None) -> tuple[int, ...]:
    """Return the shape of all rows as one array: each axis is as long as the longest row.

    The only open axis has ``width``, if that is given.
    """
    kind, shapes = column.type, shapes_in(column)
    longest = shapes.max(0, initial=0).tolist()
    lengths = [
        most if known is None else known for most, known in zip(longest, kind.shape, strict=True)
    ]
    if width is not None:
        lengths[kind.shape.index(None)] = width
    return (len(column), *lengths)


def stacked_in(column: pa.ExtensionArray) -> np.ndarray | None:
    """Return all rows as one read-only view (n, *shape); None if shapes differ or any is null."""
    flat, ends, shapes = _parts_of(column)
    if not len(column) or column.null_count or (shapes != shapes[0]).any():
        return None
    return flat[ends[0] : ends[-1]].reshape(len(column), *shapes[0])


def _parts_of(column: pa.ExtensionArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the elements of all rows, the offsets of rows (n + 1,), and the shapes (n, axes)."""
    data, lengths = column.storage.field("data"), column.storage.field("shape")
    ends = data.offsets.to_numpy()
    values = data.values.slice(ends[0], ends[-1] - ends[0])
    flat = values.to_numpy(zero_copy_only=False)
    flat.flags.writeable = False
    axes = len(column.type.shape)
    known = lengths.values.slice(lengths.offset * axes, len(lengths) * axes).fill_null(0)
    return flat, ends - ends[0], known.to_numpy().reshape(len(column), axes)
