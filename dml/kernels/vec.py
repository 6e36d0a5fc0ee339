"""A Vec is a column of numbers or booleans, on which operations of programs work."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dml.base.content_digest import unpacked
from dml.base.open_tensors import OpenTensor, tensors_at

# Type codes whose values are NumPy arrays; every other type has code "arrow".
NUMERIC_CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")

ARROW_TYPES: dict[str, pa.DataType] = {
    "b1": pa.bool_(),
    **{code: pa.from_numpy_dtype(np.dtype(code)) for code in NUMERIC_CODES[1:]},
}


class Vec(NamedTuple):
    """A column: ``values`` (n, *element shape), and ``valid`` (n,) bool or, without nulls, None.

    Values of null rows are unspecified and affect no result. A literal has values and validity
    without axes, and stands for any number of equal rows.
    """

    values: np.ndarray
    valid: np.ndarray | None = None

    @property
    def code(self) -> str:
        """Type code of the elements."""
        return code_of(self.values.dtype)

    @property
    def is_literal(self) -> bool:
        """True if the column is one value for every row."""
        return self.values.ndim == 0


# Validity of a literal null, and null rows of a column without nulls.
NEVER = np.zeros((), bool)

Register: TypeAlias = Vec | pa.Array


class CastFailure(ValueError):  # noqa: N818 a value failed; the operator makes it an error
    """A value that its target type cannot represent: ``value`` in row ``row`` of the block."""

    def __init__(self, row: int, value: Any, code: str) -> None:
        super().__init__(f"row {row}: {value!r} is not representable as {code}")
        self.row, self.value, self.code = row, value, code

    def __reduce__(self) -> tuple[type[CastFailure], tuple[int, Any, str]]:
        return type(self), (self.row, self.value, self.code)


class NotFusedError(Exception):
    """A column is of a kind that no compiled kernel takes, such as a tensor; NumPy must run."""


def code_of(dtype: np.dtype[Any]) -> str:
    """Return the type code of a NumPy dtype, such as "i8"."""
    return "b1" if dtype.kind == "b" else dtype.str[1:]


def both_valid(*args: Vec) -> np.ndarray | None:
    """Return a mask of rows where no argument is null; None if no argument has nulls."""
    masks = [arg.valid for arg in args if arg.valid is not None]
    if not masks:
        return None
    valid = masks[0]
    for mask in masks[1:]:
        valid = valid & mask
    return valid


def spread(arg: Vec, rows: int) -> Vec:
    """Expand a literal to ``rows`` rows; return other columns unchanged."""
    if not arg.is_literal:
        return arg
    valid = None if arg.valid is None else np.full(rows, arg.valid)
    return Vec(np.full(rows, arg.values), valid)


def is_null(arg: Vec) -> np.ndarray:
    """Return a mask of nulls, (n,) bool; without axes if ``arg`` has no nulls or is a literal."""
    if arg.valid is None:
        return NEVER
    return np.asarray(np.logical_not(arg.valid))


def per_row(mask: np.ndarray, element_axes: int) -> np.ndarray:
    """Reduce a mask over elements (n, *element shape) to rows: true if any element is true."""
    if element_axes == 0:
        return mask
    return np.asarray(mask.any(axis=tuple(range(mask.ndim - element_axes, mask.ndim))))


def over_elements(mask: np.ndarray, element_axes: int) -> np.ndarray:
    """Append axes of length one to a mask over rows (n,), to broadcast it over elements."""
    if element_axes == 0 or mask.ndim == 0:
        return mask
    return mask.reshape(mask.shape[0], *(1,) * element_axes)


def aligned(*args: Vec) -> list[np.ndarray]:
    """Reshape the values of ``args`` to broadcast: rows with rows, elements with elements."""
    arrays = [arg.values for arg in args]
    most = max(array.ndim for array in arrays)
    return [
        array
        if array.ndim in (0, most)
        else array.reshape(array.shape[0], *(1,) * (most - array.ndim), *array.shape[1:])
        for array in arrays
    ]


def to_arrow(arg: Vec, kind: pa.DataType | None = None) -> pa.Array | pa.Scalar:
    """Convert scalars of ``arg`` to an Arrow array (a literal: to a scalar); NaN is not null."""
    kind = kind or ARROW_TYPES[arg.code]
    if arg.is_literal:
        valid = None if arg.valid is None else arg.valid.reshape(1)
        return arrow_array(arg.values.reshape(1), kind, valid)[0]
    valid = None if arg.valid is None else np.broadcast_to(arg.valid, arg.values.shape)
    return arrow_array(arg.values, kind, valid)


def arrow_array(
    values: np.ndarray, kind: pa.DataType | None = None, valid: np.ndarray | None = None
) -> pa.Array:
    """Return numbers or booleans, (n,), as an Arrow array over their memory (booleans: bits).

    ``pyarrow.array`` gives the same, but imports pandas, where it is installed, at its first call.
    """
    kind = kind or ARROW_TYPES[code_of(values.dtype)]
    if values.dtype != kind.to_pandas_dtype():
        return pa.array(values, kind, mask=None if valid is None else ~valid)
    data = np.packbits(values, bitorder="little") if values.dtype == bool else values
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def from_arrow(array: pa.Array) -> Vec:
    """Make a Vec over the memory of an Arrow array of numbers or booleans (booleans: a copy)."""
    valid = validity(array)
    if array.type == pa.bool_():
        filled = array.fill_null(fill_value=False) if array.null_count else array
        return Vec(elements(filled, "b1"), valid)
    return Vec(elements(array, array.type.to_pandas_dtype()), valid)


def elements(array: pa.Array, code: Any) -> np.ndarray:
    """Return the values of a primitive array as NumPy's type ``code``, ignoring nulls.

    The array has the memory of ``array``; bits of booleans are unpacked.
    """
    data, first = array.buffers()[1], array.offset
    if data is None:
        return np.zeros(len(array), code)
    if code == "b1":
        return unpacked(data, first, len(array))
    whole = data.size // np.dtype(code).itemsize  # of nothing, a buffer may be of any size
    return np.frombuffer(data, code, whole)[first : first + len(array)]


def validity(array: pa.Array) -> np.ndarray | None:
    """Return a mask of rows of an Arrow array that are not null, (n,) bool; None if all are."""
    bits = array.buffers()[0] if array.null_count else None
    if bits is None:
        return None if not array.null_count else np.zeros(len(array), bool)
    return unpacked(bits, array.offset, len(array))


def taken(column: pa.Array, index: np.ndarray, missing: np.ndarray | None = None) -> pa.Array:
    """Return the elements of a column at ``index``, null where ``missing``."""
    if isinstance(column.type, OpenTensor):
        return tensors_at(column, index if missing is None else np.where(missing, -1, index))
    return column.take(arrow_array(index) if missing is None else pa.array(index, mask=missing))
