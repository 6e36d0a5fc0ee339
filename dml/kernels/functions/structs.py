"""Functions of structs select and rename fields."""

from __future__ import annotations

import pyarrow as pa

from dml.errors import SchemaError
from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import Function, Kinds, Params, of_one

STRUCT = Kinds("a struct", pa.types.is_struct)


def field(array: pa.Array, name: str) -> pa.Array:
    """Return the field ``name``; null where the struct is null."""
    return compute().struct_field(array, indices=[array.type.get_field_index(name)])


def rename_fields(array: pa.Array, *names: str) -> pa.Array:
    """Rename the fields to ``names``, in order."""
    absent = array.is_null()
    return pa.StructArray.from_arrays(array.flatten(), names=list(names), mask=absent)


def _of_field(kind: pa.DataType, params: Params) -> pa.DataType:
    (name,) = params
    names = [each.name for each in kind]
    if names.count(name) != 1:
        raise SchemaError(
            f"struct.field finds {names.count(name)} fields {name!r}",
            why=f"the struct has {', '.join(map(repr, names)) or 'none'}",
            try_="a name that one of them has",
        )
    found = kind.field(name).type
    if isinstance(found, pa.ExtensionType):
        raise SchemaError(
            f"struct.field cannot take {name!r} out",
            why=f"it is {found}, which has no column of its own inside a struct",
            try_=".map(f) with a function of rows",
        )
    return found


def _renamed(kind: pa.DataType, params: Params) -> pa.DataType:
    if len(params) != kind.num_fields:
        raise SchemaError(
            f"struct.rename_fields is given {len(params)} names",
            why=f"the struct has {kind.num_fields} fields",
            try_="one name for each field",
        )
    return pa.struct([(name, each.type) for name, each in zip(params, kind, strict=True)])


FUNCTIONS = (
    Function("struct.field", STRUCT, _of_field, of_one(field)),
    Function("struct.rename_fields", STRUCT, _renamed, of_one(rename_fields)),
)
