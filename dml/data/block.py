"""A block is rows of one schema with their ids: the input and output of operators.

Numbers and booleans are NumPy arrays with an optional validity mask (``Vec``), all other types
Arrow arrays. Between tasks a block is sent as an Arrow record batch; the two forms share memory
wherever no mask has to be packed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dml.data import buffer_ownership
from dml.data.layouts import array_bytes, usual_column, value_bytes
from dml.data.list_marks import plain
from dml.data.schema import Schema, code_of, shape_of
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec, arrow_array, elements, taken, validity

Values: TypeAlias = "Vec | pa.Array"


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Block:
    """``n`` rows: one ``Values`` per column of ``schema``, and the structural ids of the rows.

    ``rows``, if not None, are the same rows as dicts, which a function has just returned; the next
    function receives them if it only reads items of its row. A block that leaves a stage or a flow
    has none (``bare``).
    """

    schema: Schema
    columns: tuple[Values, ...]
    ids: RowIds
    rows: list[dict[str, Any]] | None = None

    def bare(self) -> Block:
        """Return the block without its rows as dicts."""
        return self if self.rows is None else Block(self.schema, self.columns, self.ids)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.ids.count

    def __getitem__(self, name: str) -> Values:
        return self.columns[self.schema.names.index(name)]

    def take(self, index: np.ndarray) -> Block:
        """Return the rows at ``index`` (n,) integers, in that order; always a copy."""
        return Block(self.schema, tuple(take(c, index) for c in self.columns), self.ids.take(index))

    def slice(self, start: int, stop: int) -> Block:
        """Return rows ``start`` to ``stop`` (exclusive), as a view."""
        if start == 0 and stop >= self.n:
            return self
        columns = [
            Vec(c[0][start:stop], None) if type(c) is Vec and c[1] is None
            else cut(c, start, stop)
            for c in self.columns
        ]  # fmt: skip
        rows = None if self.rows is None else self.rows[start:stop]
        return Block(self.schema, tuple(columns), self.ids.slice(start, stop), rows)

    def select(self, names: Sequence[str]) -> Block:
        """Return the columns ``names``, in that order, without a copy."""
        at = {name: i for i, name in enumerate(self.schema)}
        schema = Schema((name, self.schema[name]) for name in names)
        return Block(schema, tuple(self.columns[at[name]] for name in names), self.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, and of ids that are stored as arrays: what the block holds."""
        return self.ids.nbytes + self.value_bytes

    @property
    def value_bytes(self) -> int:
        """Bytes of the columns: what telemetry counts, however the rows are numbered."""
        total = 0
        for values in self.columns:  # read several times a block: avoids a call per column
            if isinstance(values, Vec) and values.valid is None:
                total += values.values.nbytes
            else:
                total += column_bytes(values)
        return total

    @property
    def weight(self) -> int:
        """Bytes of the values, but at least 8 per row; independent of how rows were computed.

        Masks and stored ids do not count, since equal rows may have them or not.
        """
        return max(8 * self.n, sum(map(_weight, self.columns))) if self.n else 0

    @property
    def additive_weight(self) -> int:
        """Bytes of the values plus 8 per row; the sum over blocks is that of the joined block."""
        return 8 * self.n + sum(map(_weight, self.columns))

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows as an Arrow record batch, without ids."""
        arrays = [
            to_arrow(c, kind) for c, kind in zip(self.columns, self.schema.values(), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.to_arrow())

    @staticmethod
    def from_arrow(batch: pa.RecordBatch, ids: RowIds, schema: Schema | None = None) -> Block:
        """Return a block over the memory of ``batch``; views are copied, dictionaries decoded.

        A caller with many batches of one ``schema`` passes it (in usual types) to save time.
        """
        names = batch.schema.names
        arrays = [
            usual_column(column, name) for name, column in zip(names, batch.columns, strict=True)
        ]
        if schema is None:
            schema = Schema(zip(names, (a.type for a in arrays), strict=True))
        pairs = zip(arrays, schema.forms, strict=True)
        return Block(schema, tuple(_over(a, code, shape) for a, (code, shape) in pairs), ids)


def concat(blocks: Sequence[Block]) -> Block:
    """Concatenate blocks of one schema, in order; a single block is returned as it is."""
    if len(blocks) == 1:
        return blocks[0]
    columns = tuple(
        join([block.columns[i] for block in blocks]) for i in range(len(blocks[0].columns))
    )
    return Block(blocks[0].schema, columns, RowIds.concat([block.ids for block in blocks]))


def neighbours(first: Block, second: Block) -> Block | None:
    """Join two blocks without a copy, or return None if their arrays are not adjacent in memory."""
    if first.schema is not second.schema and first.schema != second.schema:
        return None
    columns = list[Values]()
    for one, other in zip(first.columns, second.columns, strict=True):
        if not isinstance(one, Vec) or not isinstance(other, Vec):
            return None
        whole = buffer_ownership.joined([one.values, other.values])
        if whole is None or one.valid is not None or other.valid is not None:
            return None
        columns.append(Vec(whole))
    return Block(first.schema, tuple(columns), RowIds.concat([first.ids, second.ids]))


def joined(parts: Iterable[Block]) -> Iterator[Block]:
    """Yield all ``parts`` as one block; if computing them raises, yield those before the error.

    Operators with several implementations use this function, so that all of them yield equally many
    blocks: a task that is restarted elsewhere counts the blocks that were computed before.
    """
    made: list[Block] = []
    try:
        made.extend(parts)
    except Exception:
        if made:
            yield concat(made)
        raise
    if made:
        yield concat(made)


def take(values: Values, index: np.ndarray) -> Values:
    """Return the elements of one column at ``index``, which must be in range."""
    if not isinstance(values, Vec):
        return taken(values, index)
    valid = None if values.valid is None else values.valid.take(index, mode="clip")
    return Vec(values.values.take(index, axis=0, mode="clip"), valid)


def cut(values: Values, start: int, stop: int) -> Values:
    """Return elements ``start`` to ``stop`` (exclusive) of one column, as a view."""
    if not isinstance(values, Vec):
        return values.slice(start, stop - start)
    valid = None if values.valid is None else values.valid[start:stop]
    return Vec(values.values[start:stop], valid)


def join(parts: Sequence[Values]) -> Values:
    """Concatenate columns of the same type."""
    vecs = [part for part in parts if isinstance(part, Vec)]
    if not vecs:
        return pa.concat_arrays(list(parts))
    values = buffer_ownership.joined([v.values for v in vecs])
    if values is None:
        values = np.concatenate([v.values for v in vecs])
    if all(v.valid is None for v in vecs):
        return Vec(values, None)
    return Vec(values, np.concatenate([mask(v) for v in vecs]))


def mask(values: Vec) -> np.ndarray:
    """Return the validity as a mask (n,) bool, even if there are no nulls."""
    if values.valid is not None:
        return values.valid
    return np.ones(len(values.values), dtype=bool)


def length(values: Values) -> int:
    """Return the number of elements of one column."""
    return len(values.values) if isinstance(values, Vec) else len(values)


def column_bytes(values: Values) -> int:
    """Return the bytes of one column; of a slice, those of the sliced elements only."""
    if not isinstance(values, Vec):
        return array_bytes(values)
    return values.values.nbytes + (0 if values.valid is None else values.valid.nbytes)


def _weight(values: Values) -> int:
    return int(values.values.nbytes) if isinstance(values, Vec) else value_bytes(values)


def from_arrow(array: pa.Array) -> Values:
    """Return a column over an Arrow array's memory: a Vec for numbers, booleans and tensors."""
    return _over(array, code_of(array.type), shape_of(array.type))


def _over(array: pa.Array, code: str, shape: tuple[int, ...]) -> Values:
    if code == "arrow":
        return array
    valid = validity(array)
    if shape:
        # `.values` of a fixed-size list ignores the slice, so the offset is applied by hand
        storage = array.storage
        size = int(np.prod(shape))
        flat = storage.values.slice(storage.offset * size, len(storage) * size)
        return Vec(elements(flat, code).reshape(len(storage), *shape), valid)
    return Vec(elements(array, code), valid)


def to_arrow(values: Values, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of type ``kind`` over the memory of one column."""
    if not isinstance(values, Vec):
        return values
    shape = shape_of(kind)
    if not shape:
        return arrow_array(values.values, kind, values.valid)
    flat = arrow_array(np.ascontiguousarray(values.values).reshape(-1), kind.value_type)
    bits = None
    if values.valid is not None:
        bits = pa.py_buffer(np.packbits(values.valid, bitorder="little"))
    storage = pa.Array.from_buffers(kind.storage_type, len(values.values), [bits], children=[flat])
    return pa.ExtensionArray.from_storage(kind, storage)


def empty(schema: Schema) -> Block:
    """Return a block of ``schema`` without rows."""
    return Block(schema, tuple(_no_values(kind) for kind in schema.values()), RowIds.none())


def _no_values(kind: pa.DataType) -> Values:
    code = code_of(kind)
    if code == "arrow":
        return pa.array([], type=plain(kind))  # marked lists are stored as lists
    return Vec(np.zeros((0, *shape_of(kind)), dtype=code), None)


def block_of(columns: Mapping[str, tuple[pa.DataType, Values]], ids: RowIds) -> Block:
    """Build a block from named, typed columns."""
    schema = Schema((name, kind) for name, (kind, _) in columns.items())
    return Block(schema, tuple(values for _, values in columns.values()), ids)
