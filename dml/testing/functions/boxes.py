"""The oracle moves boxes (left, top, right, bottom) one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.expr.columns.column import Column, stack
from dml.expr.columns.column import random as drawn_number
from dml.testing.functions.lists import NATURAL, REAL, WHOLE
from dml.testing.functions.meaning import FunctionMeaning, Params
from dml.testing.scalars.operations import CastFailed

PART, SIZE = (pa.fixed_shape_tensor(pa.int64(), (n,)) for n in (4, 2))
LISTS: tuple[Callable[[pa.DataType], Any], ...] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
)


def _listed(kind: pa.DataType) -> bool:
    return any(test(kind) for test in LISTS)


def _boxes(kind: pa.DataType) -> bool:
    numbers = WHOLE | NATURAL | REAL
    return _listed(kind) and _listed(kind.value_type) and kind.value_type.value_type in numbers


def _floats(kind: pa.DataType, _params: Params) -> pa.DataType:
    single = kind.value_type.value_type == pa.float32()
    return pa.list_(pa.list_(pa.float32() if single else pa.float64()))


def _each(boxes: Any) -> list[list[float]]:
    if any(box is None or len(box) != 4 or None in list(box) for box in boxes):
        raise CastFailed("no box")
    return [[float(side) for side in box] for box in boxes]


def cropped(boxes: Any, part: Any) -> list[list[float]]:
    """Move boxes into a part, and cut them at its edges."""
    top, left, height, width = (int(n) for n in part)
    moved = [(a - left, b - top, c - left, d - top) for a, b, c, d in _each(boxes)]
    most = (width, height, width, height)
    return [[float(min(max(x, 0.0), m)) for x, m in zip(box, most, strict=True)] for box in moved]


def scaled(boxes: Any, size: Any, height: int, width: int) -> list[list[float]]:
    """Scale boxes to another size of their image."""
    down, across = height / int(size[0]), width / int(size[1])
    return [[a * across, b * down, c * across, d * down] for a, b, c, d in _each(boxes)]


def mirrored(boxes: Any, where: bool, width: int) -> list[list[float]]:  # noqa: FBT001 - a value
    """Mirror boxes, if the flag is true."""
    found = _each(boxes)
    return [[width - c, b, width - a, d] for a, b, c, d in found] if where else found


def _numbers(count: int) -> Column:
    """Return a tensor of random whole numbers from 1 to 20."""
    return stack(*((drawn_number(stream=n) * 20 + 1).cast("int64") for n in range(count)))


MEANINGS = (
    FunctionMeaning(
        "boxes.crop",
        _boxes,
        _floats,
        cropped,
        lambda _, c: c.boxes.crop(_numbers(4)),
        rest=lambda _: PART,
    ),
    FunctionMeaning(
        "boxes.resize",
        _boxes,
        _floats,
        scaled,
        lambda d, c: c.boxes.resize(d.choice([10, 64]), d.choice([7, 224]), size=_numbers(2)),
        rest=lambda _: SIZE,
    ),
    FunctionMeaning(
        "boxes.flip",
        _boxes,
        _floats,
        mirrored,
        lambda d, c: c.boxes.flip(
            d.choice([10, 224]), where=d.choice([True, drawn_number() < 0.5])
        ),
        rest=lambda _: pa.bool_(),
    ),
)
