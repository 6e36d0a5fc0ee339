"""Sorted runs are stored on the disk of a worker, in batches that can be read individually.

A run is the rows of one partition in order, as an Arrow file of small batches, named by its
content. A worker that remakes the partition makes the same run under the same name. The report of a
run (``described``) has the first key of each batch, so that other workers know where to read.
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

# Batches of a run at most, and bounds of their bytes: none should be too small for a read.
BATCHES, LEAST_BATCH, MOST_BATCH = 256, 16 << 10, 1 << 20
# Bytes of a row on disk beside its columns: its id.
ID_BYTES = 16
# Columns of the report of a run, a row for each batch; columns of keys stand beside them.
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
    """Batches ``first`` to ``stop`` of run ``run``; some rows at either end may be left out."""

    run: int
    first: int
    stop: int


class By(Protocol):
    """The order of rows, by columns that are stored with them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The key columns."""

    def check(self, given: Schema) -> None:
        """Raise SchemaError if rows of this schema have no such order."""

    def stored(self, block: Block) -> Block:
        """Return the rows with all key columns."""

    def order(self, block: Block) -> np.ndarray:
        """Return the order of the rows of ``block``."""

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Return keys cut to bounds, and the columns up to the first cut one, 0 if none."""


class RunsGoneError(DmlError):
    """Raised when runs cannot be read where they were written; ``places`` are those workers.

    ``unread`` has worker and name of each missing or damaged run; empty if the worker did not
    answer.
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
    """The runs of one spread operator in one process, in a folder below ``root``."""

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
        """Write a run, unless it exists: an existing run is the same."""
        path = run_path(self.path, name)
        if not path.exists():
            fresh = path.with_suffix(f".{threading.get_ident()}")
            write_run(fresh, schema, blocks)
            os.replace(fresh, path)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()


def run_path(folder: str, name: str) -> Path:
    """Return the path of a run."""
    return Path(folder) / f"{name}.arrow"


def batches(path: Path, schema: Schema, first: int, stop: int) -> Iterator[Block]:
    """Yield batches ``first`` to ``stop`` of a run; OSError or ArrowInvalid if it is damaged."""
    with pa.OSFile(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(first, stop):
            yield block_read(schema, reader.get_batch(number))


def sent(paths: Sequence[tuple[Path, int, int]]) -> bytes:
    """Serialize batches of several runs of one schema as an Arrow stream, for another process."""
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
    """Yield the batches of a stream that ``sent`` wrote."""
    for batch in pa.ipc.open_stream(stream):
        yield block_read(schema, batch)


def kept(shelf: RunShelf, pieces: Sequence[Piece], by: By) -> Block | None:
    """Write the rows of a partition as a run, and return its report; None if there are no rows.

    The result depends on the pieces alone, wherever and however often they are made.
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
    for _ in sorted_:  # if the run existed already
        pass
    heads, short = by.shortened(whole.select(by.names).take(order[::each]))
    counts = np.minimum(whole.n - np.arange(0, whole.n, each), each)
    told = (pieces[0].place, counts, sizes, short)
    return described(name, whole.schema, heads, told)


def _counted(blocks: Iterable[Block], sizes: list[int]) -> Iterator[Block]:
    """Yield the same blocks, and append their stored bytes to ``sizes``."""
    for block in blocks:
        sizes.append(stored_bytes(block))
        yield block


def stored_bytes(block: Block) -> int:
    """Return the bytes of a block with all ids written out, as on disk."""
    return block.nbytes - block.ids.nbytes + ID_BYTES * block.n


def _batch_rows(whole: Block) -> int:
    """Return the rows of a batch."""
    nbytes = whole.nbytes + ID_BYTES * whole.n
    most = max(LEAST_BATCH, min(nbytes // BATCHES, MOST_BATCH))
    return max(1, most * whole.n // nbytes)


def _named(pieces: Sequence[Piece], whole: Block) -> str:
    """Return the name of a run's content: the ids of all rows, and a sample of their values."""
    found = blake2b(after(b"", pieces), digest_size=16)
    for half in whole.ids.arrays():
        found.update(np.ascontiguousarray(half).data)
    return found.hexdigest()


def described(
    name: str, schema: Schema, heads: Block, of: tuple[int, np.ndarray, Sequence[int], int]
) -> Block:
    """Return the report of a run: a row for each batch, with its first key.

    ``of`` has the place of the run, rows and bytes of batches, and the result of ``By.shortened``.
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
