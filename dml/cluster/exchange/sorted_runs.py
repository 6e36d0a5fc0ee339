"""Store sorted runs on the disk of a worker, in batches that can be read individually.

A run is the rows of one partition in order, as an Arrow file of small batches, named by its
content. A worker that computes the partition again writes the same run under the same name. The
report of a run (``described``) has the first key of each batch, so other workers know what to read.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from dml.data.block import Block, concat
from dml.data.schema import Schema
from dml.errors import DmlError
from dml.exec.memory.spill import SpillFolder, block_read, write_run
from dml.exec.tasks.replay_check import after
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

if TYPE_CHECKING:
    from dml.exec.tasks.partition import Piece

# Most batches of a run; least and most bytes of a batch, which should be large enough for a read.
BATCHES, LEAST_BATCH, MOST_BATCH = 256, 16 << 10, 1 << 20
# Bytes of the id of a row on disk.
ID_BYTES = 16
# Columns of the report of a run, with a row for each batch, besides the columns of keys.
NAME, PLACE, ROWS, BYTES, SCHEMA = "\0run", "\0place", "\0rows", "\0bytes", "\0schema"
SHORT = "\0short"
TOLD = {
    NAME: pa.binary(),
    PLACE: pa.int64(),
    ROWS: pa.int64(),
    BYTES: pa.int64(),
    SHORT: pa.int64(),
    SCHEMA: pa.binary(),
}


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSpan:
    """The batches ``first`` up to ``stop`` of run ``run``; not all of their rows may be needed."""

    run: int
    first: int
    stop: int


class By(Protocol):
    """An order of rows, by key columns that are stored with the rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the key columns."""

    def check(self, given: Schema) -> None:
        """Raise SchemaError if rows of schema ``given`` cannot be ordered this way."""

    def stored(self, block: Block) -> Block:
        """Return the rows of ``block`` with all key columns."""

    def order(self, block: Block) -> np.ndarray:
        """Return the row numbers of ``block`` in order."""

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Cut long values; also return the number of columns up to the first cut one, 0 if none."""


class RunsGoneError(DmlError):
    """Raised when runs cannot be read where they were written; ``places`` are these workers.

    ``unread`` has (worker, name) of each missing or damaged run; none if a worker did not answer.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        places: tuple[str, ...] = (),
        unread: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(what, why=why)
        self.places, self.unread = places, unread


class RunShelf:
    """The runs of one operator on one worker, in a folder below ``root``."""

    def __init__(self, root: str | None = None) -> None:
        self._folder = SpillFolder(root)

    @property
    def path(self) -> str:
        """The path of the folder."""
        return self._folder.path

    @property
    def names(self) -> list[str]:
        """The names of the complete runs in the folder."""
        return [each.stem for each in Path(self.path).glob("*.arrow")]

    def write(self, name: str, schema: Schema, blocks: Iterable[Block]) -> None:
        """Write run ``name``, unless it exists: runs of one name have equal rows."""
        path = run_path(self.path, name)
        if not path.exists():
            fresh = path.with_suffix(f".{threading.get_ident()}")
            write_run(fresh, schema, blocks)
            os.replace(fresh, path)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()


def run_path(folder: str, name: str) -> Path:
    """Return the path of run ``name``."""
    return Path(folder) / f"{name}.arrow"


def batches(path: Path, schema: Schema, first: int, stop: int) -> Iterator[Block]:
    """Yield batches ``first`` up to ``stop`` of a run; raise OSError or ArrowInvalid if damaged."""
    with pa.OSFile(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(first, stop):
            yield block_read(schema, reader.get_batch(number))


def sent(paths: Sequence[tuple[Path, int, int]]) -> bytes:
    """Return batches of runs of one schema (``paths``: file, first, end) as an Arrow stream."""
    sink, writer = pa.BufferOutputStream(), None
    for path, first, stop in paths:
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_file(source)
            writer = writer or pa.ipc.new_stream(sink, reader.schema)
            for number in range(first, stop):
                writer.write_batch(reader.get_batch(number))
    if writer is not None:
        writer.close()
    return bytes(sink.getvalue())


def received(stream: bytes, schema: Schema) -> Iterator[Block]:
    """Yield the batches of a stream that ``sent`` returned."""
    for batch in pa.ipc.open_stream(stream):
        yield block_read(schema, batch)


def store_run(shelf: RunShelf, pieces: Sequence[Piece], by: By) -> Block | None:
    """Write the rows of a partition as a run, and return its report, or None without rows.

    The run depends on the pieces alone: it is the same on every worker and at every repetition.
    """
    blocks = [piece.block for piece in pieces if piece.block is not None and piece.block.n]
    if not blocks:
        return None
    by.check(blocks[0].schema)
    whole = by.stored(concat(blocks))
    order = by.order(whole)
    each = _batch_rows(whole)
    name = _named(pieces, whole)
    starts = range(0, whole.n, each)
    sizes = list[int]()
    sorted_ = _counted((whole.take(order[start : start + each]) for start in starts), sizes)
    shelf.write(name, whole.schema, sorted_)
    for _ in sorted_:  # collects sizes if the run existed already
        pass
    heads, short = by.shortened(whole.select(by.names).take(order[::each]))
    counts = np.minimum(whole.n - np.arange(0, whole.n, each), each)
    told = (pieces[0].place, counts, sizes, short)
    return described(name, whole.schema, heads, told)


def _counted(blocks: Iterable[Block], sizes: list[int]) -> Iterator[Block]:
    """Yield ``blocks`` unchanged, and append the stored bytes of each to ``sizes``."""
    for block in blocks:
        sizes.append(stored_bytes(block))
        yield block


def stored_bytes(block: Block) -> int:
    """Return the bytes of a block on disk, where the ids of all rows are written out."""
    return block.nbytes - block.ids.nbytes + ID_BYTES * block.n


def _batch_rows(whole: Block) -> int:
    """Return the number of rows to put into each batch of a run; ``whole`` are all of its rows."""
    nbytes = whole.nbytes + ID_BYTES * whole.n
    most = max(LEAST_BATCH, min(nbytes // BATCHES, MOST_BATCH))
    return max(1, most * whole.n // nbytes)


def _named(pieces: Sequence[Piece], whole: Block) -> str:
    """Return the name of a run: a digest of the ids of all rows and of a sample of their values."""
    found = blake2b(after(b"", pieces), digest_size=16)
    for half in whole.ids.arrays():
        found.update(np.ascontiguousarray(half).data)
    return found.hexdigest()


def described(
    name: str, schema: Schema, heads: Block, of: tuple[int, np.ndarray, Sequence[int], int]
) -> Block:
    """Return the report of a run: a row for each batch, with the batch's first key.

    ``of`` has the place of the run's partition, the rows of each batch, the bytes of each batch,
    and the number of key columns up to the first one with cut values (0 if none).
    """
    (place, counts, sizes, short), count = of, heads.n
    told = (
        pa.array([bytes.fromhex(name), *[b""] * (count - 1)], pa.binary()),
        Vec(np.full(count, place, "i8"), None),
        Vec(counts, None),
        Vec(np.array(sizes, "i8"), None),
        Vec(np.full(count, short, "i8"), None),
        pa.array([pickle.dumps(schema), *[b""] * (count - 1)], pa.binary()),
    )
    kinds = Schema((*TOLD.items(), *heads.schema.items()))
    return Block(kinds, (*told, *heads.columns), RowIds.run(0, 0, count))
