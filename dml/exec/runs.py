"""This file keeps sorted runs on the disk of a worker, in pieces that can be read by themselves.

A run is what one partition becomes: its rows in order, as an Arrow file of small batches, named by
what is in it. Whoever makes the partition again makes the same run under the same name. What is
told of it (``described``) is the first key of each batch, so that others know where to read.
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

from dml.errors import DmlError
from dml.exec.likeness import after
from dml.exec.spill import Folder, block_read, write_run
from dml.expr.block import Block, concat
from dml.expr.schema import Schema
from dml.kernels.ids import RowIds
from dml.kernels.vec import Vec

if TYPE_CHECKING:
    from dml.exec.work import Piece

# Batches of a run: as many as are worth telling apart, none of them too small for a read.
BATCHES, LEAST_BATCH, MOST_BATCH = 256, 16 << 10, 1 << 20
# What a row takes on disk beside its columns: its id.
ID_BYTES = 16
# Columns of what is told of a run, a row for each batch; those of keys stand beside them.
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
class Span:
    """Batches ``first`` to ``stop`` of run ``run``, of which rows at either end may be left out."""

    run: int
    first: int
    stop: int


class By(Protocol):
    """Which rows come first, by columns that are stored with them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that decide."""

    def check(self, given: Schema) -> None:
        """SchemaError if rows of these columns have no such order."""

    def stored(self, block: Block) -> Block:
        """The rows with all columns that decide."""

    def order(self, block: Block) -> np.ndarray:
        """The order of the rows of ``block``."""

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Keys cut to bounds; how many columns decide up to the first cut one, 0 if none is."""


class RunsGoneError(DmlError):
    """Runs cannot be read where they were written; ``places`` are those workers.

    ``unread`` are worker and name of those that are missing or damaged there; none where the
    worker did not answer.
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


class Shelf:
    """The runs of one spread operator in one process, in a folder below ``root``."""

    def __init__(self, root: str | None = None) -> None:
        self._folder = Folder(root)

    @property
    def path(self) -> str:
        """The folder."""
        return self._folder.path

    @property
    def names(self) -> list[str]:
        """The runs that are here, whole."""
        return [each.stem for each in Path(self.path).glob("*.arrow")]

    def write(self, name: str, schema: Schema, blocks: Iterable[Block]) -> None:
        """Keep a run. One that is here already stays, as it is the same."""
        path = run_path(self.path, name)
        if not path.exists():
            fresh = path.with_suffix(f".{threading.get_ident()}")
            write_run(fresh, schema, blocks)
            os.replace(fresh, path)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()


def run_path(folder: str, name: str) -> Path:
    """Where a run lies."""
    return Path(folder) / f"{name}.arrow"


def batches(path: Path, schema: Schema, first: int, stop: int) -> Iterator[Block]:
    """Batches ``first`` to ``stop`` of a run; OSError or ArrowInvalid if it is not whole."""
    with pa.OSFile(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(first, stop):
            yield block_read(schema, reader.get_batch(number))


def sent(paths: Sequence[tuple[Path, int, int]]) -> bytes:
    """Batches of several runs of one schema as an Arrow stream, for a process elsewhere."""
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
    """The batches that were ``sent``."""
    for batch in pa.ipc.open_stream(stream):
        yield block_read(schema, batch)


def kept(shelf: Shelf, pieces: Sequence[Piece], by: By) -> Block | None:
    """Write the rows of a partition as a run; what is told of it, None where there are none.

    That follows from the pieces alone, wherever and however often they are made.
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
    for _ in sorted_:  # where the run was here already
        pass
    heads, short = by.shortened(whole.select(by.names).take(order[::each]))
    counts = np.minimum(whole.n - np.arange(0, whole.n, each), each)
    told = (pieces[0].place, counts, sizes, short)
    return described(name, whole.schema, heads, told)


def _counted(blocks: Iterable[Block], sizes: list[int]) -> Iterator[Block]:
    """The same blocks; what each takes goes to ``sizes``."""
    for block in blocks:
        sizes.append(stored_bytes(block))
        yield block


def stored_bytes(block: Block) -> int:
    """Bytes of a block with all ids written out, as they are on disk and read from there."""
    return block.nbytes - block.ids.nbytes + ID_BYTES * block.n


def _batch_rows(whole: Block) -> int:
    """Rows of a batch."""
    nbytes = whole.nbytes + ID_BYTES * whole.n
    most = max(LEAST_BATCH, min(nbytes // BATCHES, MOST_BATCH))
    return max(1, most * whole.n // nbytes)


def _named(pieces: Sequence[Piece], whole: Block) -> str:
    """The name of what is in a run: the ids of all rows, and a sample of their values."""
    found = blake2b(after(b"", pieces), digest_size=16)
    for half in whole.ids.arrays():
        found.update(np.ascontiguousarray(half).data)
    return found.hexdigest()


def described(
    name: str, schema: Schema, heads: Block, of: tuple[int, np.ndarray, Sequence[int], int]
) -> Block:
    """What is told of a run: a row for each batch, its first key among them.

    ``of`` has the place of the run, rows and bytes of batches, and what ``By.shortened`` said.
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
