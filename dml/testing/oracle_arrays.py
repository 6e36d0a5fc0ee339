"""The oracle converts the rows of a batch to the arrays that a training loop gets, by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.data.list_marks import Mark, Padded, plain
from dml.errors import NullValueError, UDFError
from dml.testing.oracle_rows import all_digits, kind_of, open_in, open_kind
from dml.testing.oracle_sources import pythons
from dml.testing.oracle_types import code, of_code, shape
from dml.udfs.calling.data_frames import framed, unframed

Kinds = dict[str, pa.DataType]


def arrays(rows: Sequence[dict[str, Any]], kinds: Kinds, *, keep: bool) -> dict[str, np.ndarray]:
    """Convert columns to arrays; an integer null raises, or with ``keep`` is None in objects."""
    out: dict[str, np.ndarray] = {}
    for name, kind in kinds.items():
        values = [row[name] for row in rows]
        if isinstance(kind, Mark):
            out |= _shown(values, kind, name)
        else:
            out[name] = _array(values, kind, name, keep=keep)
    return out


def _shown(lists: list[Any], mark: Mark, name: str) -> dict[str, np.ndarray]:
    """Convert lists of numbers, padded or concatenated; a null raises unless NaN can replace it."""
    if isinstance(mark.storage_type, OpenTensor):
        return {name: _padded_tensors(lists, mark, name)}
    letters = code(mark.storage_type.value_type)
    floats, padded = letters[0] == "f", isinstance(mark, Padded)
    absent = any(values is None for values in lists) and not (floats and padded)
    given: list[list[Any]] = [[None] if values is None else values for values in lists]
    if absent or (not floats and any(None in values for values in given)):
        raise NullValueError(f"column {name!r} has a null")
    given = [[np.nan if v is None else v for v in values] for values in given]
    if not padded:
        ends = np.cumsum([0, *map(len, given)])
        flat = [value for values in given for value in values]
        return {name: np.array(flat, letters), f"{name}_offsets": ends.astype(np.int64)}
    width = mark.params["width"]
    if width is None:
        width = max([0, *(len(values) for values in lists if values is not None)])
    out = np.full((len(lists), width), mark.params["fill"], letters)
    for i, values in enumerate(lists):
        if values is None:
            out[i] = np.nan
        else:
            out[i, : len(values)] = given[i]
    if floats:
        out[np.isnan(out)] = np.nan  # canonical NaN
    return {name: out}


def _padded_tensors(values: list[Any], mark: Mark, name: str) -> np.ndarray:
    """Convert tensors to one array; null floats are NaN, other nulls raise."""
    kind, width = mark.storage_type, mark.params["width"]
    letters = code(kind.value_type)
    if letters[0] != "f" and None in _plain(values):
        raise NullValueError(f"column {name!r} has a null")
    there = [np.array(value) for value in values if value is not None]
    lengths = [
        max([0, *(array.shape[axis] for array in there)]) if known is None else known
        for axis, known in enumerate(kind.shape)
    ]
    if width is not None:
        lengths[kind.shape.index(None)] = width
    out = np.full((len(values), *lengths), mark.params["fill"], letters)
    for row, value in zip(out, values, strict=True):
        if value is None:
            row[...] = np.nan
        else:
            row[tuple(slice(size) for size in np.shape(value))] = value
    if letters[0] == "f":
        out[np.isnan(out)] = np.nan  # canonical NaN
    return out


def _array(values: list[Any], kind: pa.DataType, name: str, *, keep: bool) -> np.ndarray:
    letters, dims = code(kind), shape(kind)
    if letters == "arrow":
        return _objects(values, kind)
    if letters[0] != "f" and None in _plain(values):
        if not keep:
            raise NullValueError(f"column {name!r} has a null")
        return _listed(values)
    blank = np.nan if letters[0] == "f" else 0
    out = np.zeros((len(values), *dims), dtype=letters)
    for i, value in enumerate(values):
        out[i] = blank if value is None else value
    if letters[0] == "f":
        out[np.isnan(out)] = np.nan  # canonical NaN
    return out


def _plain(values: list[Any]) -> list[Any]:
    return [None if value is None else 0 for value in values]


def _listed(values: list[Any]) -> np.ndarray:
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out


def _tensors(values: list[Any], kind: OpenTensor) -> np.ndarray:
    """Convert tensors to an object array; to one array if ``kind.stacked`` and shapes are equal."""
    made = [value if value is None else np.array(value) for value in values]
    for array in made:
        if array is not None and array.dtype.kind == "f":
            array[np.isnan(array)] = np.nan  # canonical NaN
    shapes = {None if array is None else array.shape for array in made}
    whole = kind.stacked and len(shapes) == 1 and None not in shapes
    return np.stack([array for array in made if array is not None]) if whole else _listed(made)


def _objects(values: list[Any], kind: pa.DataType) -> np.ndarray:
    if isinstance(kind, OpenTensor):
        return _tensors(values, kind)
    if pa.types.is_timestamp(kind):
        return np.array(values, dtype=f"datetime64[{kind.unit}]")
    if pa.types.is_date32(kind):
        return np.array(values, dtype="datetime64[D]")
    if pa.types.is_list(kind) and code(kind.value_type) != "arrow":
        dtype = code(kind.value_type)
        return _listed([v if v is None or None in v else np.array(v, dtype) for v in values])
    return _listed(values)


def batch_seen(node: Any, rows: Sequence[dict[str, Any]], kinds: Kinds) -> Any:
    """Return the argument of a batch function: arrays (read-only unless writable), or a table."""
    form = getattr(node, "batch_format", "numpy")
    if form != "numpy":
        columns = {n: _arrow([row[n] for row in rows], plain(k)) for n, k in kinds.items()}
        return framed(pa.table(columns), form)
    given = arrays(rows, kinds, keep=True)
    for array in given.values():
        array.flags.writeable = getattr(node, "writable", False)
    return given


def _arrow(values: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, OpenTensor):
        parts = [v if v is None else {"data": v.ravel().tolist(), "shape": v.shape} for v in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(parts, kind.storage_type))
    if not shape(kind):
        return pa.array(values, kind)
    plain = [None if v is None else v.reshape(-1).tolist() for v in values]
    return pa.ExtensionArray.from_storage(kind, pa.array(plain, kind.storage_type))


def columns_of(returned: Any) -> tuple[int, Kinds, list[dict[str, Any]]]:
    """Return length, types and rows of a batch function's result: a dict of arrays or a table."""
    returned = unframed(returned)
    if isinstance(returned, pa.Table | pa.RecordBatch):
        return _of_table(returned)
    if not isinstance(returned, Mapping) or not returned:
        raise UDFError("a batch function returned no dict of arrays")
    given = {str(name): _gathered(values) for name, values in returned.items()}
    lengths = {len(array) if array.ndim else -1 for array in given.values()}
    if len(lengths) > 1 or -1 in lengths:
        raise UDFError("a batch function returned columns of unequal lengths")
    kinds = {name: _kind(array) for name, array in given.items()}
    columns = {name: _values(array) for name, array in given.items()}
    (n,) = lengths
    return n, kinds, [{name: columns[name][i] for name in given} for i in range(n)]


def _gathered(values: Any) -> np.ndarray:
    """Convert values to an array, of objects where rows have unequal lengths."""
    try:
        return np.asanyarray(values)
    except ValueError:
        return _listed(list(values))


def _of_table(table: pa.Table | pa.RecordBatch) -> tuple[int, Kinds, list[dict[str, Any]]]:
    names = table.schema.names
    if not names or len(set(names)) < len(names):
        raise UDFError("a batch function returned no table of named columns")
    kinds = {field.name: field.type for field in table.schema}
    columns = [pythons(table.column(name), kind) for name, kind in kinds.items()]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return table.num_rows, kinds, rows


def _kind(array: np.ndarray) -> pa.DataType:
    if array.dtype.kind in "biuf":
        letters = "b1" if array.dtype.kind == "b" else array.dtype.str[1:]
        return of_code(letters, array.shape[1:])
    if array.dtype.kind != "O":
        return pa.array(array).type
    present = [value for value in array.tolist() if value is not None]
    if _are_tensors(present):
        kind = kind_of(present)
        return open_kind(code(kind.value_type), len(kind.shape))
    if present and all(type(value) is int for value in present) and max(present) >= 2**63:
        if min(present) < 0 or max(present) >= 2**64:
            raise UDFError("a column of integers that no type holds")
        return pa.uint64()
    return all_digits(pa.array(array.tolist()).type)


def _are_tensors(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(v, np.ndarray) and v.ndim > 1 for v in values)


def as_wide(kinds: Kinds) -> Kinds:
    """Return the result types of a function of batches that are as wide as their longest lists."""
    return {name: _as_wide(kind) for name, kind in kinds.items()}


def _as_wide(kind: pa.DataType) -> pa.DataType:
    axes = len(shape(kind))
    if axes > 1:
        return OpenTensor(kind.value_type, (None,) * axes, stacked=True)
    return Padded(pa.list_(kind.value_type), fill=0, width=None) if axes else kind


def are_wide(kinds: Kinds) -> bool:
    """True if arrays of these types may differ in width from batch to batch."""
    marks = (kind for kind in kinds.values() if isinstance(kind, Padded))
    tensors = (kind for kind in kinds.values() if isinstance(kind, OpenTensor))
    return any(mark.params["width"] is None for mark in marks) or any(t.stacked for t in tensors)


def _values(array: np.ndarray) -> list[Any]:
    if array.ndim > 1 and array.dtype.kind in "biuf":
        masked = [bool(row.any()) for row in np.ma.getmaskarray(array)]
        return [None if gone else row for row, gone in zip(np.asarray(array), masked, strict=True)]
    temporal = array.dtype.kind == "M"
    found: list[Any] = pa.array(array).to_pylist() if temporal else array.tolist()
    return [v.tolist() if isinstance(v, np.ndarray) and v.ndim == 1 else v for v in found]


def as_settled(kinds: Kinds, found: Kinds, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert rows of a later batch to the types of the first; UDFError where they do not fit."""
    if set(kinds) != set(found):
        raise UDFError(f"columns {list(found)} instead of {list(kinds)}")
    return [
        {name: _held(row[name], found[name], kind) for name, kind in kinds.items()} for row in rows
    ]


def _held(value: Any, kind: pa.DataType, wanted: pa.DataType) -> Any:
    """Convert a number to another type that represents it exactly; null fits every type."""
    wanted = plain(wanted)
    if kind == wanted or pa.types.is_null(kind) or (value is None and code(wanted) == "arrow"):
        return value
    if isinstance(wanted, OpenTensor):
        return open_in(value, wanted)
    if pa.types.is_list(wanted) and len(shape(kind)) == 1:
        if value is None or not len(value):
            return value if value is None else []
        if code(wanted.value_type) != "arrow":
            return _held(value, kind, of_code(code(wanted.value_type), shape(kind))).tolist()
    alike = code(kind) != "arrow" and code(wanted) != "arrow" and shape(kind) == shape(wanted)
    if alike and value is not None:
        with np.errstate(all="ignore"):
            made = np.array(value, dtype=code(kind)).astype(code(wanted))
        pairs = zip(made.ravel().tolist(), np.ravel(value).tolist(), strict=True)
        alike = all(new == old or (new != new and old != old) for new, old in pairs)  # noqa: PLR0124
        value = made if shape(wanted) else made.item()
    if not alike:
        raise UDFError(f"{value!r} is no {wanted}")
    return value
