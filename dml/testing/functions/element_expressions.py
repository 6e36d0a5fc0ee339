"""The oracle evaluates expressions over the elements of lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.errors import SchemaError
from dml.expr.columns.column import Column
from dml.expr.columns.placeholder_columns import element
from dml.expr.columns.value import ELEMENT
from dml.testing.functions.meaning import Draw, FunctionMeaning, Params

NOWHERE = (0, 0)


def _given(kind: pa.DataType, params: Params) -> pa.DataType:
    found = params[0].kind
    if pa.types.is_null(found) or isinstance(found, pa.FixedShapeTensorType):
        raise SchemaError(f"no lists of {found}")
    return pa.large_list(found) if pa.types.is_large_list(kind) else pa.list_(found)


def each(values: list[Any], expr: Any, value_of: Callable[..., Any]) -> list[Any]:
    """Evaluate the expression for every element; elements of lists have no random draws."""
    return [value_of(expr, {ELEMENT: value}, NOWHERE, None) for value in values]


def _listed(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    listed = any(test(kind) for test in tests)
    return listed and not isinstance(kind.value_type, pa.ExtensionType)


def _drawn(draw: Draw, c: Column) -> Column:
    e = element()
    inner: list[Any] = [e * 2, e + 0.5, e > 1, e.fill_null(0), e.is_null(), e.cast("i8"), 7]
    inner += [e.str.len_chars(), e.str.to_uppercase(), e.hash(9), e.str.split("a"), e.list.len()]
    return c.list.eval(draw.choice(inner))


MEANINGS = (FunctionMeaning("list.eval", _listed, _given, each, _drawn),)
