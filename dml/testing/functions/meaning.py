"""A ``FunctionMeaning`` defines one function of columns for the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dml.expr.columns.column import Column

Params = tuple[Any, ...]
Draw = random.Random
Holds = Callable[[pa.DataType], bool]
Gives = Callable[[pa.DataType, Params], pa.DataType]

TEXT = (pa.string(), pa.large_string())
BYTES = (pa.binary(), pa.large_binary())


def as_written(_kind: pa.DataType, params: Params) -> Params:
    """Return the parameters unchanged."""
    return params


@dataclass(frozen=True)
class FunctionMeaning:
    """One function: its types, and its result for the values of a row, none of them None.

    ``means`` is called with the arguments and then the parameters; numbers that it returns are
    converted to the type as in arithmetic: integers wrap, floats are rounded. ``drawn`` calls the
    function on a column that it accepts, with random parameters. ``null_as`` is the type that an
    all-null column is taken for, ``rest`` the type of further arguments, or
    a tuple with the type of each, or what it must be. ``settled`` converts the
    parameters to those that ``gives`` and ``means`` receive.
    """

    name: str
    takes: Holds
    gives: Gives
    means: Callable[..., Any]
    drawn: Callable[[Draw, Column], Column]
    null_as: pa.DataType | None = None
    rest: Callable[[pa.DataType], pa.DataType | tuple[Holds | pa.DataType, ...]] | None = None
    settled: Callable[[pa.DataType, Params], Params] = as_written


def fixed(kind: pa.DataType) -> Gives:
    """Return the rule that every result is of type ``kind``."""
    return lambda _kind, _params: kind


def kept(kind: pa.DataType, _params: Params) -> pa.DataType:
    """Return the type of the argument as the type of the result."""
    return kind
