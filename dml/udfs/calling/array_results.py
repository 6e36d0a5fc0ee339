"""Results of batch functions (dicts of arrays, Arrow tables, data frames) become blocks."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor, arrays_in
from dml.data.block import Block, Values, column_bytes, cut, from_arrow, length
from dml.data.buffer_ownership import owned
from dml.data.escape_analysis import ReferenceCounts
from dml.data.layouts import usual_column
from dml.data.list_marks import Padded, plain
from dml.data.row_slicing import LARGE_BYTES, LARGE_PART_BYTES
from dml.data.schema import TYPES, Schema, code_of, shape_of, short, tensor
from dml.errors import DmlError, UDFError, text_of, worded
from dml.expr.flow import At
from dml.expr.user_call import caught, raised
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.udfs.calling.batch_arrays import arrays_of
from dml.udfs.calling.error_policy import Skipping
from dml.udfs.calling.python_rows import UnfitError, roomy, settle, to_values, varying

# Bytes of one row id that is stored explicitly.
ID_BYTES = 16


def views(block: Block) -> dict[str, np.ndarray]:
    """Return the columns of ``block`` as arrays that are flagged read-only.

    The arrays share no memory with other blocks, as a function or a library may bypass the flag.
    """
    out = {name: array.view() for name, array in arrays_of(block, "keep", own=owned).items()}
    for array in out.values():
        array.flags.writeable = False
    return out


def called(
    node: Skipping, given: dict[str, np.ndarray] | pa.Table, ids: RowIds, key: int, at: At
) -> Block | None:
    """Call the function of ``node`` on ``given``, a batch of rows with ``ids``; return its result.

    A result with as many rows keeps ``ids``; otherwise ids are derived from the first row's id,
    ``key`` and the row's index. Return None if the function raises and ``node`` skips errors. Raise
    UDFError if it raises otherwise, or returns neither a dict of arrays of one length nor an Arrow
    table or data frame.
    """
    handed = ReferenceCounts(given).begun()
    out = _tried(node, lambda: node.fn.call(given), ids, at)
    if not out:
        return None
    safe = handed.safe(out)  # before any other reference to it exists
    return as_block(node, out[0], ids, safe, key)


def all_called(
    node: Skipping, given: dict[str, np.ndarray] | pa.Table, ids: RowIds, key: int, at: At
) -> Iterator[Block]:
    """Yield the result of ``called``, in several blocks if it is large and has a new row count.

    If the function returns an iterator, each of its batches gives at least one block. The number of
    rows is then unknown until the last batch, so all ids are derived from the first row's id,
    ``key`` and the row's index. If the function raises, the batches before the error are yielded.
    """
    handed = ReferenceCounts(given).begun()
    out = _tried(node, lambda: node.fn.call(given), ids, at)
    if out and not isinstance(out[0], Iterator):
        safe = handed.safe(out)
        made = _to_columns(node, out.pop(), safe)
        handed.clear()
        yield from _numbered(made, ids, key) if made.rows != len(ids) else (Block(*made, ids),)
        return
    start, batches = 0, out[0] if out else iter(())
    while out := _tried(node, lambda: next(batches, _END), ids, at):
        if out[0] is _END:
            return
        safe = handed.safe(out)
        made = _to_columns(node, out.pop(), safe)
        yield from _numbered(made, ids, key, start)
        start += made.rows


_END = object()


def _tried(node: Skipping, work: Callable[[], Any], ids: RowIds, at: At) -> list[Any]:
    """Return ``[work()]``. On an error, return [] if ``node`` skips errors, else raise UDFError."""
    out: list[Any] = []
    error = caught(lambda: out.append(work()))
    if error is not None and not node.skips:
        raise raised(error, node.fn, ids, 0, "batch").located(node.label())
    if error is not None:
        node.lose(error, ids, 0, at, rows=len(ids))
    return out


class ColumnValues(NamedTuple):
    """Rows without ids: a schema, and the ``values`` of each column."""

    schema: Schema
    values: tuple[Values, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return length(self.values[0])


def _numbered(made: ColumnValues, ids: RowIds, key: int, number: int = 0) -> Iterator[Block]:
    """Yield the rows ``made`` as blocks with ids derived from the first of ``ids`` and ``key``.

    Large results are yielded in parts. The first row has the index ``number``.
    """
    rows, nbytes = made.rows, ID_BYTES * made.rows + sum(map(column_bytes, made.values))
    step = rows if nbytes <= LARGE_BYTES else max(1, rows * LARGE_PART_BYTES // nbytes)
    for start in range(0, rows, max(1, step)):
        stop = min(start + step, rows)
        values = tuple(cut(each, start, stop) for each in made.values)
        yield Block(made.schema, values, _children(ids, key, number + start, stop - start))


def _children(ids: RowIds, key: int, start: int, rows: int) -> RowIds:
    """Return ids of ``rows`` rows, numbered from ``start``, derived from the first of ``ids``."""
    first = ids.take(np.zeros(rows, dtype=np.int64))
    return first.derive(key, np.arange(start, start + rows, dtype=np.uint64))


def as_block(node: Skipping, made: Any, ids: RowIds, given: Container[int], key: int) -> Block:
    """Return a function's result ``made`` as a block.

    ``given`` has ids and addresses of arrays and buffers that the function cannot write to.
    """
    columns = _to_columns(node, made, given)
    same = columns.rows == len(ids)
    return Block(*columns, ids if same else _children(ids, key, 0, columns.rows))


def _to_columns(node: Skipping, made: Any, given: Container[int]) -> ColumnValues:
    """Return a function's result ``made`` as a schema and columns."""
    from dml.udfs.calling.data_frames import unframed  # noqa: PLC0415

    try:
        made = unframed(made)
    except MemoryError:
        raise
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise unfit(node, f"a data frame that Arrow cannot hold: {error}") from None
    if isinstance(made, pa.Table | pa.RecordBatch):
        columns = _arrow_columns(node, made, given)
    else:
        columns = _read(node, made, given)
    schema = Schema((name, kind) for name, (kind, _) in columns.items())
    return ColumnValues(schema, tuple(values for _, values in columns.values()))


def _read(
    node: Skipping, made: Any, given: Container[int]
) -> dict[str, tuple[pa.DataType, Values]]:
    """Return the columns of a returned dict, whose methods may raise any exception."""
    columns: dict[str, tuple[pa.DataType, Values]] = {}
    error = caught(lambda: columns.update(_columns(node, made, given)))
    if isinstance(error, DmlError | MemoryError):
        raise error
    if error is not None:
        raise unfit(node, f"what cannot be read: {worded(error)}") from error
    return columns


def fitted(node: Skipping, made: Block, at: At, *, padded: bool = False) -> Block:
    """Return ``made`` with the declared columns and types, or those of the first batch.

    ``made`` may have its columns in another order, and numbers of another type that the wanted type
    can represent. Results of ``padded`` batches may differ in width.
    """
    wanted = node.schema
    if not wanted.known:
        kinds = ((name, _as_padded(kind)) for name, kind in made.schema.items())
        settled = Schema(kinds) if padded else made.schema
        wanted = at.schemas.setdefault(node.digest.hex(), settled)
    if made.schema == wanted:
        return made
    if set(made.schema) != set(wanted):
        raise unfit(node, f"columns {list(made.schema)}, while {list(wanted)} are needed")
    columns = tuple(
        _cast(node, name, made[name], made.schema[name], kind) for name, kind in wanted.items()
    )
    return Block(wanted, columns, made.ids)


def is_padded(schema: Schema) -> bool:
    """Return True if the width of a column's array, its longest list, differs between batches.

    Such columns are padded lists without a fixed width, and results that were computed from them.
    """
    return any(
        (isinstance(kind, Padded) and kind.params["width"] is None)
        or (isinstance(kind, OpenTensor) and kind.stacked)
        for kind in schema.values()
    )


def _as_padded(kind: pa.DataType) -> pa.DataType:
    """Return ``kind``, a result's type, with axes of any length, for results of padded batches."""
    shape = shape_of(kind)
    if len(shape) > 1:
        return OpenTensor(kind.value_type, (None,) * len(shape), stacked=True)
    return Padded(pa.list_(kind.value_type), fill=0, width=None) if shape else kind


def unfit(node: Skipping, what: str, try_: str = "") -> UDFError:
    """Return the error for a result that is not a batch, or not of the form of earlier batches."""
    found = UDFError(
        f"{node.fn.name} returned {what}",
        why="batches of one stream have the same columns and types, and arrays of one length",
        try_=try_
        or "return a dict of arrays of the same names and types every time, or say schema=",
        operator=node.fn.name,
    )
    return found.located(node.label())


def _cast(
    node: Skipping, name: str, values: Values, kind: pa.DataType, wanted: pa.DataType
) -> Values:
    kind, wanted = plain(kind), plain(wanted)
    if kind == wanted:
        return values
    if isinstance(wanted, OpenTensor):
        return _opened(node, name, values, wanted)
    if pa.types.is_null(kind):
        return to_values([None] * length(values), wanted, name, frozenset({type(None)}))
    code = code_of(wanted)
    if isinstance(values, Vec) and code != "arrow" and shape_of(kind) == shape_of(wanted):
        recoded = _recoded(values, code)
        if recoded is not None:
            return recoded
    if isinstance(values, Vec) and pa.types.is_list(wanted) and len(shape_of(kind)) == 1:
        listed = _lists(values, wanted)
        if listed is not None:
            return to_values(_rows(listed), wanted, name, frozenset())
    what = f"column {name!r} of {short(kind)}, while {short(wanted)} is needed"
    axes = len(kind.shape if isinstance(kind, OpenTensor) else shape_of(kind))
    raise unfit(node, what, varying(name, code, axes) if axes and shape_of(wanted) else "")


def _recoded(values: Vec, code: str) -> Vec | None:
    """Return the numbers as type ``code``; None if it cannot represent some number exactly."""
    with np.errstate(all="ignore"):
        cast = values.values.astype(code)
        present = slice(None) if values.valid is None else values.valid
        return Vec(cast, values.valid) if _same(cast[present], values.values[present]) else None


def _opened(node: Skipping, name: str, values: Values, wanted: OpenTensor) -> Values:
    """Return tensors, whose shapes may differ, as a column of the type ``wanted``."""
    try:
        if isinstance(values, Vec):
            rows: list[Any] = _rows(values)
        else:
            rows = arrays_in(values) if isinstance(values.type, OpenTensor) else values.to_pylist()
        return to_values(rows, wanted, name, frozenset())
    except UnfitError as error:
        raise unfit(node, error.what, error.try_) from None


def _lists(values: Vec, wanted: pa.DataType) -> Vec | None:
    """Return the rows of a matrix with the element type of the lists ``wanted``, or None.

    Return None if that type cannot represent some number exactly.
    """
    code = code_of(wanted.value_type)
    if not values.values.shape[1]:
        return values
    return None if code == "arrow" else _recoded(values, code)


def _same(cast: np.ndarray, values: np.ndarray) -> bool:
    """Return True if both have exactly the same numbers; one may be floats, the other integers."""
    if not np.array_equal(cast, values, equal_nan=cast.dtype.kind == "f"):
        return False
    floats, whole = (cast, values) if cast.dtype.kind == "f" else (values, cast)
    if floats.dtype.kind != "f" or whole.dtype.kind not in "iu":
        return True
    above = 2.0 ** (8 * whole.itemsize - (whole.dtype.kind == "i"))
    return bool((floats < above).all()) and np.array_equal(floats.astype(whole.dtype), whole)


def _rows(values: Vec) -> list[np.ndarray | None]:
    rows = list(values.values)
    if values.valid is None:
        return rows
    return [row if valid else None for row, valid in zip(rows, values.valid, strict=True)]


def _arrow_columns(
    node: Skipping, made: pa.Table | pa.RecordBatch, given: Container[int]
) -> dict[str, tuple[pa.DataType, Values]]:
    names = made.schema.names
    if not names or len(set(names)) < len(names):
        raise unfit(node, f"an Arrow table with the columns {names}")
    arrays = {
        name: usual_column(_whole(c, given), name) for name, c in zip(names, made, strict=True)
    }
    return {name: (array.type, from_arrow(array)) for name, array in arrays.items()}


def _whole(column: pa.Array | pa.ChunkedArray, given: Container[int]) -> pa.Array:
    """Return a column as one array that the function can no longer write to.

    Arrow wraps NumPy arrays uncopied, and the function may overwrite them for the next batch.
    """
    chunks = [column] if isinstance(column, pa.Array) else column.chunks
    if not chunks:
        return pa.array([], column.type)
    buffers = chunks[0].buffers()
    if len(chunks) == 1 and all(each is None or each.address in given for each in buffers):
        return chunks[0]
    return pa.concat_arrays(chunks)  # which copies one array, too


def _columns(
    node: Skipping, made: Any, given: Container[int]
) -> dict[str, tuple[pa.DataType, Values]]:
    if not isinstance(made, Mapping) or not made:
        raise unfit(node, f"{type(made).__name__}, not a dict of arrays")
    arrays: dict[str, np.ndarray] = {}
    for name, values in made.items():
        error = caught(lambda n, v: arrays.update({n: _own(v, given)}), str(name), values)
        if isinstance(error, MemoryError):
            raise error
        if error is not None:
            raise unfit(
                node, f"column {text_of(name, repr)}, which is no array: {worded(error)}"
            ) from error
    lone = [name for name, a in arrays.items() if not a.ndim]
    if lone:
        raise unfit(node, f"a single value as column {lone[0]!r}, not one for each row")
    lengths = {name: len(a) for name, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise unfit(node, f"columns of unequal lengths: {lengths}")
    return {name: _column(node, name, array) for name, array in arrays.items()}


def _column(node: Skipping, name: str, array: np.ndarray) -> tuple[pa.DataType, Values]:
    code = "b1" if array.dtype.kind == "b" else array.dtype.str[1:]
    absent = _absent(array)
    if code in TYPES:
        kind = tensor(code, array.shape[1:])
        return kind, Vec(np.asarray(array), None if absent is None else ~absent)
    if array.dtype.kind == "O" and _of_tensors(array):
        return _tensors(node, name, array.tolist())
    try:
        listed = array.dtype.kind == "O" or absent is not None  # None where masked
        made = _inferred(array.tolist()) if listed else pa.array(np.asarray(array))
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise unfit(node, f"column {name!r} of {array.dtype}: {error}") from None
    return made.type, from_arrow(made)


def _of_tensors(array: np.ndarray) -> bool:
    """Return True for object arrays whose elements are arrays of several axes, or None."""
    there = [each for each in array.reshape(-1) if each is not None]
    return bool(there) and all(isinstance(each, np.ndarray) and each.ndim > 1 for each in there)


def _tensors(node: Skipping, name: str, arrays: list[Any]) -> tuple[pa.DataType, Values]:
    """Return a column of arrays, with open shape even if all of these arrays have one shape."""
    try:
        kind = settle(arrays)
        if not isinstance(kind, OpenTensor):
            kind = OpenTensor(kind.value_type, (None,) * len(kind.shape))
        return kind, to_values(arrays, kind, name, frozenset())
    except UnfitError as error:
        raise unfit(node, f"column {name!r} with {error.what}") from None


def _own(values: Any, given: Container[int]) -> np.ndarray:
    """Return an array in native byte order that the function can no longer write to.

    Arrays in ``given`` are safe; any other may be overwritten by the function for the next batch.
    """
    array = _gathered(values)
    if id(array) in given:
        return array
    native = array.astype(array.dtype.newbyteorder("="), order="C")
    return native if native.flags.owndata else native.copy()


def _gathered(values: Any) -> np.ndarray:
    """Return ``values`` as an array; if row lengths differ, as an array of objects."""
    try:
        return np.asanyarray(values)
    except ValueError:
        return np.fromiter(values, dtype=object)


def _absent(array: np.ndarray) -> np.ndarray | None:
    """Return the mask of a masked array as (n,) bool; None if no row is masked."""
    if not isinstance(array, np.ma.MaskedArray):
        return None
    mask = np.asarray(np.ma.getmaskarray(array).any(axis=tuple(range(1, array.ndim))))
    return mask if mask.any() else None


def _inferred(values: list[Any]) -> pa.Array:
    """Return values with the type that Arrow infers; integers that only uint64 holds are uint64."""
    try:
        made = pa.array(values)
    except OverflowError:
        return pa.array(values, pa.uint64())
    kind = roomy(made.type)
    return made if made.type == kind else pa.array(values, kind)
