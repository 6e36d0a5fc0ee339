"""The oracle computes functions of structs, which it represents as dicts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dml.errors import SchemaError
from dml.testing.functions.meaning import FunctionMeaning, Params


def _names(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind]


def _field(kind: pa.DataType, params: Params) -> pa.DataType:
    if _names(kind).count(params[0]) != 1:
        raise SchemaError(f"{kind} has no field {params[0]!r}")
    return kind.field(params[0]).type


def _renamed(kind: pa.DataType, params: Params) -> pa.DataType:
    if len(params) != len(_names(kind)):
        raise SchemaError(f"{len(params)} names for {kind}")
    kinds = [field.type for field in kind]
    return pa.struct(list(zip(params, kinds, strict=True)))


def renamed(value: dict[str, Any], *names: str) -> dict[str, Any]:
    """Rename the fields of a struct, in order."""
    return dict(zip(names, value.values(), strict=True))


MEANINGS = (
    FunctionMeaning(
        "struct.field",
        lambda kind: bool(pa.types.is_struct(kind)),
        _field,
        lambda value, name: value[name],
        lambda d, c: c.struct.field(d.choice("xy")),
    ),
    FunctionMeaning(
        "struct.rename_fields",
        lambda kind: bool(pa.types.is_struct(kind)),
        _renamed,
        renamed,
        lambda _, c: c.struct.rename_fields(["x", "y"]),
    ),
)
