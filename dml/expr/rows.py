"""This file turns blocks into Python rows for users' functions, and their results into blocks.

Rows are dicts of Python scalars: None for null, int, float, bool, str, bytes, datetime, list, dict,
and read-only arrays for fixed-shape tensors. Results keep Python's meaning: the first rows in
source order settle the types, later values must fit them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import UDFError
from dml.expr.block import Block, Values, from_arrow
from dml.expr.schema import Schema, code_of, shape_of, short, tensor
from dml.kernels.ids import RowIds
from dml.kernels.vec import Vec

Row = dict[str, Any]
NONE = type(None)

# How one Python type of all present values settles a column; other mixtures are errors.
SETTLED: dict[frozenset[type], pa.DataType] = {
    frozenset(): pa.null(),
    frozenset({int}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({int, float}): pa.float64(),
    frozenset({bool}): pa.bool_(),
    frozenset({str}): pa.string(),
    frozenset({bytes}): pa.binary(),
    frozenset({dt.datetime}): pa.timestamp("us"),
    frozenset({dt.date}): pa.date32(),
}
# The Python types that a column of a kernel code takes as they are.
TAKEN: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({float, int}),
}


class UnfitError(Exception):
    """A value at ``row`` that cannot be part of its column; the operator says which function."""

    def __init__(self, row: int, what: str, try_: str = "") -> None:
        super().__init__(what)
        self.row, self.what, self.try_ = row, what, try_

    def as_error(self, name: str) -> UDFError:
        """The error that the user sees."""
        return UDFError(f"{name} returned {self.what}", try_=self.try_, operator=name)


def to_rows(block: Block) -> list[Row]:
    """One dict per row, columns in order."""
    names = block.schema.names
    if not names:
        return [{} for _ in range(block.n)]
    if len(names) == 1:
        name = names[0]
        return [{name: value} for value in to_list(block.columns[0])]
    columns = [to_list(values) for values in block.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def to_list(values: Values) -> list[Any]:
    """Python scalars of one column; a tensor's elements are read-only views."""
    if not isinstance(values, Vec):
        return values.to_pylist()  # type: ignore[no-any-return]
    if values.values.ndim > 1:
        frozen = values.values.view()
        frozen.flags.writeable = False
        out: list[Any] = list(frozen)
    else:
        out = values.values.tolist()
    if values.valid is None:
        return out
    return [v if ok else None for v, ok in zip(out, values.valid.tolist(), strict=True)]


def to_block(rows: Sequence[Any], schema: Schema | None, ids: RowIds) -> Block:
    """The rows as a block; without a ``schema`` they settle it. Raises UnfitError."""
    for kind in set(map(type, rows)):
        if not issubclass(kind, Mapping):
            at = next(i for i, row in enumerate(rows) if type(row) is kind)
            raise UnfitError(at, f"{rows[at]!r}, which is not a dict", "return {'name': value}")
    names = tuple(rows[0]) if schema is None else schema.names
    columns = [_column_of(rows, name, names) for name in names]
    if any(len(row) != len(names) for row in rows):
        at = next(i for i, row in enumerate(rows) if len(row) != len(names))
        raise UnfitError(at, f"columns {list(rows[at])}, while earlier rows had {list(names)}")
    if schema is None:
        schema = Schema((str(n), settle(c)) for n, c in zip(names, columns, strict=True))
    made = tuple(
        to_values(column, kind, name)
        for column, (name, kind) in zip(columns, schema.items(), strict=True)
    )
    return Block(schema, made, ids)


def _column_of(rows: Sequence[Any], name: str, names: tuple[str, ...]) -> list[Any]:
    try:
        return [row[name] for row in rows]
    except KeyError:
        at = next(i for i, row in enumerate(rows) if name not in row)
        what = f"columns {list(rows[at])}, while {list(names)} are needed"
        raise UnfitError(at, what) from None


def settle(column: Sequence[Any]) -> pa.DataType:
    """The type that the values of a column settle; UnfitError where they have none in common."""
    kinds = frozenset(map(type, column)) - {NONE}
    found = SETTLED.get(kinds)
    if found is not None:
        return found
    if all(issubclass(kind, np.generic) for kind in kinds):
        code = np.result_type(*(np.dtype(kind) for kind in kinds)).str[1:]
        return tensor("b1" if code.endswith("b1") else code, ())
    if kinds == {np.ndarray}:
        return _settle_arrays([value for value in column if value is not None])
    if kinds <= {list, tuple, dict}:
        return pa.array(column).type
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise UnfitError(0, f"values of the types {names} in one column", "return one type a column")


def _settle_arrays(arrays: list[np.ndarray]) -> pa.DataType:
    shapes, kinds = {a.shape for a in arrays}, {a.dtype for a in arrays}
    kind = next(iter(kinds))
    if len(kinds) > 1 or kind.kind not in "biuf":
        raise UnfitError(0, f"arrays of {', '.join(sorted(map(str, kinds)))} in one column")
    code = "b1" if kind.kind == "b" else kind.str[1:]
    if len(shapes) == 1 and (shape := next(iter(shapes))):
        return tensor(code, shape)
    if any(len(shape) != 1 for shape in shapes):
        raise UnfitError(0, "arrays of different shapes in one column")
    return pa.list_(tensor(code, ()))


def to_values(column: Sequence[Any], kind: pa.DataType, name: str) -> Values:
    """A column of ``kind`` from Python values; UnfitError names the first that does not fit."""
    code, shape = code_of(kind), shape_of(kind)
    if shape:
        return _tensors(column, code, shape, name)
    if code == "arrow":
        return _by_arrow(column, kind, name)
    present = frozenset(map(type, column))
    if NONE not in present:
        return Vec(_numbers(column, code, kind, name, present), None)
    valid = np.array([value is not None for value in column], dtype=bool)
    filled = [0 if value is None else value for value in column]
    return Vec(_numbers(filled, code, kind, name, present - {NONE}), valid)


def _numbers(
    column: Sequence[Any], code: str, kind: pa.DataType, name: str, present: frozenset[type]
) -> np.ndarray:
    if not present <= TAKEN[code[0]]:
        column = [_coerced(value, i, code, kind, name) for i, value in enumerate(column)]
    try:
        return np.array(column, dtype=code)
    except OverflowError:
        info = np.iinfo(code)
        at = next(i for i, v in enumerate(column) if not info.min <= v <= info.max)
        what = f"{column[at]} for column {name!r}, which {kind} cannot hold"
        raise UnfitError(at, what, "declare schema={...} with a wider type") from None


def _coerced(value: Any, at: int, code: str, kind: pa.DataType, name: str) -> Any:
    """One value as ``code`` takes it; bool is no number, and a number no bool."""
    plain = value.item() if isinstance(value, np.generic) else value
    if code[0] in "iu" and type(plain) is float and plain.is_integer():
        return int(plain)
    if type(plain) in TAKEN[code[0]]:
        return plain
    what = f"{value!r} for column {name!r}, which the first rows settled as {kind}"
    raise UnfitError(at, what, "declare schema={...}, or convert in the function")


def _tensors(column: Sequence[Any], code: str, shape: tuple[int, ...], name: str) -> Vec:
    out = np.zeros((len(column), *shape), dtype=code)
    valid = np.ones(len(column), dtype=bool)
    for i, value in enumerate(column):
        if value is None:
            valid[i] = False
            continue
        array = np.asarray(value)
        if array.shape != shape or not np.can_cast(array.dtype, code, "same_kind"):
            what = f"an array of {array.dtype}{list(array.shape)} for {name!r}"
            raise UnfitError(i, f"{what}, which the first rows settled as {code}{list(shape)}")
        out[i] = array
    return Vec(out, None if valid.all() else valid)


def _by_arrow(column: Sequence[Any], kind: pa.DataType, name: str) -> Values:
    try:
        return from_arrow(pa.array(column, type=kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        at = _first_unfit(column, kind)
    what = f"{column[at]!r} for column {name!r}, which the first rows settled as {short(kind)}"
    raise UnfitError(at, what, "declare schema={...}, or convert in the function")


def _first_unfit(column: Sequence[Any], kind: pa.DataType) -> int:
    for i, value in enumerate(column):
        try:
            pa.array([value], type=kind)
        except pa.ArrowException:
            return i
    return 0
