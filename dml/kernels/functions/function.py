"""This file says what a function of columns is: what it takes and gives, and how it is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from dml.kernels.vec import CastFailure

Params = tuple[Any, ...]
Arrays = Sequence[pa.Array]


class NoSuchElementFailure(CastFailure):
    """A list that is too short for the element asked for: ``value`` is its length."""

    def __reduce__(self) -> tuple[type[CastFailure], tuple[int, Any, str]]:
        return NoSuchElementFailure, (self.row, self.value, self.code)


class RefusedFailure(CastFailure):
    """A value that a function does not take: ``code`` is the function's name."""

    def __reduce__(self) -> tuple[type[CastFailure], tuple[int, Any, str]]:
        return RefusedFailure, (self.row, self.value, self.code)


@dataclasses.dataclass(frozen=True, slots=True)
class Kinds:
    """The types that a first argument may have, in ``words`` and as a test.

    A column of type null is taken as one of ``null_as``, where there is such a type.
    """

    words: str
    holds: Callable[[pa.DataType], bool]
    null_as: pa.DataType | None = None


def _never(params: Params) -> bool:
    del params
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One function: ``run`` is given arrays of equal length and the parameters, and gives one more.

    ``gives`` is the type of the result, from the type of the first argument and the parameters
    (SchemaError where they do not go together). ``rest`` is the type that further arguments must
    have, None where there are none. ``fails`` says of the parameters whether a row may raise, and
    ``refusal`` is then why, and what to try. ``literals`` gives the type of each parameter that is
    a tuple of values of columns, None for the others. With ``vectors`` numbers come as ``Vec``,
    and a ``Vec`` may be given: what tensors need. ``version`` is another whenever some rows are.
    """

    name: str
    takes: Kinds
    gives: Callable[[pa.DataType, Params], pa.DataType]
    run: Callable[[Arrays, Params], pa.Array]
    rest: Callable[[pa.DataType], pa.DataType] | None = None
    fails: Callable[[Params], bool] = _never
    refusal: tuple[str, str] = ("", "")
    literals: Callable[[pa.DataType, Params], tuple[pa.DataType | None, ...]] | None = None
    vectors: bool = False
    version: int = 1


def of_one(function: Callable[..., pa.Array]) -> Callable[[Arrays, Params], pa.Array]:
    """``function(array, *params)`` as ``Function.run``."""
    return lambda arrays, params: function(arrays[0], *params)


def always(kind: pa.DataType) -> Callable[[pa.DataType, Params], pa.DataType]:
    """``Function.gives`` of a function with one type of results."""

    def gives(given: pa.DataType, params: Params) -> pa.DataType:
        del given, params
        return kind

    return gives


def same(given: pa.DataType, params: Params) -> pa.DataType:
    """``Function.gives`` of a function that keeps the type."""
    del params
    return given


def is_text(kind: pa.DataType) -> bool:
    """True for text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """True for bytes of any length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
