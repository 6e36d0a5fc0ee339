"""This file says what an expression over the elements of lists means."""

from __future__ import annotations

import importlib
from typing import Any

import pyarrow as pa

from dml.errors import SchemaError
from dml.expr.column import Column
from dml.expr.standing import element
from dml.expr.value import ELEMENT
from dml.testing.functions.meaning import Draw, Meaning, Params

NOWHERE = (0, 0)


def _settled(kind: pa.DataType, params: Params) -> Params:
    """The expression with its types; what types expressions knows this table, so it is late."""
    types = importlib.import_module("dml.testing.oracle_types")
    return (types.typed(params[0], {ELEMENT: kind.value_type}),)


def _given(kind: pa.DataType, params: Params) -> pa.DataType:
    found = params[0].kind
    if pa.types.is_null(found) or isinstance(found, pa.FixedShapeTensorType):
        raise SchemaError(f"no lists of {found}")
    return pa.large_list(found) if pa.types.is_large_list(kind) else pa.list_(found)


def each(values: list[Any], expr: Any) -> list[Any]:
    """The expression's value for every element."""
    oracle = importlib.import_module("dml.testing.oracle_values")
    return [oracle.value_of(expr, {ELEMENT: value}, NOWHERE, None) for value in values]


def _listed(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    listed = any(test(kind) for test in tests)
    return listed and not isinstance(kind.value_type, pa.ExtensionType)


def _drawn(draw: Draw, c: Column) -> Column:
    e = element()
    inner: list[Any] = [e * 2, e + 0.5, e > 1, e.fill_null(0), e.is_null(), e.cast("i8"), 7]
    inner += [e.str.len_chars(), e.str.to_uppercase(), e.hash(9), e.str.split("a"), e.list.len()]
    return c.list.eval(draw.choice(inner))


MEANINGS = (Meaning("list.eval", _listed, _given, each, _drawn, settled=_settled),)
