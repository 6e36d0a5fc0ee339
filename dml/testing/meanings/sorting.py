"""The oracle computes ``sort`` by comparing two rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data import list_marks
from dml.errors import SchemaError
from dml.ops.sort.sort import Sort
from dml.testing.draws import Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units
from dml.testing.oracle_types import code, shape


def sort(oracle: OracleRun, node: Sort, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Sort all rows by comparing two at a time; Python's sort keeps equal rows in their order."""
    rows: list[TypedRow] = []
    for one in oracle.stream(node.input, epoch, units):
        if not rows:
            able(one, node.names)
        rows.append(one)
    keys = list(zip(node.names, node.descending, strict=True))

    def compared(one: TypedRow, other: TypedRow) -> int:
        for name, down in keys:
            a, b = one.row.values[name], other.row.values[name]
            found = between(a, b, down=down, nulls_last=node.nulls_last)
            if found:
                return found
        return 0

    yield from sorted(rows, key=cmp_to_key(compared))


def able(one: TypedRow, names: tuple[str, ...]) -> None:
    """Raise SchemaError for keys that have no order."""
    for name in names:
        if name not in one.kinds:
            raise SchemaError(f"no column {name!r}")
        kind = one.kinds[name]
        if shape(kind) or pa.types.is_nested(list_marks.plain(kind)):
            raise SchemaError(f"{kind} has no order")


def between(a: Any, b: Any, *, down: bool = False, nulls_last: bool = True) -> int:
    """Compare keys: negative if ``a`` comes first, positive if ``b`` does, 0 if they are equal."""
    oddness = odd(a) - odd(b)
    if oddness or odd(a):
        return oddness if nulls_last else -oddness
    a, b = plain(a), plain(b)
    found = int(a > b) - int(a < b)
    return -found if down else found


def odd(value: Any) -> int:
    """Return 0 for most values, 1 for NaN, 2 for null."""
    if value is None:
        return 2
    return int(isinstance(value, float | np.floating) and value != value)  # noqa: PLR0124


def plain(value: Any) -> Any:
    """Convert a value for comparison: text to its bytes."""
    return value.encode() if isinstance(value, str) else value


def orderable(drawn: Drawn) -> list[str]:
    """Return the columns that can be sort keys."""
    return [
        name
        for name, kind in drawn.kinds.items()
        if not shape(kind)
        and (code(kind) != "arrow" or not pa.types.is_nested(list_marks.plain(kind)))
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


MEANINGS = (OperatorMeaning(Sort, sort, (OperatorUse("sort", _draw_sort, rows=2),)),)
