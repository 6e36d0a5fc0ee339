"""This file runs a program over the elements of lists."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import pyarrow as pa

from dml.kernels.functions.function import Arrays, Function, Params
from dml.kernels.functions.lists import LIST, lists_of
from dml.kernels.program import Program
from dml.kernels.vec import ARROW_TYPES, CastFailure, Vec, from_arrow, to_arrow


@functools.cache
def _interpreter() -> ModuleType:
    """What runs programs: it knows the table of functions, and so it is found when it is needed."""
    return importlib.import_module("dml.kernels.interpret")


def evaluate(arrays: Arrays, params: Params) -> pa.Array:
    """``params`` are a program over elements, the type that it gives, and whether it may fail."""
    program, kind, _ = params
    lists = lists_of(arrays[0])
    elements = lists.elements()
    inputs: list[Any] = [_register(elements)] * len(program.inputs)
    try:
        (found,) = _interpreter().run(program, inputs, len(elements)).outputs
    except CastFailure as failure:
        row = int(lists.rows()[failure.row])
        raise type(failure)(row, failure.value, failure.code) from None
    made = to_arrow(found, kind) if isinstance(found, Vec) else found
    large = pa.types.is_large_list(lists.kind)
    listed = pa.large_list(kind) if large else pa.list_(kind)
    return lists._replace(kind=listed).with_elements(made)


def _register(elements: pa.Array) -> Vec | pa.Array:
    return from_arrow(elements) if elements.type in ARROW_TYPES.values() else elements


def _given(kind: pa.DataType, params: Params) -> pa.DataType:
    large = pa.types.is_large_list(kind)
    return pa.large_list(params[1]) if large else pa.list_(params[1])


def _may_fail(params: Params) -> bool:
    """Of an expression as written, or of the parameters that it was lowered to."""
    return bool(params[2]) if isinstance(params[0], Program) else not params[0].total


FUNCTIONS = (Function("list.eval", LIST, _given, evaluate, fails=_may_fail),)
