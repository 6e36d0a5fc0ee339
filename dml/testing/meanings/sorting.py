"""This file says what ``sort`` means."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dml.errors import SchemaError
from dml.expr import marks
from dml.expr.ops.sort import Sort
from dml.testing.drawn import Draw, Drawn
from dml.testing.meaning import Meaning, Typed, Units, Use
from dml.testing.oracle_types import code, shape

if TYPE_CHECKING:
    from dml.testing.oracle import Oracle


def sort(oracle: Oracle, node: Sort, epoch: int, units: Units) -> Iterator[Typed]:
    """All rows, by comparing two at a time; Python's sort keeps equal ones in their order."""
    rows: list[Typed] = []
    for one in oracle.stream(node.input, epoch, units):
        if not rows:
            able(one, node.names)
        rows.append(one)
    keys = list(zip(node.names, node.descending, strict=True))

    def compared(one: Typed, other: Typed) -> int:
        for name, down in keys:
            a, b = one.row.values[name], other.row.values[name]
            found = between(a, b, down=down, nulls_last=node.nulls_last)
            if found:
                return found
        return 0

    yield from sorted(rows, key=cmp_to_key(compared))


def able(one: Typed, names: tuple[str, ...]) -> None:
    """SchemaError for keys that have no order."""
    for name in names:
        if name not in one.kinds:
            raise SchemaError(f"no column {name!r}")
        kind = one.kinds[name]
        if shape(kind) or pa.types.is_nested(marks.plain(kind)):
            raise SchemaError(f"{kind} has no order")


def between(a: Any, b: Any, *, down: bool = False, nulls_last: bool = True) -> int:
    """Negative if ``a`` comes first, positive if ``b`` does, 0 if they are the same key."""
    oddness = odd(a) - odd(b)
    if oddness or odd(a):
        return oddness if nulls_last else -oddness
    a, b = plain(a), plain(b)
    found = int(a > b) - int(a < b)
    return -found if down else found


def odd(value: Any) -> int:
    """0 of most values, 1 of NaN, 2 of null."""
    if value is None:
        return 2
    return int(isinstance(value, float | np.floating) and value != value)  # noqa: PLR0124


def plain(value: Any) -> Any:
    """What compares as the value does: bytes of a text."""
    return value.encode() if isinstance(value, str) else value


def orderable(drawn: Drawn) -> list[str]:
    """Columns that can be keys."""
    return [
        name
        for name, kind in drawn.kinds.items()
        if not shape(kind) and (code(kind) != "arrow" or not pa.types.is_nested(marks.plain(kind)))
    ]


def _draw_sort(draw: Draw, drawn: Drawn) -> Any:
    names = orderable(drawn)
    if not names:
        return False
    by: list[Any] = draw.sample(names, min(len(names), draw.choice([1, 1, 2, 3])))
    if draw.random() < 0.3:
        by[0] = drawn.expressions(draw).any(2)
    ways: Any = draw.choice([False, True, [draw.random() < 0.5 for _ in by]])
    drawn.then(drawn.dataset.sort(by, descending=ways, nulls_last=draw.random() < 0.7))
    return None


MEANINGS = (Meaning(Sort, sort, (Use("sort", _draw_sort, rows=2),)),)
