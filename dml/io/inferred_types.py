"""Python values are converted to typed columns; errors name the first row that does not fit."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor, column_of
from dml.data.layouts import texts
from dml.data.schema import CODES, TYPES, code_of, shape_of, short, tensor
from dml.errors import SourceError
from dml.io.column_store import Stored, stored_arrow
from dml.kernels.vec import Vec, arrow_array
from dml.kernels.vec import code_of as dtype_code

Typed = tuple[pa.DataType, Stored]

# Types that a column cannot mix with other types.
ALONE: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
}
# Types whose exact Arrow type depends on the values (time zone, digits, fields).
BY_VALUE = (dt.datetime, decimal.Decimal, list, tuple, dict)
# Texts of a column up to which their conversion in Python takes less time than importing pandas.
FEW = 1 << 17
TRY = "one type per column, None where a value is missing, or schema={...} to say which type"


def from_list(values: Sequence[Any], name: str, kind: pa.DataType | None = None) -> Typed:
    """Build a column from Python values, ``None`` for null, of type ``kind`` or an inferred type.

    All int: int64; int and float: float64; otherwise all values have one type. NumPy scalars of one
    dtype keep it; arrays of one dtype and shape become a fixed-shape tensor, other 1-d arrays
    lists, and other arrays of an equal number of axes tensors of open shape. Raises SourceError
    that names the column and the first row that does not fit.
    """
    if kind is not None:
        return _declared(values, name, kind)
    seen = {type(v) for v in values if v is not None}
    if seen and all(issubclass(t, np.ndarray) for t in seen):
        return _from_arrays(values, name)
    if seen and all(issubclass(t, np.generic) for t in seen):
        return _from_scalars(values, name, seen)
    if any(issubclass(t, np.generic) for t in seen):
        values = [v.item() if isinstance(v, np.generic) else v for v in values]
    return _by_type(values, name)


def _by_type(values: Sequence[Any], name: str) -> Typed:
    seen = {_base(v) for v in values if v is not None}
    if not seen:
        return stored_arrow(pa.nulls(len(values)))
    if seen == {int, float}:
        values = [None if v is None else float(v) for v in values]
        seen = {float}
    if len(seen) > 1 or None in seen:
        raise _stranger(values, name)
    (only,) = seen
    kind = None if only is None else ALONE.get(only)
    plain = _plain(values, kind) if set(map(type, values)) == {only} else None
    return stored_arrow(plain or _arrow(values, name, kind))


def _plain(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array | None:
    """Return an array of numbers, booleans or texts of one exact type; None for other values.

    It needs no ``pyarrow.array``, whose first call imports pandas, where it is installed.
    """
    try:
        if kind in TEXTS.values() and len(values) <= FEW:
            return texts(values, kind)
        return arrow_array(np.array(values, code_of(kind)), kind) if kind in CODES else None
    except (OverflowError, UnicodeEncodeError):  # an error that names the row follows
        return None


def _base(value: Any) -> type | None:
    """Return the supported base type of ``value``; None for values that no column can contain."""
    kind = type(value)
    if kind in ALONE or kind in BY_VALUE:
        return kind
    order = (bool, int, float, str, bytes, dt.datetime, *ALONE, *BY_VALUE)
    return next((base for base in order if issubclass(kind, base)), None)


def _arrow(values: Sequence[Any], name: str, kind: pa.DataType | None) -> pa.Array:
    try:
        array = pa.array(values, type=kind)
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        row = _first_bad(values, kind)
        wanted = "one Arrow type" if kind is None else short(kind)
        raise SourceError(
            f"row {row} of column {name!r} does not fit {wanted}",
            why=f"it is {_short(values[row])}: {error}",
            try_=TRY,
        ) from None


def _first_bad(values: Sequence[Any], kind: pa.DataType | None) -> int:
    """Return the first row that Arrow cannot convert to ``kind``, found by bisection."""
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            pa.array(values[: middle + 1], type=kind)
            low = middle + 1
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            high = middle
    return low


def _stranger(values: Sequence[Any], name: str) -> SourceError:
    """Build the error for a value of an unsupported type, or of another type than earlier ones."""
    first: tuple[int, type] | None = None
    for row, value in enumerate(values):
        if value is None:
            continue
        base = _base(value)
        if base is None:
            return SourceError(
                f"row {row} of column {name!r} is {_short(value)}, which no column can hold",
                why=f"its type is {type(value).__module__}.{type(value).__qualname__}",
                try_="numbers, bool, str, bytes, dates, lists, dicts, NumPy arrays, or None",
            )
        first = first or (row, base)
        if {base, first[1]} not in ({base}, {int, float}):
            return SourceError(
                f"column {name!r} mixes {first[1].__name__} and {base.__name__}",
                why=f"row {first[0]} is {_short(values[first[0]])}, row {row} is {_short(value)}",
                try_=TRY,
            )
    return SourceError(f"column {name!r} mixes types that have no common one", try_=TRY)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _from_scalars(values: Sequence[Any], name: str, seen: set[type]) -> Typed:
    """Build a column from NumPy scalars: of their common dtype if they are numbers or booleans."""
    if seen in ({np.datetime64}, {np.timedelta64}):
        (scalar,) = seen
        return from_array(np.array([scalar("NaT") if v is None else v for v in values]), name)
    mixed = np.bool_ in seen and len(seen) > 1
    if mixed or not all(issubclass(t, np.number | np.bool_) for t in seen):
        return _by_type([None if v is None else v.item() for v in values], name)
    dtypes = sorted({v.dtype for v in values if v is not None}, key=str)
    dtype = np.result_type(*dtypes)
    absent = np.fromiter((v is None for v in values), bool, len(values))
    filled = np.array([dtype.type(0) if v is None else v for v in values], dtype)
    return from_array(filled, name, absent if absent.any() else None)


def _from_arrays(values: Sequence[Any], name: str) -> Typed:
    """Build a column from arrays: a tensor if dtype and shape agree, lists if arrays are 1-d."""
    present = [v for v in values if v is not None]
    like = present[0]
    if all(v.dtype == like.dtype and v.shape == like.shape for v in present):
        absent = np.fromiter((v is None for v in values), bool, len(values))
        blank = np.zeros(like.shape, like.dtype)
        filled = np.stack([blank if v is None else v for v in values])
        return from_array(filled, name, absent if absent.any() else None)
    for row, v in enumerate(values):
        if v is not None and (v.ndim != like.ndim or not v.ndim or v.dtype != like.dtype):
            raise SourceError(
                f"row {row} of column {name!r} has dtype {v.dtype} and shape {v.shape}",
                why=f"a row before has {like.dtype} and {like.shape}",
                try_="arrays of one dtype and number of axes",
            )
    element = _element(like.dtype, name)
    if like.ndim == 1 or element not in CODES:
        return stored_arrow(_arrow(values, name, pa.list_(element)))
    kind = OpenTensor(element, (None,) * like.ndim)
    return stored_arrow(column_of(values, kind))


def _element(dtype: np.dtype[Any], name: str) -> pa.DataType:
    """Return the Arrow type of a NumPy dtype, or raise SourceError."""
    try:
        return pa.from_numpy_dtype(dtype)
    except (pa.ArrowNotImplementedError, TypeError):
        raise SourceError(
            f"column {name!r} has dtype {dtype}, which no column can hold",
            try_="bool, whole numbers, floats, text, bytes, datetime64 or timedelta64",
        ) from None


TEXTS = {"U": pa.string(), "S": pa.binary()}


def from_array(array: np.ndarray, name: str, absent: np.ndarray | None = None) -> Typed:
    """Build a column over a NumPy array (n, *element shape); ``absent``, (n,) bool, marks nulls.

    The array is copied only if kernels cannot read its layout. An array with more than one axis
    becomes a fixed-shape tensor of numbers. Raises SourceError for other dtypes.
    """
    if isinstance(array, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(array)
        absent = np.asarray(mask if array.ndim == 1 else mask.all(axis=tuple(range(1, array.ndim))))
        array = array.data
    array = np.asarray(array)
    if array.ndim == 0:
        raise SourceError(
            f"column {name!r} is a single value", try_="an array with an axis of rows"
        )
    native = array.dtype.newbyteorder("=")
    array = array.astype(native, copy=False)
    if native.kind in "OUSM" and array.ndim == 1 and absent is None and native.kind != "M":
        if native.kind in TEXTS and not len(array):  # only the dtype gives the type of no values
            return stored_arrow(pa.array([], TEXTS[native.kind]))
        return from_list(array.tolist(), name)
    if native.kind in "biuf" and dtype_code(native) in TYPES:
        kind = tensor(dtype_code(native), array.shape[1:])
        array = np.require(array, requirements=["C", "A"])
        return kind, Vec(array, None if absent is None else ~absent)
    if array.ndim > 1:
        raise SourceError(
            f"column {name!r} has shape {array.shape} and dtype {native}",
            why="tensors hold booleans, whole numbers, float32 or float64",
            try_=".astype('float32')" if native.kind == "f" else "one column per entry",
        )
    _element(native, name)
    try:
        return stored_arrow(pa.array(array, mask=absent))
    except pa.ArrowException as error:
        raise SourceError(
            f"column {name!r} has dtype {native}, which no column can hold", why=str(error)
        ) from None


def _declared(values: Sequence[Any], name: str, kind: pa.DataType) -> Typed:
    """Build a column of type ``kind``, which the user declared."""
    shape = shape_of(kind)
    if isinstance(kind, OpenTensor):
        parts = (v if v is None else _tensor(v, row, name, kind) for row, v in enumerate(values))
        return stored_arrow(column_of(list(parts), kind))
    if not shape:
        if kind in CODES:
            values = [v.item() if isinstance(v, np.generic) else v for v in values]
            _check_exact(values, name, kind)
        return stored_arrow(_arrow(values, name, kind))
    dtype = np.dtype(code_of(kind))
    filled = np.zeros((len(values), *shape), dtype)
    absent = np.zeros(len(values), bool)
    for row, value in enumerate(values):
        if value is None:
            absent[row] = True
        else:
            filled[row] = _tensor(value, row, name, kind)
    return kind, Vec(filled, ~absent if absent.any() else None)


def _tensor(value: Any, row: int, name: str, kind: pa.DataType) -> np.ndarray:
    """Return a value as an array that fits tensor type ``kind``; raise SourceError otherwise."""
    part = np.asarray(value)
    is_open = isinstance(kind, OpenTensor)
    dtype = np.dtype(code_of(kind.value_type))
    fits = kind.covers(part.shape) if is_open else part.shape == shape_of(kind)
    fits = fits and np.can_cast(part.dtype, dtype, "same_kind")
    if not fits or (dtype.kind in "iu" and not np.array_equal(part.astype(dtype), part)):
        raise SourceError(
            f"row {row} of column {name!r} does not fit {short(kind)}",
            why=f"it has shape {part.shape} and dtype {part.dtype}",
        )
    return part


def _check_exact(values: Sequence[Any], name: str, kind: pa.DataType) -> None:
    """Raise SourceError for values that Arrow would truncate: fractions, and large floats."""
    code = code_of(kind)
    if code in ("f8", "b1"):
        return
    most = float(np.finfo(np.float32).max)
    for row, value in enumerate(values):
        if not isinstance(value, float):
            continue
        lost = most < abs(value) < math.inf if code == "f4" else not value.is_integer()
        if lost:
            raise SourceError(
                f"row {row} of column {name!r} does not fit {short(kind)}",
                why=f"it is {value!r}",
                try_=TRY,
            )
