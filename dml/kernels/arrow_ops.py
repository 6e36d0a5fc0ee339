"""Strings, binary, temporal and nested columns are computed by pyarrow.compute."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dml.kernels.lookup_ops import hash_numbers
from dml.kernels.rows.text_hash import hash_bytes
from dml.kernels.vec import (
    ARROW_TYPES,
    NEVER,
    CastFailure,
    Register,
    Vec,
    from_arrow,
    to_arrow,
    validity,
)

Params = tuple[Any, ...]
ArrowValue: TypeAlias = "pa.Array | pa.Scalar"
ArrowOp = Callable[[Sequence[Register], str, Params], Register]


def as_arrow(arg: Register) -> ArrowValue:
    """Convert an argument for pyarrow.compute; literals become scalars."""
    return to_arrow(arg) if isinstance(arg, Vec) else arg


def as_register(result: ArrowValue, code: str) -> Register:
    """Convert a result to the register type of ``code``: a Vec for numbers and booleans."""
    if code == "arrow":
        return result
    if isinstance(result, pa.Scalar):
        valid = None if result.is_valid else NEVER
        return Vec(np.asarray(result.as_py() if result.is_valid else 0, code), valid)
    return from_arrow(result)


@functools.cache
def compute() -> ModuleType:
    """Return pyarrow.compute, imported on first use, which takes 15 ms."""
    return importlib.import_module("pyarrow.compute")


def through(function: str) -> ArrowOp:
    """Make an operation that calls a function of pyarrow.compute, given by its name."""

    def op(args: Sequence[Register], code: str, _params: Params) -> Register:
        return as_register(getattr(compute(), function)(*map(as_arrow, args)), code)

    return op


def if_else(args: Sequence[Register], code: str, _params: Params) -> Register:
    """Return the second argument where the first is true, else the third.

    For extension types, the values of the storage arrays are chosen.
    """
    test, *sides = map(as_arrow, args)
    kind = sides[0].type
    if not isinstance(kind, pa.BaseExtensionType):
        return as_register(compute().if_else(test, *sides), code)
    chosen = compute().if_else(test, *map(_storage, sides))
    if isinstance(chosen, pa.Scalar):
        return pa.ExtensionScalar.from_storage(kind, chosen)
    return pa.ExtensionArray.from_storage(kind, chosen)


def _storage(value: ArrowValue) -> ArrowValue:
    if isinstance(value, pa.ExtensionArray):
        return value.storage
    return pa.scalar(None, value.type.storage_type) if value.value is None else value.value


def literal(params: Params) -> pa.Scalar:
    """Return a literal from ``params``: a Python value or Arrow scalar, and optionally its type."""
    if isinstance(params[0], pa.Scalar):
        return params[0]
    return pa.scalar(params[0], type=params[1] if len(params) > 1 else None)


def is_in(args: Sequence[Register], code: str, params: Params) -> Register:
    """Return true where the value is one of ``params[0]``; null stays null."""
    array = as_arrow(args[0])
    members = [member for member in params[0] if member is not None]
    pc = compute()
    found = pc.is_in(array, value_set=pa.array(members, type=array.type))
    return as_register(pc.if_else(pc.is_valid(array), found, pa.scalar(None, pa.bool_())), code)


def hash_values(args: Sequence[Register], code: str, params: Params) -> Register:
    """Hash to u8: xxh64 of the bytes of strings and binary, the integer hash of temporal values."""
    array = as_arrow(args[0])
    if isinstance(array, pa.Scalar):
        vec = _hash_array(pa.array([array.as_py()], type=array.type), code, params)
        return Vec(vec.values[0, ...], None if vec.valid is None else vec.valid[0, ...])
    return _hash_array(array, code, params)


def _hash_array(array: pa.Array, code: str, params: Params) -> Vec:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_temporal(array.type):
        ticks = array.view(f"int{array.type.bit_width}")
        return hash_numbers([from_arrow(ticks)], code, params)
    if not _has_bytes(array.type):
        raise TypeError(f"values of type {array.type} have no hash")
    hashes, places = hash_bytes(array, int(params[0]) % 2**64)
    if places is None:
        return Vec(hashes, validity(array))
    indices = from_arrow(places)
    table = hashes if len(hashes) else np.zeros(1, "u8")
    return Vec(table.take(indices.values, mode="clip"), indices.valid)


def _has_bytes(kind: pa.DataType) -> bool:
    plain = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return kind in plain or bool(pa.types.is_fixed_size_binary(kind))


def cast(args: Sequence[Register], code: str, params: Params) -> Register:
    """Convert to the Arrow type ``params[1]`` (default: that of ``code``).

    A value that does not fit raises CastFailure if ``params[0]`` is true, else becomes null.
    """
    kind = params[1] if len(params) > 1 else ARROW_TYPES[code]
    if isinstance(kind, pa.ExtensionType) and isinstance(args[0], Vec):
        return _with_shapes(args[0], kind)
    array = as_arrow(args[0])
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if text and pa.types.is_date32(array.type):
        array = _python_dates(array, kind, strict=params[0])
    if text and pa.types.is_floating(array.type):
        return as_register(_float_texts(array).cast(kind), code)
    try:
        return as_register(array.cast(kind), code)
    except pa.ArrowInvalid:
        if isinstance(array, pa.Scalar):
            cells = [_cast_cell(array, kind)]
        else:
            cells = [_cast_cell(cell, kind) for cell in array]
    before = [array] if isinstance(array, pa.Scalar) else array
    if params[0]:
        row = next(i for i, cell in enumerate(cells) if before[i].is_valid and not cell.is_valid)
        raise CastFailure(row, before[row].as_py(), str(kind))
    if isinstance(array, pa.Scalar):
        return as_register(cells[0], code)
    return as_register(pa.array([cell.as_py() for cell in cells], type=kind), code)


def _with_shapes(tensors: Vec, kind: pa.ExtensionType) -> pa.ExtensionArray:
    """Convert tensors (n, *shape) to an OpenTensor column, with elements and shape of each row."""
    n, *shape = tensors.values.shape
    ends = np.arange(n + 1, dtype=np.int64) * int(np.prod(shape))
    lengths = np.tile(np.array(shape, np.int32), n)
    parts = [
        pa.LargeListArray.from_arrays(pa.array(ends), pa.array(tensors.values.reshape(-1))),
        pa.FixedSizeListArray.from_arrays(pa.array(lengths), len(shape)),
    ]
    absent = None if tensors.valid is None else pa.array(~tensors.valid)
    fields = list(kind.storage_type)
    storage = pa.StructArray.from_arrays(parts, fields=fields, mask=absent)
    return pa.ExtensionArray.from_storage(kind, storage)


# Days of the years 1 to 9999, counted from 1970-01-01.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896


def _python_dates(
    array: pa.Array | pa.Scalar, kind: pa.DataType, *, strict: bool
) -> pa.Array | pa.Scalar:
    """Return dates of which those outside of the years 1 to 9999 are null, or fail."""
    if isinstance(array, pa.Scalar):
        return _python_dates(pa.repeat(array, 1), kind, strict=strict)[0]
    days = array.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    outside = (days < FIRST_DAY) | (days > LAST_DAY)
    if not outside.any():
        return array
    row = int(np.argmax(outside))
    if strict:
        raise CastFailure(row, f"day {days[row]} of 1970", str(kind))
    absent = outside | array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(days, pa.int32(), mask=absent).cast(pa.date32())


def _float_texts(array: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Format floats as the shortest text that is read as the same value of their type."""
    if isinstance(array, pa.Scalar):
        return _float_texts(pa.array([array.as_py()], array.type))[0]
    # of 32 bits, NumPy knows the shortest digits; of 64 bits, Python does
    values = array.fill_null(0.0).to_numpy(zero_copy_only=False)
    digits = values if array.type == pa.float64() else values.astype(str)
    absent = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array([repr(float(value)) for value in digits], pa.string(), mask=absent)


def _cast_cell(cell: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    try:
        return cell.cast(kind)
    except pa.ArrowInvalid:
        return pa.scalar(None, kind)


OPS: dict[str, ArrowOp] = {
    "eq": through("equal"),
    "ne": through("not_equal"),
    "lt": through("less"),
    "le": through("less_equal"),
    "gt": through("greater"),
    "ge": through("greater_equal"),
    "is_null": through("is_null"),
    "fill_null": through("fill_null"),
    "if_else": if_else,
    "is_in": is_in,
    "hash": hash_values,
    "cast": cast,
}
