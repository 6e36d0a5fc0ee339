"""This file holds columns in memory: typed, equally long, never handed out for writing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from dml.errors import SourceError
from dml.expr.block import Block, Values, cut, from_arrow, take, to_arrow
from dml.expr.computed import cached_property
from dml.expr.content import Bulk, arrow_pieces
from dml.expr.fingerprint import digest
from dml.expr.layouts import usual_column
from dml.expr.schema import Schema, code_of, shape_of
from dml.expr.sources.source import ATOM_BYTES, ATOM_ROWS
from dml.kernels.ids import RowIds
from dml.kernels.vec import Vec

Stored: TypeAlias = "Values | pa.ChunkedArray"


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Columns of ``rows`` rows each, with the Arrow types of ``schema``; a value by content.

    Arrays given by the user stay where they are: they are looked at, never copied or written, so
    whoever changes them afterwards changes the data. Those are ``lent``: they are named again each
    time that somebody asks.
    """

    schema: Schema
    stored: tuple[Stored, ...]
    rows: int
    lent: bool = False

    @cached_property
    def digest(self) -> bytes:
        """Name of the content when it was first asked for; see ``digest_now``."""
        return self.digest_now()

    def digest_now(self) -> bytes:
        """Name of the content: equal for equal values however they are chunked; reads all of it."""
        if not self.lent and "digest" in self.__dict__:
            return self.digest
        # by pieces, so that naming never holds a copy of all
        names = self.__dict__["names"] = [
            self._name_of(start) for start in range(0, self.rows, self.atom_rows)
        ]
        return digest("columns", self.rows, self.schema.to_arrow(), tuple(names))

    def changed(self, start: int, stop: int) -> bool:
        """True if rows from ``start`` to ``stop`` may be others than when they were last named."""
        names, each = self.__dict__.get("names", ()), self.atom_rows
        if not self.lent or not names:
            return False
        pieces = range(start // each, -(-stop // each))
        return any(self._name_of(piece * each) != names[piece] for piece in pieces)

    def _name_of(self, start: int) -> bytes:
        """Name of a piece, which begins at row ``start``."""
        stop = min(start + self.atom_rows, self.rows)
        pairs = zip(self.stored, self.schema.values(), strict=True)
        return digest(*(_content(to_arrow(slice_of(c, start, stop), kind)) for c, kind in pairs))

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of one row on average; the same however the values are chunked."""
        if not self.rows:
            return 0.0
        total = 0
        for column, kind in zip(self.stored, self.schema.values(), strict=True):
            total += content_bytes(column, kind, self.rows)
        return total / self.rows

    @property
    def atom_rows(self) -> int:
        """Rows of an atom where the user does not say: 65,536, or about 8 MiB if that is less."""
        return max(1, min(ATOM_ROWS, int(ATOM_BYTES // max(1.0, self.row_bytes))))

    def part(self, start: int, stop: int, names: tuple[str, ...], ids: RowIds) -> Block:
        """Rows ``start`` to ``stop`` of some columns, read-only views."""
        values = tuple(slice_of(self._column(name), start, stop) for name in names)
        return Block(self._schema_of(names), values, ids)

    def picked(self, index: np.ndarray, names: tuple[str, ...], ids: RowIds) -> Block:
        """The rows at ``index`` (n,) of some columns, copies."""
        values = tuple(picked_from(self._column(name), index) for name in names)
        return Block(self._schema_of(names), values, ids)

    def _column(self, name: str) -> Stored:
        return self.stored[self.schema.names.index(name)]

    def _schema_of(self, names: tuple[str, ...]) -> Schema:
        return Schema((name, self.schema[name]) for name in names)

    def __repr__(self) -> str:
        return f"{self.rows} rows of {self.schema}"


def columns_of(typed: Mapping[str, tuple[pa.DataType, Stored]], *, lent: bool = False) -> Columns:
    """Columns from named, typed values; SourceError unless there are some, all equally long.

    ``lent`` if their memory may be somebody else's.
    """
    if not typed:
        raise SourceError(
            "no columns", why="a row needs at least one value", try_='from_dict({"x": [1, 2, 3]})'
        )
    lengths = {name: length_of(column) for name, (_, column) in typed.items()}
    first, rows = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != rows:
            raise SourceError(
                f"columns {first!r} and {name!r} have {rows} and {length} rows",
                why="row i is made of the i-th value of every column",
                try_="columns of equal length; None where a value is missing",
            )
    schema = Schema((name, kind) for name, (kind, _) in typed.items())
    return Columns(schema, tuple(frozen(column) for _, column in typed.values()), rows, lent)


def _content(array: pa.Array) -> list[object]:
    """What an array holds, its bulk by XXH3-128: ten times as fast as a cryptographic hash."""
    return [
        xxhash.xxh3_128_digest(piece.data) if isinstance(piece, Bulk) else piece
        for piece in arrow_pieces(array)
    ]


def length_of(column: Stored) -> int:
    """Number of rows of one column."""
    return int(len(column.values) if isinstance(column, Vec) else len(column))


def frozen(column: Stored) -> Stored:
    """The same values behind a view that cannot be written through."""
    return frozen_vec(column) if isinstance(column, Vec) else column


def frozen_vec(column: Vec) -> Vec:
    """The same values and validity as read-only views."""
    values = column.values.view()
    values.flags.writeable = False
    if column.valid is None:
        return Vec(values)
    valid = column.valid.view()
    valid.flags.writeable = False
    return Vec(values, valid)


def slice_of(column: Stored, start: int, stop: int) -> Values:
    """Rows ``start`` to ``stop``; a view unless they lie in several chunks."""
    if isinstance(column, pa.ChunkedArray):
        array = from_arrow(whole(column.slice(start, stop - start)))
        return frozen_vec(array) if isinstance(array, Vec) else array
    return cut(column, start, stop)


def picked_from(column: Stored, index: np.ndarray) -> Values:
    """The values at ``index``, copied."""
    if isinstance(column, pa.ChunkedArray):
        return from_arrow(whole(column.take(pa.array(index))))
    return take(column, index)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """One array of a few chunks."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def stored_arrow(column: pa.Array | pa.ChunkedArray) -> tuple[pa.DataType, Stored]:
    """Type and storage of an Arrow column; chunks are only joined for tensors."""
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    column = usual_column(column, "of values")
    if column.num_chunks > 1 and not shape_of(column.type):
        return column.type, column
    return column.type, from_arrow(whole(column))


def content_bytes(column: Stored, kind: pa.DataType, rows: int) -> int:
    """Bytes that the values take, whatever their chunks, slices and validity bits take."""
    if code_of(kind) != "arrow":
        return rows * int(np.prod(shape_of(kind), dtype=int)) * np.dtype(code_of(kind)).itemsize
    return arrow_bytes(column)


def arrow_bytes(array: pa.Array | pa.ChunkedArray) -> int:
    """As ``content_bytes``, for values that live in Arrow arrays."""
    if isinstance(array, pa.ChunkedArray):
        return sum(arrow_bytes(chunk) for chunk in array.chunks)
    kind = array.type
    if is_text(kind):
        return 4 * len(array) + _text_bytes(array.drop_null() if array.null_count else array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return 4 * len(array) + arrow_bytes(array.flatten())
    if pa.types.is_struct(kind):
        return sum(arrow_bytes(part) for part in array.flatten())
    if isinstance(kind, pa.BaseExtensionType):
        return arrow_bytes(array.storage)
    try:
        return len(array) * max(1, int(kind.bit_width) // 8)
    except ValueError:  # a type of varying width that is rare enough to be only estimated
        return int(array.nbytes)


def _text_bytes(array: pa.Array) -> int:
    """Bytes of all strings of an array without nulls."""
    if not len(array):
        return 0
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    ends = np.frombuffer(array.buffers()[1], np.int64 if is_large else np.int32)
    return int(ends[array.offset + len(array)]) - int(ends[array.offset])


def is_text(kind: pa.DataType) -> bool:
    """True for strings and binaries of varying length."""
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_binary(kind)
        or types.is_large_string(kind) or types.is_large_binary(kind)
    )  # fmt: skip
