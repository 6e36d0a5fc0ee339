"""Tensors whose shapes differ from row to row are Arrow columns: the elements and shape of each.

kind = OpenTensor(pa.uint8(), (None, None, 3))       # images of any height and width
column = column_of([np.zeros((4, 6, 3), "u1")], kind)
arrays_in(column)                                    # the arrays again, as read-only views
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa

Shape: TypeAlias = "tuple[int | None, ...]"
NAME = "dml.tensor"


class OpenTensor(pa.ExtensionType):  # type: ignore[misc]
    """Tensors of one type and number of axes; an axis that is None in ``shape`` is of any length.

    ``stacked`` ones were made by a function of batches: rows of one batch that have one shape are
    delivered as the one array that they were.
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
        """The axes in letters: ``?,?,3``."""
        return ",".join("?" if length is None else str(length) for length in self.shape)

    def __str__(self) -> str:
        return f"{self.value_type}[{self.axes}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenTensor) and self._parts() == other._parts()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[object, ...]:
        return self.value_type, self.shape, self.stacked

    def holds(self, array: np.ndarray) -> bool:
        """True if ``array`` has its number of axes, and the lengths that are given."""
        return self.covers(array.shape)

    def covers(self, shape: tuple[int, ...]) -> bool:
        """True if ``shape`` has its number of axes, and the lengths that are given."""
        pairs = zip(shape, self.shape, strict=False)
        return len(shape) == len(self.shape) and all(b is None or a == b for a, b in pairs)


# Arrow makes such columns of what comes from other processes and files by this name; of a module
# that is loaded a second time, as in a notebook, the new type counts.
with suppress(pa.ArrowKeyError):
    pa.unregister_extension_type(NAME)
pa.register_extension_type(OpenTensor(pa.uint8(), (None, None)))


def column_of(arrays: Sequence[np.ndarray | None], kind: OpenTensor) -> pa.ExtensionArray:
    """One row per array that ``kind`` holds; None is null."""
    dtype, axes = kind.value_type.to_pandas_dtype(), len(kind.shape)
    there = [np.zeros((0,) * axes, dtype) if array is None else array for array in arrays]
    ends = np.cumsum([0, *(array.size for array in there)], dtype=np.int64)
    flat = np.empty(int(ends[-1]), dtype)
    for array, start, stop in zip(there, ends[:-1], ends[1:], strict=True):
        flat[start:stop] = array.reshape(-1)
    shapes = np.array([array.shape for array in there], np.int32).reshape(len(there), axes)
    parts = [
        pa.LargeListArray.from_arrays(pa.array(ends), pa.array(flat)),
        pa.FixedSizeListArray.from_arrays(pa.array(shapes.reshape(-1)), axes),
    ]
    absent = pa.array([array is None for array in arrays], pa.bool_())
    fields = list(kind.storage_type)
    storage = pa.StructArray.from_arrays(parts, fields=fields, mask=absent)
    return pa.ExtensionArray.from_storage(kind, storage)


def arrays_in(column: pa.ExtensionArray) -> list[np.ndarray | None]:
    """The array of each row, a read-only view; None where it is null."""
    flat, ends, shapes = _parts_of(column)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return [
        flat[start:stop].reshape(shape) if there else None
        for start, stop, shape, there in zip(ends[:-1], ends[1:], shapes, valid, strict=True)
    ]


def stacked_in(column: pa.ExtensionArray) -> np.ndarray | None:
    """All rows as one read-only array (n, *shape), a view; None if there is no such array."""
    flat, ends, shapes = _parts_of(column)
    if not len(column) or column.null_count or (shapes != shapes[0]).any():
        return None
    return flat[ends[0] : ends[-1]].reshape(len(column), *shapes[0])


def _parts_of(column: pa.ExtensionArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Elements of all rows, where each row's end among them (n + 1,), and the shapes (n, axes)."""
    data, lengths = column.storage.field("data"), column.storage.field("shape")
    ends = data.offsets.to_numpy()
    values = data.values.slice(ends[0], ends[-1] - ends[0])
    flat = values.to_numpy(zero_copy_only=False)
    flat.flags.writeable = False
    axes = len(column.type.shape)
    known = lengths.values.slice(lengths.offset * axes, len(lengths) * axes).fill_null(0)
    return flat, ends - ends[0], known.to_numpy().reshape(len(column), axes)
