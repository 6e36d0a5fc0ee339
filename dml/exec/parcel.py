"""This file packs partitions into buffers and opens them over the same memory in another process.

A partition travels as its description (pickled: places, ids, errors) and the columns of all its
blocks as one Arrow IPC stream, so that a slice of a large buffer sends its own part only. Whoever
opens a parcel reads its columns where they lie: in a mapped file, or in what the network delivered.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import cloudpickle
import pyarrow as pa

from dml.errors import DmlError, InternalError
from dml.exec.slices import Outcome
from dml.exec.work import Piece
from dml.expr.block import Block
from dml.expr.schema import Schema
from dml.kernels.ids import RowIds


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """A piece without its block: ``ids`` are those of the block, None where there is none."""

    place: int
    atom: int
    ends: bool
    error: bytes
    ids: RowIds | None
    schema: int


@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    """A partition in transit: ``outcome`` has no value, ``columns`` are a stream per schema."""

    outcome: Outcome
    places: bytes
    columns: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(len(memoryview(each)) for each in self.columns)


def pack(outcome: Outcome) -> Parcel:
    """The partition as a parcel; its columns are copied once, into the stream."""
    pieces: Sequence[Piece] = outcome.value
    schemas: list[Schema] = []
    places = []
    for piece in pieces:
        if piece.block is not None and (not schemas or piece.block.schema != schemas[-1]):
            schemas.append(piece.block.schema)
        ids = None if piece.block is None else piece.block.ids
        error = b"" if piece.error is None else shipped(piece.error)
        places.append(_Place(piece.place, piece.atom, piece.ends, error, ids, len(schemas) - 1))
    blocks = [piece.block for piece in pieces if piece.block is not None]
    columns = tuple(
        _stream(schema, run) for schema, run in groupby(blocks, key=lambda block: block.schema)
    )
    bare = dataclasses.replace(outcome, value=None)
    described = pickle.dumps((tuple(schemas), places), protocol=5)
    return Parcel(bare, described, columns)


def unpack(parcel: Parcel) -> Outcome:
    """The partition; its columns lie in the parcel's memory."""
    schemas, places = pickle.loads(parcel.places)  # noqa: S301 (written by a worker of this run)
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
    return Piece(place.place, place.atom, block, place.ends, error)


def _stream(schema: Schema, blocks: Iterator[Block]) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.to_arrow()) as writer:
        for block in blocks:
            writer.write_batch(block.to_arrow())
    return sink.getvalue()


def _blocks(columns: Any) -> Iterator[pa.RecordBatch]:
    yield from pa.ipc.open_stream(columns)


def shipped(error: BaseException) -> bytes:
    """An exception and its cause as bytes; what cannot be sent is described."""
    try:
        sent = cloudpickle.dumps((error, error.__cause__))
        pickle.loads(sent)  # noqa: S301 (some exceptions can be written and not read)
    except Exception:  # noqa: BLE001 (a user's exception may do anything when it is pickled)
        described = error if isinstance(error, DmlError) else RuntimeError(_told(error))
        cause = error.__cause__ and RuntimeError(_told(error.__cause__))
        sent = cloudpickle.dumps((described, cause))
    return bytes(sent)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def received(sent: bytes) -> BaseException:
    """The exception that ``shipped`` sent."""
    error, cause = pickle.loads(sent)  # noqa: S301 (written by a worker of this run)
    error.__cause__ = cause
    return error  # type: ignore[no-any-return]
