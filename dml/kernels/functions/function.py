"""A function of columns is described by its argument types, its result type and its code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.kernels.vec import CastFailure

Params = tuple[Any, ...]
Arrays = Sequence[pa.Array]


class NoSuchElementFailure(CastFailure):
    """A list is too short for the requested element; ``value`` is its length."""


class RefusedFailure(CastFailure):
    """A function does not accept a value; ``code`` is the function's name."""


class UnfitFailure(CastFailure):
    """A function refuses a value; ``value`` is the reason, ``code`` the function's name."""


class UnfitValue(Exception):  # noqa: N818 - a value failed; the operator makes it an error
    """A function refuses the value of one row; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kinds:
    """The types that a first argument may have: described by ``words``, tested by ``holds``.

    A column of type null is read as a column of type ``null_as``, if that is given.
    """

    words: str
    holds: Callable[[pa.DataType], bool]
    null_as: pa.DataType | None = None


Rest: TypeAlias = "pa.DataType | tuple[Kinds | pa.DataType, ...]"


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A function of columns: ``run`` returns an array from arrays of equal length and parameters.

    ``gives`` returns the type of the result from the type of the first argument and the parameters,
    or raises SchemaError if they do not fit. ``rest`` returns the type of further arguments, or
    a tuple with the type or ``Kinds`` of each; it is None if there are none. ``fails`` returns
    from the parameters whether ``run`` may raise for some row; ``refusal`` is then the reason and
    the remedy. ``literals`` returns the type of each parameter that is a tuple of column values,
    None for other parameters. With ``vectors``, for tensors, ``run`` takes numbers as ``Vec`` and
    may return a ``Vec``. ``version`` is raised whenever the result for some row changes; ``tool``
    returns the versions of libraries whose change may change it. ``usual`` are the last parameters
    as they are unless the user gives others; texts leave them out.
    """

    name: str
    takes: Kinds
    gives: Callable[[pa.DataType, Params], pa.DataType]
    run: Callable[[Arrays, Params], pa.Array]
    rest: Callable[[pa.DataType], Rest] | None = None
    fails: Callable[[Params], bool] = lambda _: False
    refusal: tuple[str, str] = ("", "")
    literals: Callable[[pa.DataType, Params], tuple[pa.DataType | None, ...]] | None = None
    vectors: bool = False
    version: int = 1
    tool: Callable[[], str] | None = None
    usual: Params = ()


def of_one(function: Callable[..., pa.Array]) -> Callable[[Arrays, Params], pa.Array]:
    """Make ``Function.run`` from ``function(array, *params)``."""
    return lambda arrays, params: function(arrays[0], *params)


def always(kind: pa.DataType) -> Callable[[pa.DataType, Params], pa.DataType]:
    """Make ``Function.gives`` of a function whose result always has type ``kind``."""

    def gives(_given: pa.DataType, _params: Params) -> pa.DataType:
        return kind

    return gives


def same(given: pa.DataType, _params: Params) -> pa.DataType:
    """Return the type of the first argument: ``Function.gives`` of many functions."""
    return given


def listed(given: pa.DataType, _params: Params) -> pa.DataType:
    """Return the type of lists of the first argument's values."""
    return pa.list_(given)


def is_text(kind: pa.DataType) -> bool:
    """Return True for text, with offsets of 32 or 64 bits."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_plain_list(kind: pa.DataType) -> bool:
    """Return True for a list, unless its elements are tensors."""
    return is_list(kind) and not isinstance(kind.value_type, pa.ExtensionType)


def is_bytes(kind: pa.DataType) -> bool:
    """Return True for bytes of variable length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


TEXT = Kinds("text", is_text, pa.string())
