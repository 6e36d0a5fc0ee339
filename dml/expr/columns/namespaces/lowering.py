"""Functions of the kernels' function table are typed here and lowered to program steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from dml.data.list_marks import plain
from dml.data.schema import Schema, shape_of, short
from dml.errors import SchemaError
from dml.expr.columns.promotion import TypedRegister, fitting, same_family
from dml.expr.columns.value import ELEMENT, Value, shown
from dml.kernels.functions.function import Function, is_bytes, is_text
from dml.kernels.functions.table import FUNCTIONS
from dml.kernels.program import Program

# Operations that are no function of a row: the error, its reason, and what to write instead.
MISPLACED = {
    "columns": (
        "stands for several columns, and one is needed",
        "only select and with_columns take them, without a name",
        ".with_columns(dml.all_columns() * 2)",
    ),
    "udf": (
        "calls your function, and cannot stand here",
        "only with_columns and select call functions, once for each row",
        ".with_columns(z=...) before, and then col('z')",
    ),
    "aggregate": (
        "is not computed from a row",
        "aggregates are figures of many rows",
        '.agg(total=col("x").sum()), or .group_by("key").agg(...)',
    ),
}


class LoweringPass(Protocol):
    """The typing pass over values that lowers to registers: see ``dml.expr.columns.typing``."""

    def typed(self, value: Value) -> TypedRegister: ...
    def strong(self, value: Value) -> TypedRegister: ...
    def input(self, value: Value, kind: pa.DataType) -> TypedRegister: ...
    def settle(self, typed: TypedRegister, kind: pa.DataType) -> TypedRegister: ...
    def emit(
        self,
        op: str,
        args: Sequence[TypedRegister],
        kind: pa.DataType,
        params: tuple[Any, ...] = (),
    ) -> TypedRegister: ...
    def program(self, value: Value, schema: Schema) -> tuple[Program, pa.DataType]: ...


def keyed(work: LoweringPass, value: Value) -> TypedRegister:
    """The register of a value that is computed from row ids."""
    if value.op == "random":
        return work.input(value, pa.float64())
    return work.input(value, pa.binary(16) if value.params[0] else pa.uint64())


def lower_function(work: LoweringPass, value: Value) -> TypedRegister:
    """The step of a function; SchemaError if its arguments have the wrong types."""
    function = FUNCTIONS.get(value.op)
    if function is None:
        raise _no_function(value)
    first = work.strong(value.args[0])
    if pa.types.is_null(first.kind) and function.takes.null_as is not None:
        first = work.settle(first, function.takes.null_as)
    kind = plain(first.kind)
    if not function.takes.holds(kind):
        raise _unfit(function, value, kind)
    rest = [_further(work, function, value, arg, kind) for arg in value.args[1:]]
    params = value.params if value.op != "list.eval" else _inner(work, kind, *value.params)
    gives = function.gives(kind, params)
    return work.emit(value.op, [first, *rest], gives, _settled(function, params, kind))


def _inner(work: LoweringPass, kind: pa.DataType, value: Value) -> tuple[Any, ...]:
    """The parameters of ``list.eval``: the program over elements, its type, and if it may fail."""
    program, found = work.program(value, Schema({ELEMENT: kind.value_type}))
    if shape_of(found) or pa.types.is_null(found):
        raise SchemaError(
            f"list.eval gives lists of {short(found)}",
            why=f"that is the type of {shown(value)}",
            try_="an expression that gives single values or lists",
        )
    from dml.kernels.interpreter import ElementProgram  # noqa: PLC0415 - few expressions have one

    fields = (getattr(program, each.name) for each in dataclasses.fields(program))
    return ElementProgram(*fields), found, not value.total


def _settled(function: Function, params: tuple[Any, ...], kind: pa.DataType) -> tuple[Any, ...]:
    """The parameters, with literals converted to the column's types, or SchemaError."""
    if function.literals is None:
        return params
    pairs = zip(params, function.literals(kind, params), strict=True)
    return tuple(p if k is None else _all_fitting(p, k) for p, k in pairs)


def _all_fitting(values: tuple[Any, ...], kind: pa.DataType) -> tuple[Any, ...]:
    """``values`` as ``kind`` holds them; a vocabulary of texts is long, and fits as it is."""
    if is_text(kind) and all(type(value) is str for value in values):
        return values
    return tuple(fitting(value, kind) for value in values)


def _further(
    work: LoweringPass, function: Function, value: Value, arg: Value, first: pa.DataType
) -> TypedRegister:
    """A further argument, in the type that the first argument requires."""
    wanted = function.rest(first) if function.rest else first
    typed = work.typed(arg)
    weak = typed.is_weak or pa.types.is_null(typed.kind)
    if not weak and typed.kind != wanted and not same_family(typed.kind, wanted):
        raise SchemaError(
            f"{shown(value)} needs {short(wanted)} beside {short(first)}",
            why=f"{shown(arg)} is {short(typed.kind)}",
            try_=".cast(...) it before",
        )
    return work.settle(typed, wanted)


def _no_function(value: Value) -> SchemaError:
    """The error for a value that is no function of one row."""
    name = "aggregate" if value.op.endswith("_of") else value.op
    unknown = "is not an operation", "there is no function of that name", "one that dir(col) shows"
    what, why, way = MISPLACED.get(name, unknown)
    return SchemaError(f"{shown(value)} {what}", why=why, try_=way)


def _unfit(function: Function, value: Value, kind: pa.DataType) -> SchemaError:
    words = function.takes.words
    text_of_bytes = words == "text" and is_bytes(kind)
    listed = words == "text" and pa.types.is_list(kind) and is_text(kind.value_type)
    tries = {text_of_bytes: ".str.decode() before", listed: ".list.join(...) before"}
    return SchemaError(
        f"{function.name.removeprefix('.')} needs {words}, {shown(value.args[0])} is {short(kind)}",
        why=f"it stands in {shown(value)}",
        try_=tries.get(True, f"a column of {words.removeprefix('a ')}, or .map(f)"),
    )
