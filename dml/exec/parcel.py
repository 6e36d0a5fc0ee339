"""This file packs partitions into buffers and opens them over the same memory in another process.

A partition travels as its description (pickled: places, ids, errors) and the columns of all its
blocks as one Arrow IPC stream per schema, so that a slice of a large buffer sends its own part
only. Whoever opens a parcel reads its columns where they lie: in a mapped file, or in what the
network delivered. ``dml/exec/shipping.py`` says how errors travel.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import cloudpickle
import pyarrow as pa

from dml.errors import DmlError, InternalError
from dml.exec.losses import Loss
from dml.exec.shipping import received, shipped
from dml.exec.slices import Outcome
from dml.exec.work import Piece
from dml.expr.block import Block
from dml.expr.schema import Schema
from dml.kernels.ids import RowIds

Keep = Callable[[Callable[[Any], None]], Any]
"""Gives what a function writes into a stream as a buffer, in memory of some kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """A piece without its block: ``ids`` are those of the block, None where there is none."""

    place: int
    atom: int
    ends: bool
    error: bytes
    ids: RowIds | None
    schema: int
    losses: tuple[Loss, ...]
    firsts: tuple[int, ...]
    returned: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    """A partition in transit: ``outcome`` has no value, ``columns`` are a stream per schema.

    ``places`` are the pieces without their blocks, and ``arrays`` what is large of them. ``lent``
    says where neighbours find all this, or where it was found (``dml/exec/lending.py``): one that
    says so and has no columns was not opened. Pickled it is bytes, and nothing is lent.
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
        """Bytes of the columns and of ids that are written out."""
        return sum(memoryview(each).nbytes for each in (*self.columns, *self.arrays))


def size_of(fill: Callable[[Any], None]) -> int:
    """Bytes that ``fill`` writes; nothing is copied to know that."""
    sink = pa.MockOutputStream()
    fill(sink)
    found: int = sink.size()
    return found


def in_memory(fill: Callable[[Any], None]) -> Any:
    """What ``fill`` writes, in memory of this process: copied once, since its size is known."""
    kept = pa.allocate_buffer(size_of(fill))
    with pa.FixedSizeBufferWriter(kept) as sink:
        fill(sink)
    return kept


def pack(outcome: Outcome, keep: Keep = in_memory) -> Parcel:
    """The partition as a parcel; its columns are copied once, to where ``keep`` puts them."""
    pieces: Sequence[Piece] = outcome.value
    schemas: list[Schema] = []
    places = []
    for piece in pieces:
        if piece.block is not None and (not schemas or piece.block.schema != schemas[-1]):
            schemas.append(piece.block.schema)
        ids = None if piece.block is None else piece.block.ids
        made = piece.returned
        failed = piece.error if made is None else made.error
        error = b"" if failed is None else shipped(failed)
        bare = None if made is None else made._replace(error=None)
        returned = b"" if bare is None else cloudpickle.dumps(bare)
        stands = (piece.place, piece.atom, piece.ends)
        beside = (piece.losses, piece.firsts, returned)
        places.append(_Place(*stands, error, ids, len(schemas) - 1, *beside))
    blocks = [piece.block for piece in pieces if piece.block is not None]
    runs = groupby(blocks, key=lambda block: block.schema)
    columns = tuple(keep(_filling(schema, run)) for schema, run in runs)
    arrays: list[pickle.PickleBuffer] = []
    described = pickle.dumps((tuple(schemas), places), protocol=5, buffer_callback=arrays.append)
    empty = dataclasses.replace(outcome, value=None)
    return Parcel(empty, described, columns, tuple(pa.py_buffer(each.raw()) for each in arrays))


def unpack(parcel: Parcel) -> Outcome:
    """The partition; its columns lie in the parcel's memory."""
    schemas, places = pickle.loads(parcel.places, buffers=parcel.arrays)  # noqa: S301 (a worker's)
    streams = [_blocks(each) for each in parcel.columns]
    pieces = [_piece(each, schemas, streams) for each in places]
    return dataclasses.replace(parcel.outcome, value=pieces)


def _piece(place: _Place, schemas: Sequence[Schema], streams: Sequence[Any]) -> Piece:
    block = None
    if place.ids is not None:
        block = Block.from_arrow(next(streams[place.schema]), place.ids, schemas[place.schema])
    error = received(place.error) if place.error else None
    if error is not None and not isinstance(error, DmlError):
        raise InternalError("a piece came with an error that is none of dml's", why=repr(error))
    returned = pickle.loads(place.returned) if place.returned else None  # noqa: S301 (a worker's)
    stands = (place.place, place.atom, block, place.ends)
    if returned is not None:
        return Piece(*stands, returned=returned._replace(error=error), losses=place.losses)
    return Piece(*stands, error, place.losses, place.firsts)


def _filling(schema: Schema, blocks: Iterable[Block]) -> Callable[[Any], None]:
    return partial(_write, schema.to_arrow(), [block.to_arrow() for block in blocks])


def _write(schema: pa.Schema, batches: Sequence[pa.RecordBatch], sink: Any) -> None:
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _blocks(columns: Any) -> Iterator[pa.RecordBatch]:
    yield from pa.ipc.open_stream(columns)
