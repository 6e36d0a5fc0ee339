"""The oracle computes functions of tensors, element by element in Python.

Arguments are arrays; the result of a function is a flat list in row-major order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.errors import SchemaError
from dml.expr.columns.column import Column
from dml.testing.functions.lists import NATURAL, REAL, WHOLE
from dml.testing.functions.meaning import Draw, FunctionMeaning, Gives, Params
from dml.testing.scalars.operations import CastFailed

Shape = tuple[int, ...]
NUMBERS = WHOLE | NATURAL | REAL


def _places(shape: Any) -> Any:
    return itertools.product(*(range(n) for n in shape))


def _cells(value: Any) -> dict[Shape, Any]:
    """Map the index of each element to the element."""
    return dict(zip(_places(value.shape), value.reshape(-1).tolist(), strict=True))


def _all(axes: Shape | None, rank: int) -> list[int]:
    found = [axis % rank for axis in range(rank)] if axes is None else list(axes)
    found = [axis + rank if axis < 0 else axis for axis in found]
    if len(set(found)) < len(found) or any(not 0 <= axis < rank for axis in found):
        raise SchemaError(f"no axes {axes}")
    return found


def _order(axes: Shape | None, rank: int) -> list[int]:
    return list(range(rank))[::-1] if axes is None else _all(axes, rank)


def transposed(value: Any, axes: Shape | None) -> list[Any]:
    """Permute the axes."""
    cells, order = _cells(value), _order(axes, value.ndim)
    shape = [value.shape[axis] for axis in order]
    return [cells[tuple(p[order.index(a)] for a in range(value.ndim))] for p in _places(shape)]


def flipped(value: Any, axes: Shape | None) -> list[Any]:
    """Reverse the given axes."""
    cells, turned = _cells(value), _all(axes, value.ndim)
    return [
        cells[tuple(value.shape[a] - 1 - i if a in turned else i for a, i in enumerate(place))]
        for place in _places(value.shape)
    ]


def padded(value: Any, widths: tuple[Shape, ...], fill: tuple[Any, ...]) -> list[Any]:
    """Pad each axis with a fill value."""
    shape = [a + n + b for (a, b), n in zip(widths, value.shape, strict=True)]
    cells = _cells(value)
    return [
        cells.get(tuple(i - a for i, (a, _) in zip(place, widths, strict=True)), fill[0])
        for place in _places(shape)
    ]


def cropped(value: Any, size: Shape, offset: Shape | None) -> list[Any]:
    """Return the part of ``size`` that begins at the offset, or is in the middle."""
    middle = [(m - n) // 2 for n, m in zip(size, value.shape, strict=True)]
    start, cells = middle if offset is None else offset, _cells(value)
    return [cells[tuple(s + i for s, i in zip(start, p, strict=True))] for p in _places(size)]


def summed(value: Any, axes: Shape | None) -> Any:
    """Sum over the axes; each sum adds elements in order from 0."""
    gone = _all(axes, value.ndim)
    sums: dict[Shape, Any] = {}
    for place, cell in _cells(value).items():
        kept = tuple(i for axis, i in enumerate(place) if axis not in gone)
        sums[kept] = sums.get(kept, 0) + cell
    found = list(sums.values())
    return found if len(gone) < value.ndim else found[0]


def averaged(value: Any, axes: Shape | None) -> Any:
    """Return the float sum over the axes, divided by the number of elements."""
    count = math.prod(value.shape[axis] for axis in _all(axes, value.ndim))
    found = summed(value.astype("f8"), axes)
    return [s / count for s in found] if isinstance(found, list) else found / count


def listed(value: Any) -> list[Any]:
    """Convert a tensor to nested lists."""
    made: list[Any] = value.tolist()
    return made


def row(values: list[Any], width: int, fill: tuple[Any, ...], truncate: bool) -> Any:  # noqa: FBT001
    """Pad a list to ``width`` with a fill value; None if an element is None."""
    if len(values) > width and not truncate:
        raise CastFailed(f"{len(values)} elements are more than {width}")
    kept = values[:width]
    return None if None in kept else [*kept, *[fill[0]] * (width - len(kept))]


# ---------------------------------------------------------------------------------------- the types


def _tensor(kind: pa.DataType) -> bool:
    held = NUMBERS | {pa.bool_()}
    return isinstance(kind, pa.FixedShapeTensorType) and kind.value_type in held


def _numeric(kind: pa.DataType) -> bool:
    return _tensor(kind) and kind.value_type in NUMBERS


def _of(element: pa.DataType, shape: Any) -> pa.DataType:
    return pa.fixed_shape_tensor(element, tuple(shape)) if shape else element


def _reshaped(kind: pa.DataType, params: Params) -> pa.DataType:
    size = math.prod(kind.shape)
    rest = math.prod(n for n in params[0] if n > 0)
    shape = [size // rest if n < 0 else n for n in params[0]]
    if math.prod(shape) != size:
        raise SchemaError(f"{shape} has other elements than {kind}")
    return _of(kind.value_type, shape)


def _turned(kind: pa.DataType, params: Params) -> pa.DataType:
    order = _order(params[0], len(kind.shape))
    if len(order) < len(kind.shape):
        raise SchemaError(f"{params[0]} leaves an axis out")
    return _of(kind.value_type, [kind.shape[axis] for axis in order])


def _same(kind: pa.DataType, params: Params) -> pa.DataType:
    _all(params[0], len(kind.shape))
    return _of(kind.value_type, kind.shape)


def _fits(value: Any, kind: pa.DataType) -> None:
    python = float if kind in REAL else bool if kind == pa.bool_() else int
    if type(value) not in (python, *[int, bool][: 2 * (python is not bool)]) or (
        kind in NATURAL and value < 0
    ):
        raise SchemaError(f"{value!r} is no {kind}")


def _padded(kind: pa.DataType, params: Params) -> pa.DataType:
    _fits(params[1][0], kind.value_type)
    if len(params[0]) != len(kind.shape):
        raise SchemaError("widths for other axes")
    return _of(kind.value_type, [sum(w) + n for w, n in zip(params[0], kind.shape, strict=True)])


def _cropped(kind: pa.DataType, params: Params) -> pa.DataType:
    size, offset = params
    start = [0] * len(size) if offset is None else offset
    sides = len(size) == len(kind.shape) == len(start)
    if not sides or any(s + n > m for s, n, m in zip(start, size, kind.shape, strict=True)):
        raise SchemaError(f"{size} lies outside of {kind}")
    return _of(kind.value_type, size)


def _left(kind: pa.DataType, params: Params) -> list[int]:
    gone = _all(params[0], len(kind.shape))
    return [n for axis, n in enumerate(kind.shape) if axis not in gone]


def _summed(kind: pa.DataType, params: Params) -> pa.DataType:
    element = pa.int64() if kind.value_type in WHOLE else pa.uint64()
    return _of(kind.value_type if kind.value_type in REAL else element, _left(kind, params))


def _averaged(kind: pa.DataType, params: Params) -> pa.DataType:
    element = pa.float32() if kind.value_type == pa.float32() else pa.float64()
    return _of(element, _left(kind, params))


def _nested(kind: pa.DataType, _params: Params) -> pa.DataType:
    found = kind.value_type
    for _ in kind.shape:
        found = pa.list_(found)
    return found


def _rowed(kind: pa.DataType, params: Params) -> pa.DataType:
    _fits(params[1][0], kind.value_type)
    return _of(kind.value_type, (params[0],))


def _even(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests) and kind.value_type in NUMBERS | {pa.bool_()}


def _meaning(
    name: str, gives: Gives, means: Callable[..., Any], drawn: Callable[[Draw, Column], Column]
) -> FunctionMeaning:
    takes = _numeric if name in ("sum", "mean") else _tensor
    return FunctionMeaning(f"tensor.{name}", takes, gives, means, drawn)


AXES: tuple[Shape | None, ...] = (None, (0,), (-1,), (0, 1))
WIDTHS: tuple[list[Shape], ...] = ([(1, 0)], [(0, 2), (1, 1)])
PARTS: tuple[tuple[Shape, Shape | None], ...] = (((1,), None), ((1, 2), (1, 0)), ((2, 2), None))
SHAPES: tuple[Shape, ...] = ((-1,), (2, -1), (3, 2), (1, 2, -1))

MEANINGS = (
    _meaning(
        "reshape",
        _reshaped,
        lambda value, _: value.reshape(-1).tolist(),
        lambda d, c: c.tensor.reshape(*d.choice(SHAPES)),
    ),
    _meaning(
        "transpose",
        _turned,
        transposed,
        lambda d, c: c.tensor.transpose(*d.choice([(), (0, 1), (-1, 0), (0,)])),
    ),
    _meaning("flip", _same, flipped, lambda d, c: c.tensor.flip(d.choice(AXES))),
    _meaning(
        "pad",
        _padded,
        padded,
        lambda d, c: c.tensor.pad(d.choice(WIDTHS), d.choice([0, 1, 2.5, True])),
    ),
    _meaning("crop", _cropped, cropped, lambda d, c: c.tensor.crop(*d.choice(PARTS))),
    _meaning("sum", _summed, summed, lambda d, c: c.tensor.sum(d.choice(AXES))),
    _meaning("mean", _averaged, averaged, lambda d, c: c.tensor.mean(d.choice(AXES))),
    _meaning("to_list", _nested, listed, lambda _, c: c.tensor.to_list()),
    _meaning(
        "shape",
        lambda kind, _: _of(pa.int64(), (len(kind.shape),)),
        lambda value: list(value.shape),
        lambda _, c: c.tensor.shape(),
    ),
    FunctionMeaning(
        "list.to_tensor",
        _even,
        _rowed,
        row,
        lambda d, c: c.list.to_tensor(
            d.choice([1, 3]), d.choice([0, -1, 0.5, True]), truncate=d.random() < 0.9
        ),
    ),
)
