"""This file says what the oracle has to know of one function of columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dml.expr.column import Column

Params = tuple[Any, ...]
Draw = random.Random
Holds = Callable[[pa.DataType], bool]
Gives = Callable[[pa.DataType, Params], pa.DataType]

TEXT = (pa.string(), pa.large_string())
BYTES = (pa.binary(), pa.large_binary())


def as_written(_kind: pa.DataType, params: Params) -> Params:
    """The parameters as they are."""
    return params


@dataclass(frozen=True)
class Meaning:
    """One function: its types, what it makes of the values of a row, none of them None.

    ``means`` is given the arguments and then the parameters; numbers that it gives are taken into
    the type as those of arithmetic are: integers wrap, floats are rounded. ``drawn`` makes a column
    of one that the function takes, with parameters of its choice. ``null_as`` is the type that a
    column of nothing but nulls is taken for, ``rest`` that of further arguments. ``settled`` makes
    the parameters into those that ``gives`` and ``means`` are given.
    """

    name: str
    takes: Holds
    gives: Gives
    means: Callable[..., Any]
    drawn: Callable[[Draw, Column], Column]
    null_as: pa.DataType | None = None
    rest: Callable[[pa.DataType], pa.DataType] | None = None
    settled: Callable[[pa.DataType, Params], Params] = as_written


def fixed(kind: pa.DataType) -> Gives:
    """A function whose results have one type."""
    return lambda _kind, _params: kind


def kept(kind: pa.DataType, _params: Params) -> pa.DataType:
    """A function whose results have the type of what it is given."""
    return kind
