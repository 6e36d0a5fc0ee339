"""Law: every function of columns gives the value that the oracle defines."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from dml.errors import SchemaError
from dml.expr.columns.column import Column, col
from dml.kernels.functions.table import functions
from dml.testing.functions.table import MEANINGS
from dml.testing.oracle_types import typed
from tests.expr.checks import agrees, table

NAN, INF = float("nan"), float("inf")
ROWS = 14
WORDS = (
    *("", "a", "the cat", "The  dog", "naïve café", "ß Straße İ", "+7", "-", "-12", "x y z"),
    *(" \t é\u3000", "eee", None, "abc\nabc", "\U0001d4b3y"),
)
SMALL = (0.0, -0.0, 1.5, NAN, INF, None, 2.0**-140, 2.0**127, -2.5)
REAL = (*SMALL, 1e300, -1e300, 0.1, 1e-310)
WHOLE = (0, 1, -1, None, 2**63 - 1, -(2**63), 7)
# Year 9, so that a span of years that begins before still has a name in Python.
TIMES = (
    *(dt.datetime(2024, 2, 29, 12, 30, 1, 234567), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
    *(dt.datetime(9, 1, 1), dt.datetime(9999, 12, 31, 23), None, dt.datetime(2021, 1, 3)),
    dt.datetime(2020, 12, 31),
)
ZONED = [time and time.replace(tzinfo=dt.UTC) for time in TIMES[:2] + TIMES[4:]]
WALL = (dt.time(3, 4, 5, 67), None, dt.time(23, 59, 59, 999999))
DATES = [time and time.date() for time in TIMES]

# What lists of each kind are made of.
ELEMENTS: dict[pa.DataType, Sequence[Any]] = {
    pa.list_(pa.float64()): REAL,
    pa.list_(pa.float32()): SMALL,
    pa.list_(pa.int64()): WHOLE,
    pa.list_(pa.uint64()): (0, 2**64 - 1, None, 3),
    pa.large_list(pa.uint8()): (0, 255, None, 3),
    pa.list_(pa.string()): WORDS,
    pa.large_list(pa.large_string()): WORDS,
    pa.list_(pa.bool_()): (True, False, None),
    pa.list_(pa.timestamp("us")): TIMES,
    pa.list_(pa.list_(pa.int64())): ([1], [], None, [2, 3]),
    pa.list_(pa.null()): (None,),
}
SHAPED = (
    *((pa.float32(), (2, 3)), (pa.int64(), (3,)), (pa.uint8(), (2, 1, 2)), (pa.bool_(), (2, 2))),
    *((pa.uint8(), (4, 5, 3)), (pa.uint8(), (3, 7, 1))),
)
SINGLES: dict[pa.DataType, Sequence[Any]] = {
    pa.string(): WORDS,
    pa.large_string(): WORDS,
    pa.binary(): [word and word.encode() for word in WORDS],
    pa.timestamp("us"): TIMES,
    pa.timestamp("s"): [time and time.replace(microsecond=0) for time in TIMES],
    pa.timestamp("us", "Asia/Tokyo"): ZONED,
    pa.date32(): DATES,
    pa.time64("us"): WALL,
    pa.list_(pa.int64(), 2): ([1, None], [0, -(2**63)], None),
    pa.struct([("x", pa.int32()), ("y", pa.string())]): ({"x": 1, "y": "a"}, {"x": None}, None),
    pa.null(): (None,),
}


def lists(draw: random.Random, elements: Sequence[Any]) -> list[list[Any] | None]:
    lengths = [draw.choice([None, 0, 1, 2, 3, 9]) for _ in range(ROWS)]
    return [None if n is None else draw.choices(elements, k=n) for n in lengths]


def tensors(draw: random.Random, element: pa.DataType, shape: tuple[int, ...]) -> pa.Array:
    """Tensors of one shape, some of them null."""
    size, values = math.prod(shape), (0, 1) if element == pa.bool_() else (0, 1, 2, 7, 100)
    rows = [None if draw.random() < 0.2 else draw.choices(values, k=size) for _ in range(ROWS)]
    storage = pa.array(rows, pa.list_(pa.int8(), size)).cast(pa.list_(element, size))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(element, shape), storage)


def columns(draw: random.Random) -> dict[str, pa.Array]:
    """One column of each kind, named by a number."""
    shaped = [tensors(draw, *kind) for kind in SHAPED]
    single = [pa.array(draw.choices(v, k=ROWS), kind) for kind, v in SINGLES.items()]
    listed = [pa.array(lists(draw, v), kind) for kind, v in ELEMENTS.items()]
    return {f"c{i}": array for i, array in enumerate([*single, *listed, *shaped])}


def has_type(column: Column, kinds: dict[str, pa.DataType]) -> bool:
    try:
        typed(column.value, kinds)
    except SchemaError:
        return False
    return True


def test_both_tables_name_the_same_functions() -> None:
    assert sorted(functions()) == sorted(MEANINGS)


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_functions_are_what_the_oracle_says(name: str, many: Callable[[int, int], int]) -> None:
    meaning, compared = MEANINGS[name], 0
    for number in range(20):  # a draw may find no column that its parameters fit
        if compared and number >= many(1, 15):
            break
        draw = random.Random(f"{name}/{number}")
        data = columns(draw)
        kinds = {column: array.type for column, array in data.items()}
        for column, kind in kinds.items():
            if meaning.takes(kind) or (pa.types.is_null(kind) and meaning.null_as):
                made = meaning.drawn(draw, col(column))
                if has_type(made, kinds):
                    agrees(table({column: data[column]}).with_columns(r=made), epochs=(0,))
                    compared += 1
    assert compared
