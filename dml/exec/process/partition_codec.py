"""Pack partitions into buffers, and open them over the same memory in another process.

A partition is sent as a parcel: a pickled description (places, ids, errors) and columns. A column
is the Arrow IPC stream of successive blocks of one schema, which has only the used part of a large
buffer, or the pickle of function results without types. The receiver reads the columns in place: in
a mapped file, or in the bytes that the network delivered. Errors are sent as
``dml/exec/process/exception_codec.py`` says.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa

from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import DmlError, InternalError
from dml.exec.process.exception_codec import received, shipped
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.slices import Outcome
from dml.kernels.rows.ids import RowIds
from dml.udfs.calling.type_inference import Returned

Keep = Callable[[Callable[[Any], None]], Any]
"""Takes a function that writes into a stream; returns the written data as a buffer."""


_Place = tuple[Piece, bytes, "RowIds | None", int]
"""A piece without its data: error (pickled, b"" for none), row ids, number of its column or -1."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    """A partition in transit: ``outcome`` without its value, the data of its pieces in ``columns``.

    Each column is a stream of blocks of one schema, or the pickle of results without types.
    ``places`` are the pieces, pickled without their blocks, and ``arrays`` the large arrays of
    these pieces. ``lent`` is a ``Loan`` if this process lends the data to others, a ``Slip`` if
    another process does (``dml/exec/process/shared_memory.py``). A parcel with a slip but no
    columns is not opened. Pickling a parcel with columns copies them as bytes, and drops ``lent``.
    """

    outcome: Outcome
    places: bytes
    columns: tuple[Any, ...]
    arrays: tuple[Any, ...] = ()
    lent: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        lent = None if self.columns else self.lent
        return Parcel, (self.outcome, self.places, self.columns, self.arrays, lent)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, and of the pieces' large arrays, such as ids."""
        return sum(memoryview(each).nbytes for each in (*self.columns, *self.arrays))


def size_of(fill: Callable[[Any], None]) -> int:
    """Return the number of bytes that ``fill`` writes, without copying them."""
    sink = pa.MockOutputStream()
    fill(sink)
    return int(sink.size())


def in_memory(fill: Callable[[Any], None]) -> Any:
    """Return what ``fill`` writes as a buffer in memory of this process, copied once."""
    kept = pa.allocate_buffer(size_of(fill))
    with pa.FixedSizeBufferWriter(kept) as sink:
        fill(sink)
    return kept


def pack(outcome: Outcome, keep: Keep = in_memory) -> Parcel:
    """Return a partition as a parcel; its columns are copied once, to where ``keep`` puts them."""
    schemas: list[Schema | None] = []  # of each column, None for results
    holding: list[list[Piece]] = []
    places: list[_Place] = []
    for piece in outcome.value:
        schema = None if piece.block is None else piece.block.schema
        if piece.returned is not None or (schema is not None and schemas[-1:] != [schema]):
            schemas.append(schema)
            holding.append([])
        column = -1 if piece.returned is None and schema is None else len(holding) - 1
        if column >= 0:
            holding[column].append(piece)
        places.append(_placed(piece, column))
    columns = tuple(keep(_filling(held)) for held in holding)
    arrays: list[pickle.PickleBuffer] = []
    described = pickle.dumps((tuple(schemas), places), protocol=5, buffer_callback=arrays.append)
    empty = dataclasses.replace(outcome, value=None)
    return Parcel(empty, described, columns, tuple(pa.py_buffer(each.raw()) for each in arrays))


def _placed(piece: Piece, column: int) -> _Place:
    failed = piece.error if piece.returned is None else piece.returned.error
    bare = dataclasses.replace(piece, block=None, error=None, returned=None)
    ids = None if piece.block is None else piece.block.ids
    return bare, b"" if failed is None else shipped(failed), ids, column


def unpack(parcel: Parcel) -> Outcome:
    """Return the partition of ``parcel``; its columns lie in the memory of the parcel."""
    schemas, places = pickle.loads(parcel.places, buffers=parcel.arrays)  # noqa: S301 (a worker's)
    columns = zip(schemas, parcel.columns, strict=True)
    held = [(_results if schema is None else pa.ipc.open_stream)(each) for schema, each in columns]
    pieces = [_piece(each, schemas, held) for each in places]
    return dataclasses.replace(parcel.outcome, value=pieces)


def _piece(place: _Place, schemas: Sequence[Schema | None], held: Sequence[Iterator[Any]]) -> Piece:
    piece, failed, ids, column = place
    error = received(failed) if failed else None
    if error is not None and not isinstance(error, DmlError):
        raise InternalError("a piece came with an error that is none of dml's", why=repr(error))
    found = next(held[column]) if column >= 0 else None
    if isinstance(found, Returned):
        return dataclasses.replace(piece, returned=found._replace(error=error))
    block = None if ids is None else Block.from_arrow(found, ids, schemas[column])
    return dataclasses.replace(piece, block=block, error=error)


def _filling(held: Sequence[Piece]) -> Callable[[Any], None]:
    """Return a function that writes a column: a stream of blocks, or one piece's raw results."""
    if held[0].returned is not None:
        results = cloudpickle.dumps(held[0].returned._replace(error=None))
        return lambda sink: sink.write(results)
    blocks = [piece.block for piece in held if piece.block is not None]
    return partial(_write, blocks[0].schema.to_arrow(), [block.to_arrow() for block in blocks])


def _write(schema: pa.Schema, batches: Sequence[pa.RecordBatch], sink: Any) -> None:
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _results(column: Any) -> Iterator[Returned]:
    yield pickle.loads(column)  # noqa: S301 (a worker's)
