"""Functions of tensors, each with a function that returns its result type; null gives null."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import SchemaError
from dml.kernels.functions.function import Function, Kinds, Params, RefusedFailure
from dml.kernels.functions.lists import LIST, lists_of, mean_type, sum_type
from dml.kernels.vec import ARROW_TYPES, Register, Vec, from_arrow

Columns = Sequence[Register]
Shape = tuple[int, ...]
SINGLE = frozenset(ARROW_TYPES.values())


def _is_tensor(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.FixedShapeTensorType) and kind.value_type in SINGLE


def _is_numeric(kind: pa.DataType) -> bool:
    return _is_tensor(kind) and kind.value_type != pa.bool_()


def _is_even(kind: pa.DataType) -> bool:
    return LIST.holds(kind) and kind.value_type in SINGLE


TENSOR = Kinds("a tensor", _is_tensor)
NUMBERS = Kinds("a tensor of numbers", _is_numeric)
LISTED = Kinds("a list of numbers or booleans", _is_even)


def _shaped(element: pa.DataType, shape: Sequence[int]) -> pa.DataType:
    return pa.fixed_shape_tensor(element, tuple(shape)) if shape else element


def _misfit(what: str, shape: Shape, try_: str) -> SchemaError:
    return SchemaError(what, why=f"the tensor's shape is {shape}", try_=try_)


def axes_of(name: str, axes: Sequence[int] | None, shape: Shape) -> Shape:
    """Return ``axes`` (None: all), counted from 0; SchemaError if any is invalid or repeated."""
    rank = len(shape)
    wanted = range(rank) if axes is None else axes
    found = tuple(axis + rank if axis < 0 else axis for axis in wanted)
    if len(set(found)) < len(found) or not all(0 <= axis < rank for axis in found):
        raise _misfit(f"{name} along axes {axes}", shape, f"axes 0 to {rank - 1}, each once")
    return found


# ------------------------------------------------------------------------------------------ shapes


def new_shape(kind: pa.DataType, params: Params) -> Shape:
    """Return the shape that ``reshape`` gives, with -1 replaced by the remaining length."""
    (wanted,) = params
    shape = tuple(kind.shape)
    size, known = math.prod(shape), math.prod(n for n in wanted if n != -1)
    filled = tuple(size // known if n == -1 else n for n in wanted)
    if math.prod(filled) != size:
        raise _misfit(f"reshape to {wanted}", shape, f"a shape of {size} elements")
    return filled


def _reshaped(kind: pa.DataType, params: Params) -> pa.DataType:
    return _shaped(kind.value_type, new_shape(kind, params))


def reshape(columns: Columns, params: Params) -> Vec:
    """Reshape the tensor of each row to ``params[0]``, in row-major order."""
    values, valid = columns[0]
    size = math.prod(values.shape[1:])
    known = math.prod(n for n in params[0] if n != -1)
    shape = [size // known if n == -1 else n for n in params[0]]
    return Vec(values.reshape(len(values), *shape), valid)


def _transposed(kind: pa.DataType, params: Params) -> pa.DataType:
    shape = tuple(kind.shape)
    axes = axes_of("transpose", params[0], shape)
    if len(axes) != len(shape):
        raise _misfit(f"transpose to axes {params[0]}", shape, "all axes, each once")
    return _shaped(kind.value_type, [shape[axis] for axis in _turned(axes, params)])


def _turned(axes: Shape, params: Params) -> Shape:
    return axes[::-1] if params[0] is None else axes


def transpose(columns: Columns, params: Params) -> Vec:
    """Permute the axes to the order ``params[0]`` (None: reversed)."""
    values, valid = columns[0]
    axes = _turned(axes_of("transpose", params[0], values.shape[1:]), params)
    return Vec(values.transpose(0, *(axis + 1 for axis in axes)), valid)


def _flipped(kind: pa.DataType, params: Params) -> pa.DataType:
    axes_of("flip", params[0], tuple(kind.shape))
    return _shaped(kind.value_type, kind.shape)


def flip(columns: Columns, params: Params) -> Vec:
    """Reverse the elements along the axes ``params[0]`` (None: all)."""
    values, valid = columns[0]
    axes = axes_of("flip", params[0], values.shape[1:])
    return Vec(np.flip(values, tuple(axis + 1 for axis in axes)), valid)


def _padded(kind: pa.DataType, params: Params) -> pa.DataType:
    widths, shape = params[0], tuple(kind.shape)
    if len(widths) != len(shape):
        raise _misfit(f"pad by {widths}", shape, "(before, after) for each axis")
    return _shaped(kind.value_type, [a + n + b for (a, b), n in zip(widths, shape, strict=True)])


def pad(columns: Columns, params: Params) -> Vec:
    """Pad by ``params[0]``, (before, after) for each axis, with the value in ``params[1]``."""
    values, valid = columns[0]
    widths, (fill,) = params
    return Vec(np.pad(values, ((0, 0), *widths), constant_values=fill), valid)


def corner(size: Shape, offset: Shape | None, shape: Shape) -> Shape:
    """Return the start of a crop (default: centered); raise SchemaError if it does not fit."""
    fits = len(size) == len(shape) and all(n <= m for n, m in zip(size, shape, strict=True))
    if fits:
        middle = tuple((m - n) // 2 for n, m in zip(size, shape, strict=True))
        start = middle if offset is None else offset
        ends = zip(start, size, shape, strict=True) if len(start) == len(shape) else ()
        if len(start) == len(shape) and all(s + n <= m for s, n, m in ends):
            return start
    where = "" if offset is None else f" from {offset}"
    raise _misfit(f"crop to {size}{where}", shape, "a part that lies inside")


def _cropped(kind: pa.DataType, params: Params) -> pa.DataType:
    corner(params[0], params[1], tuple(kind.shape))
    return _shaped(kind.value_type, params[0])


def crop(columns: Columns, params: Params) -> Vec:
    """Crop to the size ``params[0]``, from the offset ``params[1]``, by default in the middle."""
    values, valid = columns[0]
    start = corner(params[0], params[1], values.shape[1:])
    parts = (slice(s, s + n) for s, n in zip(start, params[0], strict=True))
    return Vec(values[(slice(None), *parts)], valid)


# -------------------------------------------------------------------------------------- reductions


def _remaining_shape(name: str, kind: pa.DataType, axes: Sequence[int] | None) -> list[int]:
    gone = axes_of(name, axes, tuple(kind.shape))
    return [n for axis, n in enumerate(kind.shape) if axis not in gone]


def _summed(kind: pa.DataType, params: Params) -> pa.DataType:
    return _shaped(sum_type(kind.value_type), _remaining_shape("sum", kind, params[0]))


def _averaged(kind: pa.DataType, params: Params) -> pa.DataType:
    return _shaped(mean_type(kind.value_type), _remaining_shape("mean", kind, params[0]))


def _last(values: np.ndarray, axes: Sequence[int] | None) -> np.ndarray:
    """Merge the axes to reduce into one axis at the end: (n, *kept, k), in row-major order."""
    gone = sorted(axis + 1 for axis in axes_of("", axes, values.shape[1:]))
    kept = [axis for axis in range(values.ndim) if axis not in gone]
    shape = [values.shape[axis] for axis in kept]
    count = math.prod(values.shape[axis] for axis in gone)
    return values.transpose(*kept, *gone).reshape(*shape, count)


def _folded(values: np.ndarray) -> np.ndarray:
    """Sum in float64 along the last axis, sequentially from 0.0."""
    if not values.shape[-1]:
        return np.zeros(values.shape[:-1])
    return np.asarray(0.0 + np.add.accumulate(values, axis=-1, dtype="f8")[..., -1])


def total(columns: Columns, params: Params) -> Vec:
    """Sum over axes: integers in 64 bits, wrapping; floats in float64 in order, rounded once."""
    values, valid = columns[0]
    rows = _last(values, params[0])
    if values.dtype.kind == "f":
        return Vec(_folded(rows).astype(values.dtype), valid)
    return Vec(rows.sum(axis=-1, dtype="i8" if values.dtype.kind == "i" else "u8"), valid)


def mean(columns: Columns, params: Params) -> Vec:
    """Return the mean over axes: the sum in float64 over the number of elements, rounded once."""
    values, valid = columns[0]
    rows = _last(values, params[0])
    dtype = "f4" if values.dtype == np.float32 else "f8"
    return Vec((_folded(rows) / rows.shape[-1]).astype(dtype), valid)


# ------------------------------------------------------------------------------------------- lists


def _as_list(kind: pa.DataType, _params: Params) -> pa.DataType:
    found = kind.value_type
    for _ in kind.shape:
        found = pa.list_(found)
    return found


def to_list(columns: Columns, _params: Params) -> pa.Array:
    """Convert tensors to nested lists, one level for each axis."""
    values, valid = columns[0]
    n, *shape = values.shape
    absent = np.zeros(n, bool) if valid is None else ~valid
    found = pa.array(np.ascontiguousarray(values[~absent]).reshape(-1))
    for axis in range(len(shape) - 1, 0, -1):
        count = (n - absent.sum()) * math.prod(shape[:axis])
        ends = pa.array(np.arange(count + 1, dtype="i4") * shape[axis], pa.int32())
        found = pa.ListArray.from_arrays(ends, found)
    lengths = np.where(absent, 0, shape[0])
    ends = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(ends, found, mask=pa.array(absent))


def _rank(kind: pa.DataType, _params: Params) -> pa.DataType:
    return pa.fixed_shape_tensor(pa.int64(), (len(kind.shape),))


def shape_of_rows(columns: Columns, _params: Params) -> Vec:
    """Return the shape of each row; all rows have the same shape."""
    values, valid = columns[0]
    return Vec(np.tile(np.array(values.shape[1:], "i8"), (len(values), 1)), valid)


def _row(kind: pa.DataType, params: Params) -> pa.DataType:
    return _shaped(kind.value_type, (params[0],))


def to_tensor(columns: Columns, params: Params) -> Vec:
    """Return the first ``width`` elements of each list, padded; null if any of them is null.

    A longer list is cut if ``truncate``, else it raises RefusedFailure.
    """
    width, (fill,), truncate = params
    lists = lists_of(columns[0])
    long = lists.lengths > width
    if long.any() and not truncate:
        row = int(np.argmax(long))
        raise RefusedFailure(row, int(lists.lengths[row]), "list.to_tensor")
    lists = lists._replace(lengths=np.minimum(lists.lengths, width))
    elements, rows = lists.flat()
    found: Vec = from_arrow(elements)
    out = np.full((len(lists.starts), width), fill, found.values.dtype)
    out[np.arange(width) < lists.lengths[:, None]] = found.values
    valid = ~lists.absent
    if found.valid is not None:
        valid[rows[~found.valid]] = False
    return Vec(out, valid)


def _filled(at: int, count: int) -> Callable[[pa.DataType, Params], tuple[Any, ...]]:
    """Make ``Function.literals``: parameter ``at`` of ``count`` has the tensor's element type."""

    def kinds(kind: pa.DataType, _params: Params) -> tuple[Any, ...]:
        return tuple(kind.value_type if i == at else None for i in range(count))

    return kinds


FUNCTIONS = (
    Function("tensor.reshape", TENSOR, _reshaped, reshape, vectors=True),
    Function("tensor.transpose", TENSOR, _transposed, transpose, vectors=True),
    Function("tensor.flip", TENSOR, _flipped, flip, vectors=True),
    Function("tensor.pad", TENSOR, _padded, pad, vectors=True, literals=_filled(1, 2)),
    Function("tensor.crop", TENSOR, _cropped, crop, vectors=True),
    Function("tensor.sum", NUMBERS, _summed, total, vectors=True),
    Function("tensor.mean", NUMBERS, _averaged, mean, vectors=True),
    Function("tensor.to_list", TENSOR, _as_list, to_list, vectors=True),
    Function("tensor.shape", TENSOR, _rank, shape_of_rows, vectors=True),
    Function(
        "list.to_tensor",
        LISTED,
        _row,
        to_tensor,
        vectors=True,
        fails=lambda params: not params[2],
        refusal=("a list of so many elements is longer than the tensor", "truncate=True cuts it"),
        literals=_filled(1, 3),
    ),
)
