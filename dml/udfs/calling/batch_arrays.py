"""Blocks become the batches that a training loop receives: dicts of NumPy arrays.

Numbers and booleans keep their dtype, null floats become NaN, fixed-shape tensors are stacked, and
timestamps become datetime64 with NaT. Lists of numbers become padded matrices, or values with
offsets, if ``padded_batch`` or ``ragged_batch`` marked them. All other columns become object
arrays. Arrays belong to the caller: they are writable, and dml does not read them again. All NaNs
have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.open_tensors import OpenTensor, arrays_in, padded_in, stacked_in
from dml.data import buffer_ownership
from dml.data.block import Block, Values
from dml.data.list_marks import Mark, Padded, lengths_of
from dml.data.object_values import delivered_bytes
from dml.data.schema import code_of, shape_of, short
from dml.errors import NullValueError
from dml.expr.batch_run import ScatteredBatch
from dml.expr.user_call import blamed
from dml.kernels.vec import Vec

# Batches may be slices of an array of up to this many bytes, if all its slices are delivered: two
# atoms of 65,536 numbers of 8 bytes. Batches of larger arrays are copied, at a low cost.
SHARED_BYTES = 1 << 20
# Batches of larger arrays, up to this many bytes, are slices of copies of that size at most.
RUN_BYTES = 1 << 21


Own: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Returns the elements of an array in memory that nothing else uses, such as a copy."""


class BatchConversion(Protocol):
    """Converts a block to a batch; ``own`` copies arrays whose memory others may use."""

    def __call__(self, block: Block, *, own: Own = np.ndarray.copy) -> dict[str, np.ndarray]:
        """Return the columns of ``block`` as arrays, by name."""


def arrays_of(
    block: Block, nulls: Literal["raise", "keep"] = "raise", *, own: Own = np.ndarray.copy
) -> dict[str, np.ndarray]:
    """Return the columns of ``block`` as arrays (n, *element shape), by name.

    Raise NullValueError for a null integer or boolean; with ``nulls="keep"`` such a column becomes
    an object array that holds None. ``own`` copies an array whose memory others may use.
    """
    out: dict[str, np.ndarray] = {}
    for name, values in zip(block.schema, block.columns, strict=True):
        if isinstance(block.schema[name], Mark):
            out.update(_list_arrays(values, block, name))
            continue
        array = _array(values, block, name, nulls)
        out[name] = array if _owned(array) else own(array)
    return out if len({*map(id, out.values())}) == len(out) else _apart(out)


def own_arrays_of(block: Block, made: BatchConversion) -> dict[str, np.ndarray]:
    """Return ``made(block)`` for rows that are delivered once, with few copies.

    Arrays in memory that only this run reads (see ``buffer_ownership``) are not copied. A consumer
    that keeps such an array keeps only the pages that were written to.
    """
    found = dict[int, np.ndarray]()
    for values in block.columns:
        if isinstance(values, Vec) and values.valid is None and values.values.base is not None:
            handed = buffer_ownership.handed(values.values)
            if handed is not None:
                found[id(values.values)] = handed
    if not found or buffer_ownership.overlapping(list(found.values())):
        return made(block)
    return made(block, own=partial(_handed, found))


def _handed(found: Mapping[int, np.ndarray], array: np.ndarray) -> np.ndarray:
    """Return the entry of ``found`` for ``id(array)``, else a copy of ``array``."""
    handed = found.get(id(array))
    return array.copy() if handed is None else handed


def batch_of(block: Block, *, own: Own = np.ndarray.copy) -> dict[str, np.ndarray]:
    """Return ``arrays_of(block)`` for a ``finished`` block, taking a microsecond per column."""
    out: dict[str, np.ndarray] = {}
    for name, values in zip(block.schema, block.columns, strict=True):
        if isinstance(values, Vec) and values.valid is None:
            array = values.values
        elif isinstance(block.schema[name], Mark):
            out.update(_list_arrays(values, block, name))
            continue
        else:
            array = _array(values, block, name, "raise")
        out[name] = own(array) if array.base is not None or not _owned(array) else array
    return out if len({*map(id, out.values())}) == len(out) else _apart(out)


def separable(block: Block, *, once: bool = False) -> bool:
    """Return True if batches of a ``finished`` block may be slices of its arrays.

    This requires that nothing else uses the arrays, that no value is null, and that a consumer that
    keeps one batch keeps little memory of other batches. Rows that are delivered ``once`` may also
    be in memory that only this run reads.
    """
    seen, mapped = set[int](), list[np.ndarray]()
    for values in block.columns:
        if not isinstance(values, Vec) or values.valid is not None:
            return False
        array = values.values
        if once and buffer_ownership.handed(array) is not None:
            mapped.append(array)
        elif not _owned(array) or array.nbytes > RUN_BYTES:
            return False
        seen.add(id(array))
    return len(seen) == len(block.columns) > 0 and not buffer_ownership.overlapping(mapped)


def batches_of(block: Block, n: int) -> list[dict[str, np.ndarray]]:
    """Return the rows of a ``separable`` block as batches of ``n`` rows, which do not overlap."""
    names = tuple(block.schema)
    parts = [_parts(values.values, n) for values in block.columns if isinstance(values, Vec)]
    return [dict(zip(names, arrays, strict=True)) for arrays in zip(*parts, strict=True)]


def _parts(array: np.ndarray, n: int) -> list[np.ndarray]:
    """Return consecutive batches of ``n`` rows of ``array``.

    Batches share memory only if it is at most ``SHARED_BYTES``, or if only this run reads it.
    """
    batches = array.reshape(len(array) // n, n, *array.shape[1:])
    if array.nbytes <= SHARED_BYTES and _owned(array):
        return list(batches)
    mapped = None if _owned(array) else buffer_ownership.handed(array)
    if mapped is not None:
        return list(mapped.reshape(batches.shape))
    each = max(1, SHARED_BYTES // max(1, batches[:1].nbytes))
    pieces = (batches[i : i + each].copy() for i in range(0, len(batches), each))
    return [batch for piece in pieces for batch in piece]


def finished(block: Block) -> Block:
    """Return the block with floats in delivered form: nulls as NaN, all NaNs with equal bits."""
    columns = tuple(
        Vec(_floats(c)) if isinstance(c, Vec) and c.values.dtype.kind == "f" else c
        for c in block.columns
    )
    return Block(block.schema, columns, block.ids)


def plain(block: Block) -> bool:
    """Return True if floats are delivered unchanged: no NaN, and no lists or structs of floats."""
    columns = zip(block.columns, block.schema.values(), strict=True)
    if any(_has_floats(kind) for values, kind in columns if not isinstance(values, Vec)):
        return False
    floats = (c for c in block.columns if isinstance(c, Vec) and c.values.dtype.kind == "f")
    return not any(np.isnan(c.values).any() for c in floats)


def _has_floats(kind: pa.DataType) -> bool:
    """Return True if values of this type may contain floats."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return bool(pa.types.is_floating(kind)) or any(map(_has_floats, parts))


def _apart(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return ``arrays`` with separate copies for columns that share one array."""
    first = {id(array): name for name, array in reversed(arrays.items())}
    return {n: a if first[id(a)] == n else a.copy() for n, a in arrays.items()}


def _owned(array: np.ndarray) -> bool:
    """Return True if no other object refers to the memory of ``array``."""
    return array.base is None and bool(array.flags.owndata and array.flags.writeable)


def _array(values: Values, block: Block, name: str, nulls: str) -> np.ndarray:
    if not isinstance(values, Vec):
        return _object_array(values)
    array = values.values
    if array.dtype.kind == "f":
        return _floats(values)
    if values.valid is None or values.valid.all():
        return array
    if nulls == "raise":
        row = int(np.argmin(values.valid))
        error = null_error(name, block.schema[name], f"it is null in row {row} of the batch")
        raise blamed(error, block.ids, row)
    out = np.empty(len(array), dtype=object)
    for i in np.flatnonzero(values.valid):
        out[i] = array[i].copy() if array.ndim > 1 else array[i].item()
    return out


def null_error(name: str, kind: pa.DataType, why: str) -> NullValueError:
    """Return the error for a null that an array of ``kind`` cannot represent."""
    fill = "False" if pa.types.is_boolean(kind) else "0"
    way = f".fill_null({{{name!r}: {fill}}}), or .cast to a float, where null shows as NaN"
    return NullValueError(
        f"column {name!r} has a null, which {short(kind)} arrays cannot hold",
        why=why,
        try_=f".drop_nulls({name!r}) before"
        if shape_of(kind) or isinstance(kind, OpenTensor)
        else way,
    )


def _floats(values: Vec) -> np.ndarray:
    """Return the floats with nulls as NaN, and the same bits for every NaN."""
    array = values.values
    if values.valid is None and buffer_ownership.finished(array):
        return array
    odd = np.isnan(array)
    if values.valid is not None:
        absent = ~values.valid
        odd |= absent.reshape(-1, *(1,) * (array.ndim - 1))
    if not odd.any():
        return array
    if not _owned(array):
        array = array.copy()
    array[odd] = np.nan
    return array


def _one_nan(array: np.ndarray) -> np.ndarray:
    """Return ``array`` with the same bits for every NaN."""
    return _floats(Vec(array)) if array.dtype.kind == "f" else array


def _list_arrays(lists: pa.Array, block: Block, name: str) -> dict[str, np.ndarray]:
    """Return a marked column of lists as arrays; raise NullValueError for nulls in them."""
    mark, code = block.schema[name], code_of(lists.type.value_type)
    absent = lists.is_null().to_numpy(zero_copy_only=False)
    if isinstance(lists.type, OpenTensor):
        return {name: _padded_tensors(lists, absent, block, name)}
    lengths = lengths_of(lists)
    values = _flat(lists, code)
    gone = absent if code[0] != "f" or not isinstance(mark, Padded) else absent & False
    if values is None or gone.any():
        row = _first_null(lists, gone, lengths)
        raise blamed(_list_error(name, block.schema[name], row), block.ids, row)
    if not isinstance(mark, Padded):
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return {name: values if _owned(values) else values.copy(), f"{name}_offsets": offsets}
    width = mark.params["width"]
    width = int(lengths.max(initial=0)) if width is None else width
    array = np.full((len(lists), width), mark.params["fill"], dtype=code)
    array[np.arange(width, dtype=np.int32) < lengths.astype(np.int32)[:, None]] = values
    return {name: _floats(Vec(array, ~absent)) if code[0] == "f" else array}


def _padded_tensors(
    tensors: pa.ExtensionArray, absent: np.ndarray, block: Block, name: str
) -> np.ndarray:
    """Return tensors as one array, where null floats are NaN; raise NullValueError for others."""
    floats, params = pa.types.is_floating(tensors.type.value_type), block.schema[name].params
    if absent.any() and not floats:
        row = int(np.argmax(absent))
        error = null_error(name, tensors.type, f"it is null in row {row} of the batch")
        raise blamed(error, block.ids, row)
    array = padded_in(tensors, params["fill"], params["width"])
    return _floats(Vec(array, ~absent)) if floats else array


class _ListRows(NamedTuple):
    """Lists of numbers: row i has ``lengths[i]`` elements of ``flat``, from ``starts[i]`` on."""

    flat: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def gathered_arrays(
    batch: ScatteredBatch, made: Callable[[Block], dict[str, np.ndarray]]
) -> tuple[dict[str, np.ndarray], int]:
    """Return the columns of ``batch`` as arrays, as ``made`` of its block does, and their bytes.

    Lists that are padded are copied once, from the blocks where they are into the padded array.
    """
    schema = batch.parts[0][0].schema
    lists = {name: rows for name in schema if (rows := _list_rows(batch, name)) is not None}
    others = [name for name in schema if name not in lists]
    block = (batch.select(others) if lists else batch).block() if others else None
    arrays, nbytes = ({}, 0) if block is None else (made(block), delivered_bytes(block))
    for name, rows in lists.items():
        arrays[name] = _gathered_lists(rows, schema[name])
        nbytes += arrays[name].nbytes
    places = {name: place for place, name in enumerate(schema)}
    names = sorted(arrays, key=lambda n: places.get(n, places.get(n.removesuffix("_offsets"), 0)))
    return {name: arrays[name] for name in names}, nbytes


def _gathered_lists(rows: Sequence[_ListRows], mark: Padded) -> np.ndarray:
    """Return lists as a padded array."""
    width = mark.params["width"]
    if width is None:
        width = max(int(part.lengths.max(initial=0)) for part in rows)
    return _one_nan(_padded_array(rows, width, mark.params["fill"]))


def _list_rows(batch: ScatteredBatch, name: str) -> list[_ListRows] | None:
    """Return where the lists of column ``name`` are; None unless they are numbers without nulls.

    Booleans, which are stored as bits, are not found either, nor columns that are not padded.
    """
    found = list[_ListRows]()
    for block, index in batch.parts:
        mark, lists = block.schema[name], block[name]
        if isinstance(lists, Vec) or not isinstance(mark, Padded):
            return None
        if not pa.types.is_list(lists.type) or lists.null_count or lists.values.null_count:
            return None
        if pa.types.is_boolean(lists.type.value_type):
            return None
        offsets = lists.offsets.to_numpy()
        starts, ends = offsets[:-1], offsets[1:]
        if index is not None:
            starts, ends = starts[index], ends[index]
        found.append(_ListRows(lists.values.to_numpy(), starts, ends - starts))
    return found


def _padded_array(rows: Sequence[_ListRows], width: int, fill: float) -> np.ndarray:
    """Return lists as an array (n, ``width``), padded with ``fill``."""
    parts = [_windows(part.flat, part.starts, width) for part in rows]
    lengths = [part.lengths for part in rows]
    out = parts[0] if len(parts) == 1 else np.concatenate(parts)
    each = lengths[0] if len(parts) == 1 else np.concatenate(lengths)
    least = int(each.min(initial=width))
    if least < width:
        places = np.arange(least, width, dtype=each.dtype)
        np.copyto(out[:, least:], fill, where=places >= each[:, None])
    return out


def _windows(flat: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """Return (n, ``width``) a copy of ``width`` elements of ``flat`` from each of ``starts`` on.

    Elements beyond the end are 0. Rows of one width are copied much faster than single elements;
    the caller overwrites what is behind a shorter list (benchmarks/results/text.md).
    """
    last = len(flat) - width
    late = starts > last
    if not late.any():
        whole: np.ndarray = _all_windows(flat, width)[starts]
        return whole
    out = np.empty((len(starts), width), flat.dtype)
    out[~late] = _all_windows(flat, width)[starts[~late]]
    end = flat[max(0, last) :]
    end = np.concatenate([end, np.zeros(width, flat.dtype)])
    out[late] = _all_windows(end, width)[starts[late] - max(0, last)]
    return out


def _all_windows(flat: np.ndarray, width: int) -> np.ndarray:
    """Return a view (len - width + 1, width) of every run of ``width`` elements of ``flat``."""
    shape, step = (max(0, len(flat) - width + 1), width), flat.itemsize
    return np.ndarray(shape, flat.dtype, np.ascontiguousarray(flat), strides=(step, step))


def _flat(lists: pa.Array, code: str) -> np.ndarray | None:
    """Return the elements of all lists; None if one is a null that no array can represent."""
    flat = lists.flatten()
    if flat.null_count and code[0] != "f":
        return None
    values = flat.to_numpy(zero_copy_only=False)
    return _one_nan(values)


def _first_null(lists: pa.Array, gone: np.ndarray, lengths: np.ndarray) -> int:
    """Return the index of the first list that is marked in ``gone``, or that contains a null."""
    inside = lists.flatten().is_null().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lists)), lengths)[inside]
    return int(np.concatenate([rows, np.flatnonzero(gone)]).min())


def _list_error(name: str, mark: pa.DataType, row: int) -> NullValueError:
    return NullValueError(
        f"column {name!r} has a null, which {mark} arrays cannot hold",
        why=f"it is, or is in, the list in row {row} of the batch",
        try_=f".filter(~col({name!r}).is_null()), or lists without nulls",
    )


def _object_array(values: pa.Array) -> np.ndarray:
    kind = values.type
    if isinstance(kind, OpenTensor):
        return _tensors(values)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    if pa.types.is_float16(kind):
        return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    out = np.empty(len(values), dtype=object)
    code = code_of(kind.value_type) if is_list(kind) else "arrow"
    if code != "arrow" and not (flat := values.flatten()).null_count:
        return _split(out, values, np.asarray(flat.to_numpy(zero_copy_only=False), dtype=code))
    for i, value in enumerate(values.to_pylist()):
        numbers = code != "arrow" and value is not None and None not in value
        out[i] = _one_nan(np.array(value, dtype=code)) if numbers else value
    return out


def _tensors(values: pa.ExtensionArray) -> np.ndarray:
    """Return tensors as an object array, or as one array if their type asks for it and they fit."""
    whole = stacked_in(values) if values.type.stacked else None
    if whole is not None:
        return _one_nan(whole)
    out = np.empty(len(values), dtype=object)
    for i, array in enumerate(arrays_in(values)):
        if array is not None:
            out[i] = _one_nan(array.copy())
    return out


def _split(out: np.ndarray, lists: pa.Array, flat: np.ndarray) -> np.ndarray:
    """Fill ``out`` with the numbers of each list, copied from ``flat``; None for a null list.

    No Python numbers are created, which would take five times the memory.
    """
    flat = _one_nan(flat)
    ends = np.cumsum(lengths_of(lists))
    starts = np.concatenate([np.zeros(1, ends.dtype), ends[:-1]])
    there = lists.is_valid().to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(there):
        out[i] = flat[starts[i] : ends[i]].copy()
    return out
