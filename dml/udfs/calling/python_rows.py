"""Blocks become Python rows for users' functions here, and the returned rows become blocks.

Rows are dicts of Python scalars: None for null, int, float, bool, str, bytes, datetime, list, dict,
and read-only arrays for fixed-shape tensors. Results keep Python's meaning: the first rows in
source order settle the types of columns, and later values must fit these types.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor, arrays_in, column_of
from dml.data.batch_trays import placed
from dml.data.block import Block, Values, from_arrow
from dml.data.layouts import FEW, TEXTS, texts
from dml.data.object_values import in_pieces
from dml.data.schema import TYPES, Schema, code_of, shape_of, short, tensor
from dml.errors import DmlError, UDFError, text_of, worded
from dml.expr.user_call import UnreadableError, UserFunction
from dml.kernels.functions.zones import in_python
from dml.kernels.interpreter import canonicalise
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

Row = dict[str, Any]
NONE = type(None)
GENERATED = 1024  # most columns of a row for which a loop is generated
RETURN = "return a dict with the same names and types for every row, or declare schema={...}"

# Column types by the set of Python types of all present values; other mixtures are errors.
SETTLED: dict[frozenset[type], pa.DataType] = {
    frozenset(): pa.null(),
    frozenset({int}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({int, float}): pa.float64(),
    frozenset({bool}): pa.bool_(),
    frozenset({str}): pa.string(),
    frozenset({bytes}): pa.binary(),
    frozenset({dt.date}): pa.date32(),
    frozenset({dt.timedelta}): pa.duration("us"),
}

# The Python types that a column of an Arrow type returns unchanged.
EXACT: dict[pa.DataType, frozenset[type]] = {
    pa.int64(): frozenset({int, NONE}),
    pa.float64(): frozenset({float, NONE}),
    pa.bool_(): frozenset({bool, NONE}),
    pa.string(): frozenset({str, NONE}),
    pa.binary(): frozenset({bytes, NONE}),
}
NO_TYPES: frozenset[type] = frozenset()

# The Python types that a column of a kernel type code accepts unchanged.
TAKEN: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({float, int}),
}


class UnfitError(Exception):
    """The value at index ``row`` does not fit its column; ``as_error`` adds the function's name."""

    def __init__(self, row: int, what: str, try_: str = RETURN) -> None:
        super().__init__(what)
        self.row, self.what, self.try_ = row, what, try_

    def as_error(self, name: str) -> UDFError:
        """Return the UDFError for the user, for a function called ``name``."""
        why = "a column has one type: the declared one, or the one that the first rows settle"
        return UDFError(f"{name} returned {self.what}", why=why, try_=self.try_, operator=name)


def noticed(fn: UserFunction, block: Block) -> Block:
    """Return ``block`` with the columns that ``fn`` looks up; with all, if it may read others.

    Other columns are then not converted, so a value in them without a Python form is no error.
    """
    names = fn.lookups
    if names is None or len(names) == len(block.schema) or not names <= block.schema.keys():
        return block
    return block.select([name for name in block.schema if name in names])


def to_rows(block: Block) -> list[Row]:
    """Return one dict per row, with the columns in order."""
    names = block.schema.names
    if not names:
        return [{} for _ in range(block.n)]
    rows: list[Row] = []
    _loop(names)(lambda row: row, rows.append, *map(to_list, block.columns))
    return rows


def call_each(fn: UserFunction, block: Block, out: list[Any]) -> None:
    """Append ``fn(row)`` for every row of ``block`` to ``out``, until a call raises.

    Rows have only the columns that ``fn`` can read. If ``fn`` only looks up items of its row
    (``fn.lookups``), it receives the dicts that an earlier function returned, if ``block.rows``
    contains them.
    """
    given = None if fn.lookups is None else block.rows
    block = noticed(fn, block)
    if given is not None and type(out) is list:
        out.extend(map(fn.call, given))  # results before an exception are kept
        if len(out) < len(given):
            raise StopIteration  # which ``map`` treats as the end of the rows
    elif given is not None or not block.schema:
        for row in to_rows(block) if given is None else given:
            out.append(fn.call(row))  # noqa: PERF401 - what was made before an exception is kept
    else:
        loop = _loop(block.schema.names)
        for part in in_pieces(block):
            for columns in converted(part, part.schema.names):
                loop(fn.call, out.append, *columns)


def converted(block: Block, names: Sequence[str]) -> Iterable[list[list[Any]]]:
    """Return columns as lists of Python values; row by row if a value has no Python form.

    In that case, the error is raised when its row is reached.
    """
    try:
        return ([to_list(block[name]) for name in names],)
    except DmlError:
        ones = (block.slice(row, row + 1) for row in range(block.n))
        return ([to_list(one[name]) for name in names] for one in ones)


def readable(call: Callable[..., Any], block: Block) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Return the rows of ``block``, and ``call`` in a form that accepts them.

    Rows are dicts, and ``call`` is unchanged. If a value has no Python form, rows are blocks of one
    row, and only the call with the affected row raises an error.
    """
    try:
        return call, to_rows(block)
    except DmlError:
        ones = [block.slice(row, row + 1) for row in range(block.n)]

    def read(*given: Any) -> Any:
        return call(*(to_rows(each)[0] if isinstance(each, Block) else each for each in given))

    return read, ones


def each_row(fn: UserFunction, block: Block, out: list[Any]) -> BaseException | None:
    """Run ``call_each``; return the exception that stopped it, or None."""
    return fn.caught(call_each, fn, block, out)


def own_rows(block: Block) -> list[Row]:
    """Return ``to_rows`` with arrays that belong to the caller; all NaNs have the same bits."""
    rows = to_rows(block)
    for name, kind in block.schema.items():
        for row in rows if shape_of(kind) or isinstance(kind, OpenTensor) else ():
            if row[name] is not None:
                row[name] = row[name].copy()
                canonicalise(row[name])
    return rows


@functools.lru_cache(256)
def _loop(names: tuple[str, ...]) -> Callable[..., None]:
    """Return a loop over columns that calls ``fn`` with each row's dict and appends the result.

    The code of the loop is generated from the names: a dict display and a plain call take half the
    time of ``dict(zip())`` and ``map`` (benchmarks/dml_loader.py, w4). For many names a generic
    loop is returned, since compiling would cost more time than it saves, and memory
    (benchmarks/bench_wide_csv.py).
    """
    if len(names) > GENERATED:
        return functools.partial(_zipped, names)
    places = [f"v{i}" for i in range(len(names))]
    columns = ", ".join(f"c{i}" for i in range(len(names)))
    items = ", ".join(f"{name!r}: {place}" for name, place in zip(names, places, strict=True))
    each = f"{places[0]} in c0" if len(names) == 1 else f"{', '.join(places)} in zip({columns})"
    text = f"def loop(fn, append, {columns}):\n for {each}:\n  append(fn({{{items}}}))"
    made: dict[str, Any] = {}
    exec(text, made)  # noqa: S102 - names enter as quoted literals only
    loop: Callable[..., None] = made["loop"]
    return loop


def _zipped(
    names: tuple[str, ...], fn: Callable[..., Any], append: Callable[..., Any], *columns: list[Any]
) -> None:
    """Call ``fn`` with the dict of each row of ``columns``, and ``append`` the result."""
    for row in zip(*columns, strict=True):
        append(fn(dict(zip(names, row, strict=True))))


def to_list(values: Values) -> list[Any]:
    """Return one column as Python scalars; tensors are read-only views."""
    if not isinstance(values, Vec):
        if isinstance(values.type, OpenTensor):
            return list(arrays_in(values))
        return _in_microseconds(in_python(values)).to_pylist()  # type: ignore[no-any-return]
    if values.values.ndim > 1:
        frozen = values.values.view()
        frozen.flags.writeable = False
        out: list[Any] = list(frozen)
    else:
        out = values.values.tolist()
    if values.valid is None:
        return out
    return [v if ok else None for v, ok in zip(out, values.valid.tolist(), strict=True)]


def _in_microseconds(array: pa.Array) -> pa.Array:
    """Return nanoseconds as microseconds, for ``datetime``; CastError if digits would be lost."""
    if getattr(array.type, "unit", "") != "ns":
        return array
    zone, name = getattr(array.type, "tz", None), str(array.type).partition("[")[0]
    wanted = pa.timestamp("us", zone) if zone else pa.type_for_alias(f"{name}[us]")
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise UnreadableError(
            f"a value of type {array.type} has digits that Python's datetime cannot hold",
            why=str(error),
            try_=f".cast to {wanted} with strict=False, which gives null instead",
        ) from None


def to_block(rows: list[Any], schema: Schema | None, ids: RowIds, fresh: int = 0) -> Block:
    """Return ``rows`` as a block; without a ``schema``, the rows settle it.

    If ``fresh`` is not 0, the rows are distinct dicts with ``fresh`` items each. Raise UnfitError
    for a row that does not fit.
    """
    try:
        return _to_block(rows, schema, ids, fresh)
    except (UnfitError, DmlError, MemoryError):
        raise
    except Exception as error:
        at = _first(rows, lambda some: _read(some, schema))
        raise UnfitError(at, f"what cannot be read: {worded(error)}") from error


def _read(rows: Sequence[Any], schema: Schema | None) -> None:
    """Read all rows once, and raise UnfitError if this raises an error other than a DmlError."""
    try:
        _to_block(list(rows), schema, RowIds.run(0, 0, len(rows)), 0)
    except DmlError:
        return
    except Exception as error:
        raise UnfitError(0, worded(error)) from error


def _to_block(rows: list[Any], schema: Schema | None, ids: RowIds, fresh: int) -> Block:
    if schema is None:
        _need_dict(rows, 0)
    names = tuple(rows[0]) if schema is None else schema.names
    known = fresh == len(names) > 0
    columns = [_column_of(rows, name, names) for name in names]
    for at in range(0 if names else len(rows)):
        _need_dict(rows, at)
    if not known and sum(map(len, rows)) != len(names) * len(rows):
        at = next(i for i, row in enumerate(rows) if len(row) != len(names))
        raise UnfitError(
            at, f"columns {text_of(list(rows[at]))}, while earlier rows had {list(names)}"
        )
    if schema is None:
        schema = Schema((n, _settled(n, c)) for n, c in zip(names, columns, strict=True))
    kinds = [frozenset(map(type, column)) for column in columns]
    made = tuple(
        placed(rows, name) or to_values(column, kind, name, present)
        for column, present, (name, kind) in zip(columns, kinds, schema.items(), strict=True)
    )
    exact = _exact(kinds, made, schema) and (known or set(map(type, rows)) <= {dict})
    return Block(schema, made, ids, rows if exact else None)


def _exact(kinds: Sequence[frozenset[type]], made: Sequence[Values], schema: Schema) -> bool:
    """Return True if converting the block back to rows gives equal plain dicts.

    Return False if there is a NaN: since NaN does not equal NaN, Python's ``in`` finds only the
    same object, which a conversion does not keep.
    """
    pairs = zip(kinds, schema.values(), strict=True)
    if not all(present <= EXACT.get(kind, NO_TYPES) for present, kind in pairs):
        return False
    floats = [v.values for v in made if isinstance(v, Vec) and v.values.dtype.kind == "f"]
    return not any(np.isnan(values).any() for values in floats)


def _need_dict(rows: Sequence[Any], at: int) -> None:
    if not isinstance(rows[at], Mapping):
        raise UnfitError(
            at, f"{text_of(rows[at], repr)}, which is not a dict", "return {'name': value}"
        )


def _column_of(rows: Sequence[Any], name: str, names: tuple[str, ...]) -> list[Any]:
    try:
        return list(map(operator.itemgetter(name), rows))
    except (KeyError, TypeError, IndexError):
        for at in range(len(rows)):
            _need_dict(rows, at)
        at = next(i for i, row in enumerate(rows) if name not in row)
        what = f"columns {text_of(list(rows[at]))}, while {text_of(list(names))} are needed"
        raise UnfitError(at, what) from None


def _settled(name: object, column: Sequence[Any]) -> pa.DataType:
    """Return ``settle(column)``; an UnfitError has the index of the first row that does not fit."""
    if not isinstance(name, str):
        raise UnfitError(0, f"a column called {text_of(name, repr)}, and names are text")
    try:
        return settle(column)
    except UnfitError as unfit:
        raise UnfitError(_first(column, settle), unfit.what, unfit.try_) from None


def _first(column: Sequence[Any], fits: Callable[[Sequence[Any]], object]) -> int:
    """Return, by bisection, the index of the first row at which ``fits(rows so far)`` raises."""
    low, high = 0, len(column) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            fits(column[: middle + 1])
            low = middle + 1
        except UnfitError:
            high = middle
    return low


def settle(column: Sequence[Any]) -> pa.DataType:
    """Return the column type that fits all values; raise UnfitError if there is none."""
    kinds = frozenset(map(type, column)) - {NONE}
    found = SETTLED.get(kinds)
    if found is not None:
        return found
    if all(issubclass(kind, np.number | np.bool_) for kind in kinds):
        code = np.result_type(*(np.dtype(kind) for kind in kinds)).str[1:]
        code = "b1" if code.endswith("b1") else code
        if code not in TYPES:
            what = f"numbers of the dtype {code}, which no column has"
            raise UnfitError(0, what, "return float(...) of it, or another dtype")
        return TYPES[code]
    if len(kinds) == 1 and kinds <= {dt.datetime, dt.time}:
        return _settle_times(column, kinds)
    if kinds == {np.ndarray}:
        return _settle_arrays([value for value in column if value is not None])
    arrow = {list, tuple, dict, np.datetime64, np.timedelta64, np.str_, np.bytes_}
    if kinds <= arrow or kinds <= {int, Decimal}:
        return _settle_by_arrow(column)
    raise _unsettled(kinds)


def _unsettled(kinds: Set[type]) -> UnfitError:
    """Return the error for Python types that cannot be in a column, or not in the same column."""
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    if len(kinds) > 1:
        what = f"values of the types {names} in one column"
        return UnfitError(0, what, "return one type a column")
    what = f"values of the type {names}, which no column has"
    return UnfitError(
        0, what, "return it as a number, text, bytes, date, time, list, dict or array"
    )


def _settle_times(column: Sequence[Any], kinds: Set[type]) -> pa.DataType:
    """Return the type of times: microseconds, in the zone of the first value if they have zones."""
    zoned = {value.tzinfo is not None for value in column if value is not None}
    if len(zoned) > 1:
        raise UnfitError(0, "times with and without a time zone in one column")
    if True not in zoned:
        return pa.timestamp("us") if kinds == {dt.datetime} else pa.time64("us")
    if kinds == {dt.time}:
        what = "times of day with a time zone, which no column has"
        raise UnfitError(0, what, "return a datetime, or .replace(tzinfo=None) of the time")
    return _settle_by_arrow(column)


def _settle_by_arrow(column: Sequence[Any]) -> pa.DataType:
    try:
        return roomy(pa.array(column).type)
    except MemoryError:
        raise
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UnfitError(0, f"values without a common type: {error}") from None


def roomy(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with the maximum precision if it is decimal, so that later values fit.

    The number of digits after the decimal point stays.
    """
    if pa.types.is_decimal(kind):
        narrow = kind.bit_width <= pa.decimal128(38).bit_width
        return pa.decimal128(38, kind.scale) if narrow else pa.decimal256(76, kind.scale)
    if pa.types.is_list(kind):
        return pa.list_(roomy(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, roomy(field.type)) for field in kind])
    return kind


def _settle_arrays(arrays: list[np.ndarray]) -> pa.DataType:
    shapes, kinds = {a.shape for a in arrays}, {a.dtype for a in arrays}
    kind = next(iter(kinds))
    if len(kinds) > 1 or kind.kind not in "biuf":
        raise UnfitError(0, f"arrays of {', '.join(sorted(map(str, kinds)))} in one column")
    code = "b1" if kind.kind == "b" else kind.str[1:]
    if code not in TYPES:
        raise UnfitError(0, f"arrays of {kind}, which no column has", "return .astype('float32')")
    if len(shapes) == 1 and (shape := next(iter(shapes))):
        return tensor(code, shape)
    axes = {len(shape) for shape in shapes}
    if len(axes) > 1 or axes == {0}:
        counts = " and ".join(map(str, sorted(axes)))
        raise UnfitError(0, f"arrays of different shapes, of {counts} axes, in one column")
    return pa.list_(TYPES[code]) if axes == {1} else OpenTensor(TYPES[code], (None,) * axes.pop())


def to_values(
    column: Sequence[Any], kind: pa.DataType, name: str, present: frozenset[type]
) -> Values:
    """Return a column of ``kind`` from Python values of the types ``present``.

    Raise UnfitError, which names the first value that does not fit.
    """
    code, shape = code_of(kind), shape_of(kind)
    if shape:
        return _tensors(column, code, shape, name)
    if isinstance(kind, OpenTensor):
        return column_of([_open_tensor(v, i, kind, name) for i, v in enumerate(column)], kind)
    if code == "arrow":
        return _by_arrow(column, kind, name)
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
        return np.fromiter(column, dtype=code, count=len(column))
    except OverflowError:
        info = np.iinfo(code)
        at = next(i for i, v in enumerate(column) if not info.min <= v <= info.max)
        what = f"{column[at]} for column {name!r}, which {kind} cannot hold"
        raise UnfitError(at, what, "declare schema={...} with a wider type") from None


def _coerced(value: Any, at: int, code: str, kind: pa.DataType, name: str) -> Any:
    """Return one value as a Python value for a column of ``code``; raise UnfitError if it is unfit.

    Bools are not accepted as numbers, nor numbers as bools.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if code[0] in "iu" and type(plain) is float and plain.is_integer():
        return int(plain)
    if type(plain) in TAKEN[code[0]]:
        return plain
    what = f"{text_of(value, repr)} for column {name!r}, which the first rows settled as {kind}"
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
            what = f"{what}, which the first rows settled as {code}{list(shape)}"
            raise UnfitError(i, what, varying(name, code, array.ndim))
        out[i] = array
    return Vec(out, None if valid.all() else valid)


def varying(name: str, code: str, axes: int) -> str:
    """Return the advice for a column whose arrays differ in shape from the first ones."""
    axis = ",".join("?" * max(1, axes))
    return (
        f"schema={{{name!r}: '{code}[{axis}]'}} for any shape; padded_batch pads lists of one axis"
    )


def _open_tensor(value: Any, at: int, kind: OpenTensor, name: str) -> np.ndarray | None:
    """Return one value as an array of ``kind``; None is null."""
    if value is None:
        return None
    array = np.asarray(value)
    if not kind.covers(array.shape) or not np.can_cast(
        array.dtype, code_of(kind.value_type), "same_kind"
    ):
        what = (
            f"an array of {array.dtype}{list(array.shape)} for {name!r}, which holds {short(kind)}"
        )
        raise UnfitError(at, what, "declare schema={...}, or convert in the function")
    return array


def _by_arrow(column: Sequence[Any], kind: pa.DataType, name: str) -> Values:
    try:
        return from_arrow(_array(column, kind))
    except MemoryError:  # Arrow's is a subclass of ArrowException, too
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        at = _first_unfit(column, kind)
    value = text_of(column[at], repr)
    what = f"{value} for column {name!r}, which the first rows settled as {short(kind)}"
    raise UnfitError(at, what, "declare schema={...}, or convert in the function")


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of ``kind``; times must all have a zone or none, as ``kind`` does."""
    if len(column) <= FEW and kind in TEXTS:
        return texts(column, kind)
    dated = pa.types.is_date(kind)
    present = frozenset(map(type, column)) - {NONE}
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return _spans(column, kind, present)
    if not dated and not pa.types.is_timestamp(kind):
        return pa.array(column, type=kind)
    if present <= {np.datetime64}:
        return pa.array(column, type=kind)
    zoned = not dated and kind.tz is not None
    if not present <= ({dt.date} if dated else {dt.datetime}):
        raise TypeError("no conversion between dates, times and numbers")
    if any((getattr(v, "tzinfo", None) is not None) != zoned for v in column if v is not None):
        raise TypeError("times either have a time zone or not")
    return pa.array(column, pa.date32() if dated else pa.timestamp("us", kind.tz)).cast(kind)


def _spans(column: Sequence[Any], kind: pa.DataType, present: frozenset[type]) -> pa.Array:
    """Return times of day or durations of ``kind``; numbers and time zones are not converted."""
    timed = pa.types.is_time(kind)
    if not present <= ({dt.time} if timed else {dt.timedelta, np.timedelta64}):
        raise TypeError("no conversion between times, durations and numbers")
    if timed and any(value.tzinfo is not None for value in column if value is not None):
        raise TypeError("times of day have no time zone")
    return pa.array(column, type=kind)


def _first_unfit(column: Sequence[Any], kind: pa.DataType) -> int:
    for i, value in enumerate(column):
        try:
            _array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return i
    return 0
