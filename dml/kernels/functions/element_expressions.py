"""A program runs over the elements of lists: the function ``list.eval``."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from dml.kernels.functions.function import Arrays, Function, Params
from dml.kernels.functions.lists import LIST, like, lists_of
from dml.kernels.program import Program
from dml.kernels.vec import ARROW_TYPES, CastFailure, Vec, from_arrow, to_arrow


class Runnable(Protocol):
    """A program over elements with its interpreter."""

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The types of the program's inputs."""

    def evaluate(self, inputs: list[Any], rows: int) -> Any:
        """Return the register of the program's only output."""


def evaluate(arrays: Arrays, params: Params) -> pa.Array:
    """Run a program over all elements of lists; return lists of its results.

    ``params`` are the program, the type of its results, and True if it may fail.
    """
    program: Runnable
    program, kind, _ = params
    lists = lists_of(arrays[0])
    elements = lists.elements()
    inputs: list[Any] = [_register(elements)] * len(program.inputs)
    try:
        found = program.evaluate(inputs, len(elements))
    except CastFailure as failure:
        row = int(lists.rows()[failure.row])
        raise type(failure)(row, failure.value, failure.code) from None
    made = to_arrow(found, kind) if isinstance(found, Vec) else found
    return lists._replace(kind=like(lists.kind, kind)).with_elements(made)


def _register(elements: pa.Array) -> Vec | pa.Array:
    return from_arrow(elements) if elements.type in ARROW_TYPES.values() else elements


def _may_fail(params: Params) -> bool:
    """Return True if some element may raise; ``params[0]`` is a ``Value``, or its program."""
    return bool(params[2]) if isinstance(params[0], Program) else not params[0].total


def _gives(kind: pa.DataType, params: Params) -> pa.DataType:
    return like(kind, params[1])


FUNCTIONS = (Function("list.eval", LIST, _gives, evaluate, fails=_may_fail),)
