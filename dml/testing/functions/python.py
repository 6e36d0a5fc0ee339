"""The oracle calls Python's own functions; a call that raises or overflows gives null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.expr.columns.column import Column
from dml.expr.columns.value import Value
from dml.testing.functions.meaning import Draw, FunctionMeaning

LETTERS = {"i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "s": pa.string()}
SINGLE = tuple(LETTERS.values())
# One never raises, one raises for some values, one takes only text, one parses or truncates.
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
    FunctionMeaning(
        "python.call",
        lambda kind: kind in (*SINGLE, *(pa.list_(each) for each in SINGLE)),
        lambda _kind, params: LETTERS[params[1]],
        _means,
        _drawn,
    ),
)
