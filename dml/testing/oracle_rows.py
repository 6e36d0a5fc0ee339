"""The oracle infers the types of rows that users' functions return, and converts rows to them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.errors import UDFError
from dml.testing.oracle_types import code, of_code, shape

Kinds = dict[str, pa.DataType]

SETTLED: list[tuple[set[type], pa.DataType]] = [
    (set(), pa.null()),
    ({int}, pa.int64()),
    ({float}, pa.float64()),
    ({int, float}, pa.float64()),
    ({bool}, pa.bool_()),
    ({str}, pa.string()),
    ({bytes}, pa.binary()),
    ({dt.date}, pa.date32()),
    ({dt.timedelta}, pa.duration("us")),
]


def settled(returned: Sequence[Any], proven: Mapping[str, pa.DataType]) -> Kinds:
    """Infer types from the rows of one atom: names from the first row, types from all rows.

    A column without any value has the type that is ``proven`` for the function, if any.
    """
    first = returned[0]
    if not isinstance(first, Mapping):
        raise UDFError(f"{first!r} is no row")
    usable = []
    for row in returned:  # a row without these names is an error later, at its place
        if not isinstance(row, Mapping) or set(row) != set(first):
            break
        usable.append(row)
    kinds = {str(name): kind_of([row[name] for row in usable]) for name in first}
    return {n: proven.get(n, kind) if pa.types.is_null(kind) else kind for n, kind in kinds.items()}


def kind_of(values: Sequence[Any]) -> pa.DataType:
    """Return the type that fits all ``values`` but None; UDFError if there is none."""
    present = [value for value in values if value is not None]
    seen = {type(value) for value in present}
    for types, kind in SETTLED:
        if seen == types:
            return kind
    if seen in ({dt.datetime}, {dt.time}):
        return _kind_of_times(present)
    if seen == {np.ndarray}:
        return _kind_of_arrays(present)
    if all(issubclass(kind, np.generic) for kind in seen):
        dtype = np.result_type(*[value.dtype for value in present])
        return of_code("b1" if dtype.kind == "b" else dtype.str[1:])
    if seen <= {list, tuple, dict} or seen <= {int, Decimal}:
        return all_digits(pa.array(values).type)
    raise UDFError(f"a column of {sorted(kind.__name__ for kind in seen)}")


def _kind_of_times(times: Sequence[dt.datetime | dt.time]) -> pa.DataType:
    zoned = {time.tzinfo is not None for time in times}
    if len(zoned) > 1:
        raise UDFError("times with and without a time zone in one column")
    if isinstance(times[0], dt.time):
        if True in zoned:
            raise UDFError("times of day with a time zone")
        return pa.time64("us")
    return pa.array(times).type if True in zoned else pa.timestamp("us")


def all_digits(kind: pa.DataType) -> pa.DataType:
    """Widen decimals, also within lists and structs, to the most digits that their width allows."""
    if pa.types.is_decimal128(kind):
        return pa.decimal128(38, kind.scale)
    if pa.types.is_decimal256(kind):
        return pa.decimal256(76, kind.scale)
    if pa.types.is_list(kind):
        return pa.list_(all_digits(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct({field.name: all_digits(field.type) for field in kind})
    return kind


def _kind_of_arrays(arrays: Sequence[np.ndarray]) -> pa.DataType:
    dtypes, shapes = {array.dtype for array in arrays}, {array.shape for array in arrays}
    dtype = dtypes.pop()
    if dtypes or dtype.kind not in "biuf":
        raise UDFError("arrays of several types in one column")
    letters = "b1" if dtype.kind == "b" else dtype.str[1:]
    if len(shapes) == 1 and shapes != {()}:
        return of_code(letters, shapes.pop())
    axes = {len(dims) for dims in shapes}
    if len(axes) > 1 or axes == {0}:
        raise UDFError("arrays of several numbers of axes in one column")
    return pa.list_(of_code(letters)) if axes == {1} else open_kind(letters, axes.pop())


def fitted(returned: Any, kinds: Kinds) -> dict[str, Any]:
    """Convert one returned row to the types of its columns; UDFError where that is impossible."""
    if not isinstance(returned, Mapping):
        raise UDFError(f"{returned!r} is no row")
    if set(returned) != set(kinds):
        raise UDFError(f"columns {list(returned)} instead of {list(kinds)}")
    return {name: value_in(returned[name], kind) for name, kind in kinds.items()}


def value_in(value: Any, kind: pa.DataType) -> Any:
    """Convert ``value`` to ``kind``: numbers must keep their value, nothing else is converted."""
    letters, dims = code(kind), shape(kind)
    if value is None:
        return None
    if dims:
        return _tensor_in(value, letters, dims)
    if isinstance(kind, OpenTensor):
        return open_in(value, kind)
    if letters == "arrow":
        return _other_in(value, kind)
    plain = value.item() if isinstance(value, np.generic) else value
    if letters == "b1":
        return _checked(plain, type(plain) is bool, kind)
    if letters[0] == "f":
        number = float(_checked(plain, type(plain) in (int, float), kind))
        return float(np.array(number, dtype=letters))
    if type(plain) is float and plain.is_integer():
        plain = int(plain)
    bits = 8 * int(letters[1])
    low = -(2 ** (bits - 1)) if letters[0] == "i" else 0
    return _checked(plain, type(plain) is int and low <= plain < low + 2**bits, kind)


def _checked(value: Any, fits: bool, kind: pa.DataType) -> Any:  # noqa: FBT001 - the verdict
    if not fits:
        raise UDFError(f"{value!r} is no {kind}")
    return value


def _tensor_in(value: Any, letters: str, dims: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != dims or not np.can_cast(array.dtype, letters, "same_kind"):
        raise UDFError(f"an array of {array.dtype}{array.shape} is no {letters}{dims}")
    return array.astype(letters)


def open_kind(letters: str, axes: int) -> OpenTensor:
    """Return the type of tensors with ``axes`` axes of any length."""
    return OpenTensor(of_code(letters), (None,) * axes)


def open_in(value: Any, kind: OpenTensor) -> np.ndarray:
    """Convert ``value`` to a tensor with the axes and the fixed lengths of ``kind``."""
    array, letters = np.asarray(value), code(kind.value_type)
    given = [kind.shape[i] for i in range(array.ndim)] if array.ndim == len(kind.shape) else [-1]
    dims = [want if want is None else have for want, have in zip(given, array.shape, strict=False)]
    if dims != given or not np.can_cast(array.dtype, letters, "same_kind"):
        raise UDFError(f"an array of {array.dtype}{array.shape} is no {kind}")
    return array.astype(letters)


def _other_in(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_date(kind):
        _checked(value, type(value) is dt.date, kind)
    if pa.types.is_time(kind):
        _checked(value, type(value) is dt.time and value.tzinfo is None, kind)
    if pa.types.is_duration(kind):
        _checked(value, type(value) in (dt.timedelta, np.timedelta64), kind)
    if pa.types.is_timestamp(kind):
        zoned = getattr(value, "tzinfo", None) is not None
        _checked(value, isinstance(value, dt.date) and zoned == (kind.tz is not None), kind)
    try:
        return pa.array([value], type=kind).to_pylist()[0]
    except pa.ArrowException as error:
        raise UDFError(f"{value!r} is no {kind}: {error}") from None
