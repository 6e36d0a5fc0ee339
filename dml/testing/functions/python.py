"""This file says what calling Python's own functions means: what the function gives, or null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.expr.column import Column
from dml.expr.value import Value
from dml.testing.functions.meaning import Draw, Meaning

LETTERS = {"i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "s": pa.string()}
SINGLE = tuple(LETTERS.values())
# One that never raises, one that raises for some, one that takes text alone, one of numbers.
MEANT: dict[str, Callable[[Any], Any]] = {
    "str": lambda value: f"{value!s}",
    "len": lambda value: sum(1 for _ in value),
    "str.lower": lambda value: value.lower(),
    "int": lambda value: value.__int__() if not isinstance(value, str) else int(value, 10),
}


def _means(value: Any, name: str, letter: str) -> Any:
    del letter
    try:
        found = MEANT[name](value)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None
    return None if type(found) is int and not -(2**63) <= found < 2**63 else found


def _drawn(draw: Draw, column: Column) -> Column:
    name = draw.choice(tuple(MEANT))
    letter = "i" if name in ("len", "int") else "s"
    return Column(Value("python.call", (column.value,), (name, letter)))


MEANINGS = (
    Meaning(
        "python.call",
        lambda kind: kind in (*SINGLE, *(pa.list_(each) for each in SINGLE)),
        lambda _kind, params: LETTERS[params[1]],
        _means,
        _drawn,
    ),
)
