"""The oracle computes functions of lists in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pyarrow as pa

from dml.expr.columns.column import Column
from dml.testing.functions.meaning import (
    BYTES,
    TEXT,
    Draw,
    FunctionMeaning,
    Gives,
    Holds,
    Params,
    fixed,
)
from dml.testing.functions.strings import cut
from dml.testing.scalars.floats import greater, lesser
from dml.testing.scalars.operations import CastFailed

WHOLE = {pa.int8(), pa.int16(), pa.int32(), pa.int64()}
NATURAL = {pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()}
REAL = {pa.float32(), pa.float64()}


def element(values: list[Any], index: int, null_on_oob: bool) -> Any:  # noqa: FBT001 - a parameter
    """Return the element at ``index``; without one, None or CastFailed."""
    try:
        return values[index]
    except IndexError:
        if null_on_oob:
            return None
        raise CastFailed(f"no element {index} in {values!r}") from None


def summed(values: list[Any]) -> Any:
    """Add values in order from 0 (``sum`` would compensate floats in newer Pythons)."""
    total: Any = 0
    for value in _present(values):
        total += value
    return total


def averaged(values: list[Any]) -> Any:
    """Return the float sum divided by the count, or None for no values."""
    floats = [float(value) for value in _present(values)]
    return summed(floats) / len(floats) if floats else None


def least(values: list[Any]) -> Any:
    """Return the minimum, or None for no values."""
    return _extreme(values, lesser, min)


def greatest(values: list[Any]) -> Any:
    """Return the maximum, or None for no values."""
    return _extreme(values, greater, max)


def _extreme(values: list[Any], floats: Callable[..., Any], others: Callable[..., Any]) -> Any:
    present = _present(values)
    if not present:
        return None
    return reduce(floats, present) if isinstance(present[0], float) else others(present)


def _present(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def joined(values: list[Any], separator: str, ignore_nulls: bool) -> Any:  # noqa: FBT001
    """Join text with a separator; None if an element is None, unless nulls are ignored."""
    if None in values and not ignore_nulls:
        return None
    return separator.join(_present(values))


def ordered(values: list[Any], descending: bool) -> list[Any]:  # noqa: FBT001 - a parameter
    """Sort values; NaN comes after them, and None last."""
    nan = [v for v in _present(values) if isinstance(v, float) and v != v]  # noqa: PLR0124
    others = [v for v in _present(values) if v == v]  # noqa: PLR0124 - NaN alone is not
    return [*sorted(others, reverse=descending), *nan, *[v for v in values if v is None]]


def distinct(values: list[Any]) -> list[Any]:
    """Return the first of equal values, NaN included."""
    found: list[Any] = []
    for value in values:
        same = [v for v in found if v == value or (v != v and value != value)]  # noqa: PLR0124
        found += [] if same else [value]
    return found


def contained(values: list[Any], item: Any) -> bool:
    """Test membership by ``==``: NaN and None equal nothing."""
    return any(bool(value == item) for value in _present(values))


# ---------------------------------------------------------------------------------------- the types


def _listed(kind: pa.DataType) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    listed = listed or pa.types.is_fixed_size_list(kind)
    return listed and not isinstance(kind.value_type, pa.ExtensionType)


def _of(kinds: set[pa.DataType]) -> Holds:
    return lambda kind: _listed(kind) and kind.value_type in kinds


def _same(kind: pa.DataType, _params: Params) -> pa.DataType:
    return pa.list_(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


def _one(kind: pa.DataType, _params: Params) -> pa.DataType:
    return kind.value_type


def _sum(kind: pa.DataType, _params: Params) -> pa.DataType:
    if kind.value_type in REAL:
        return kind.value_type
    return pa.int64() if kind.value_type in WHOLE else pa.uint64()


def _mean(kind: pa.DataType, _params: Params) -> pa.DataType:
    return pa.float32() if kind.value_type == pa.float32() else pa.float64()


NUMBERS = WHOLE | NATURAL | REAL
PLAIN = NUMBERS | {pa.bool_(), *TEXT, *BYTES, pa.date32(), pa.timestamp("us")}


def _meaning(
    name: str,
    takes: Holds,
    gives: Gives,
    means: Callable[..., Any],
    drawn: Callable[[Draw, Column], Column],
) -> FunctionMeaning:
    return FunctionMeaning(f"list.{name}", takes, gives, means, drawn)


def _sorted(draw: Draw, c: Column) -> Column:
    return c.list.sort(descending=draw.random() < 0.5)


def _taken(draw: Draw, c: Column) -> Column:
    if draw.random() < 0.05:
        return c.list.get(draw.choice([0, -1]))
    other = c.list.get(draw.choice([0, 1, 2, -1, -2, 9]), null_on_oob=True)
    return draw.choice([c.list.first(), c.list.last(), other, other])


MEANINGS = (
    _meaning("len", _listed, fixed(pa.int64()), len, lambda _, c: c.list.len()),
    _meaning("get", _listed, _one, element, _taken),
    _meaning(
        "slice",
        _listed,
        _same,
        cut,
        lambda d, c: c.list.slice(d.choice([0, 1, -1, -2, -9]), d.choice([None, 0, 1, 2])),
    ),
    _meaning("reverse", _listed, _same, lambda x: x[::-1], lambda _, c: c.list.reverse()),
    _meaning("sort", _of(PLAIN), _same, ordered, _sorted),
    _meaning("unique", _of(PLAIN), _same, distinct, lambda _, c: c.list.unique()),
    _meaning("drop_nulls", _listed, _same, _present, lambda _, c: c.list.drop_nulls()),
    _meaning(
        "join",
        _of({*TEXT}),
        _one,
        joined,
        lambda d, c: c.list.join(d.choice(["", "-"]), ignore_nulls=d.random() < 0.5),
    ),
    _meaning("sum", _of(NUMBERS), _sum, summed, lambda _, c: c.list.sum()),
    _meaning("mean", _of(NUMBERS), _mean, averaged, lambda _, c: c.list.mean()),
    _meaning("min", _of(NUMBERS), _one, least, lambda _, c: c.list.min()),
    _meaning("max", _of(NUMBERS), _one, greatest, lambda _, c: c.list.max()),
    FunctionMeaning(
        "list.contains",
        _of(PLAIN),
        fixed(pa.bool_()),
        contained,
        lambda d, c: c.list.contains(d.choice([0, 3, "a", None, c.list.first()])),
        rest=lambda kind: kind.value_type,
    ),
)
