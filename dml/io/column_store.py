"""Typed columns of equal length are stored in memory here and handed out as read-only views."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from dml.base.arrow_types import is_list
from dml.base.cached_property import cached_property
from dml.base.content_digest import Bulk, arrow_pieces
from dml.base.fingerprint import digest
from dml.data.block import Values, cut, from_arrow, take, to_arrow
from dml.data.layouts import is_text_or_bytes, usual_column
from dml.data.schema import Schema, code_of, shape_of
from dml.errors import SourceError
from dml.io.source import ATOM_BYTES, ATOM_ROWS
from dml.kernels.vec import Vec

Stored: TypeAlias = "Values | pa.ChunkedArray"


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnStore:
    """Columns of ``rows`` rows each, with the Arrow types of ``schema``; compared by content.

    Arrays given by the user are referenced, never copied or written, so a later change to an array
    changes the data. Such columns are ``lent``: their digest is computed anew at every request.
    """

    schema: Schema
    stored: tuple[Stored, ...]
    rows: int
    lent: bool = False

    @cached_property
    def digest(self) -> bytes:
        """Digest of the content, computed at the first access; see ``digest_now``."""
        return self.digest_now()

    def digest_now(self) -> bytes:
        """Return a digest of the content that does not depend on chunking; reads all values."""
        if not self.lent and "digest" in self.__dict__:
            return self.digest
        # by runs of atom_rows rows, so that digesting never copies all data
        names = self.__dict__["names"] = [
            self._name_of(start) for start in range(0, self.rows, self.atom_rows)
        ]
        return digest("columns", self.rows, self.schema.to_arrow(), tuple(names))

    def changed(self, start: int, stop: int) -> bool:
        """Return True if lent rows ``start`` to ``stop`` may have changed since the last digest."""
        names, each = self.__dict__.get("names", ()), self.atom_rows
        if not self.lent or not names:
            return False
        pieces = range(start // each, -(-stop // each))
        return any(self._name_of(piece * each) != names[piece] for piece in pieces)

    def _name_of(self, start: int) -> bytes:
        """Return the digest of up to ``atom_rows`` rows from row ``start`` on."""
        stop = min(start + self.atom_rows, self.rows)
        pairs = zip(self.stored, self.schema.values(), strict=True)
        return digest(*(_content(to_arrow(slice_of(c, start, stop), kind)) for c, kind in pairs))

    @cached_property
    def row_bytes(self) -> float:
        """Average bytes per row; independent of how the values are chunked."""
        if not self.rows:
            return 0.0
        pairs = zip(self.stored, self.schema.values(), strict=True)
        return sum(content_bytes(*pair, self.rows) for pair in pairs) / self.rows

    @property
    def atom_rows(self) -> int:
        """Default rows of an atom: 65,536, or about 8 MiB if that is less."""
        return max(1, min(ATOM_ROWS, int(ATOM_BYTES // max(1.0, self.row_bytes))))

    def column(self, name: str) -> Stored:
        """Return the values of column ``name``."""
        return self.stored[self.schema.names.index(name)]

    def __repr__(self) -> str:
        return f"{self.rows} rows of {self.schema}"


def columns_of(
    typed: Mapping[str, tuple[pa.DataType, Stored]], *, lent: bool = False
) -> ColumnStore:
    """Build columns from named, typed values; raise SourceError for none or unequal lengths.

    ``lent`` is True if other code may own and change the memory of the values.
    """
    if not typed:
        raise SourceError(
            "no columns", why="a row needs at least one value", try_='from_dict({"x": [1, 2, 3]})'
        )
    lengths = {
        name: len(column.values if isinstance(column, Vec) else column)
        for name, (_, column) in typed.items()
    }
    first, rows = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != rows:
            raise SourceError(
                f"columns {first!r} and {name!r} have {rows} and {length} rows",
                why="row i is made of the i-th value of every column",
                try_="columns of equal length; None where a value is missing",
            )
    schema = Schema((name, kind) for name, (kind, _) in typed.items())
    return ColumnStore(schema, tuple(frozen(column) for _, column in typed.values()), rows, lent)


def _content(array: pa.Array) -> list[object]:
    """Return the parts of an array to digest; bulk data is replaced by its XXH3-128 digest."""
    return [
        xxhash.xxh3_128_digest(piece.data) if isinstance(piece, Bulk) else piece
        for piece in arrow_pieces(array)
    ]


def frozen(column: Stored) -> Stored:
    """Return a view of the same values, and of their validity, that cannot be written to."""
    if not isinstance(column, Vec):
        return column
    views = [part.view() for part in (column.values, column.valid) if part is not None]
    for view in views:
        view.flags.writeable = False
    return Vec(*views)


def slice_of(column: Stored, start: int, stop: int) -> Values:
    """Return rows ``start`` to ``stop``; a view unless the rows span several chunks."""
    if isinstance(column, pa.ChunkedArray):
        return frozen(from_arrow(whole(column.slice(start, stop - start))))
    return cut(column, start, stop)


def picked_from(column: Stored, index: np.ndarray) -> Values:
    """Return copies of the values at ``index`` (n,) int64."""
    if isinstance(column, pa.ChunkedArray):
        return from_arrow(whole(column.take(pa.array(index))))
    return take(column, index)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Concatenate the chunks of a column into one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def stored_arrow(column: pa.Array | pa.ChunkedArray) -> tuple[pa.DataType, Stored]:
    """Return type and storage of an Arrow column; only the chunks of tensors are concatenated."""
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    column = usual_column(column, "of values")
    if column.num_chunks > 1 and not shape_of(column.type):
        return column.type, column
    return column.type, from_arrow(whole(column))


def content_bytes(column: Stored, kind: pa.DataType, rows: int) -> int:
    """Return the bytes of the values in ``rows`` rows, without validity and unused buffer parts."""
    if code_of(kind) != "arrow":
        return rows * int(np.prod(shape_of(kind), dtype=int)) * np.dtype(code_of(kind)).itemsize
    return arrow_bytes(column)


def arrow_bytes(array: pa.Array | pa.ChunkedArray) -> int:
    """Return the bytes of the values as ``content_bytes`` does, for values in Arrow arrays."""
    if isinstance(array, pa.ChunkedArray):
        return sum(arrow_bytes(chunk) for chunk in array.chunks)
    kind = array.type
    if is_text_or_bytes(kind):
        return 4 * len(array) + _text_bytes(array.drop_null() if array.null_count else array)
    if is_list(kind):
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
    """Return the bytes of all strings of an array without nulls."""
    if not len(array):
        return 0
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    ends = np.frombuffer(array.buffers()[1], np.int64 if is_large else np.int32)
    return int(ends[array.offset + len(array)]) - int(ends[array.offset])
