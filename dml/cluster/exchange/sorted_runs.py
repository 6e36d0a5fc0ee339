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
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dml.data.block import Block, concat, to_arrow
from dml.data.layouts import is_text_or_bytes
from dml.data.schema import Schema
from dml.errors import DmlError
from dml.exec.memory.spill import SpillFolder, block_read, write_run
from dml.exec.tasks.replay_check import after
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.ops.sort.external_sort import Keys, merged, ordered_by
from dml.ops.sort.row_order import Ordering

if TYPE_CHECKING:
    from dml.exec.tasks.partition import Piece

# Most batches of a run; least and most bytes of a batch, which should be large enough for a read.
BATCHES, LEAST_BATCH, MOST_BATCH = 256, 16 << 10, 1 << 20
# Number of letters, or of bytes, to which long key values are cut.
LONGEST = 256
# The greatest code point, the greatest byte, and the code points of surrogates.
LAST_LETTER, LAST_BYTE, SURROGATES = 0x10FFFF, 0xFF, range(0xD800, 0xE000)
# Bytes of the id of a row on disk.
ID_BYTES = 16
# Columns of the report of a run, with a row for each batch, besides the columns of keys.
RUN, ROWS, BYTES = "\0run", "\0rows", "\0bytes"
# Column of the keys of ``ByKey``, which are stored with the rows.
KEY = "\0key"
TOLD = {RUN: pa.binary(), ROWS: pa.int64(), BYTES: pa.int64()}


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSpan:
    """The batches ``first`` up to ``stop`` of run ``run``; not all of their rows may be needed."""

    run: int
    first: int
    stop: int


def bounded(value: Any, *, down: bool) -> Any:
    """Return ``value`` if it is short, else a short bound that sorts correctly with all other rows.

    The bound is a prefix of ``value``, which sorts before it. With ``down`` (descending order), it
    is the least value above all values with that prefix, or ``value`` itself if there is none.
    """
    if len(value) <= LONGEST:
        return value
    begin = value[:LONGEST]
    if not down:
        return begin
    above = _above_text(begin) if isinstance(begin, str) else _above_bytes(begin)
    return value if above is None else above


def _above_text(begin: str) -> str | None:
    begin = begin.rstrip(chr(LAST_LETTER))
    if not begin:
        return None
    letter = ord(begin[-1]) + 1
    return begin[:-1] + chr(SURROGATES.stop if letter in SURROGATES else letter)


def _above_bytes(begin: bytes) -> bytes | None:
    begin = begin.rstrip(bytes([LAST_BYTE]))
    return begin[:-1] + bytes([begin[-1] + 1]) if begin else None


@dataclasses.dataclass(frozen=True)
class ByColumns(Ordering):
    """Order by columns; rows of equal values stay in order and, if ``together``, in one range."""

    together: bool = False

    def stored(self, block: Block) -> Block:
        """Return ``block`` unchanged, as its own columns are the keys."""
        return block

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Return the keys ``heads`` with long values cut, and the number of columns to compare by.

        These are the columns up to the first one with a cut value; 0 (all) if none was cut.
        """
        columns, first = list(heads.columns), 0
        for number, (name, down) in enumerate(zip(self.names, self.descending, strict=True)):
            at, kind = heads.schema.names.index(name), heads.schema[name]
            if not is_text_or_bytes(kind):
                continue
            values = to_arrow(columns[at], kind).to_pylist()
            cut = [value if value is None else bounded(value, down=down) for value in values]
            if cut != values:
                columns[at] = pa.array(cut, kind)
                first = first or number + 1
        return Block(heads.schema, tuple(columns), heads.ids), first

    def placing(self, count: int) -> ByColumns:
        """Return the order for comparing with bounds: by the first ``count`` columns, 0 for all."""
        if not count:
            return self
        names, down = self.names[:count], self.descending[:count]
        return dataclasses.replace(self, names=names, descending=down, together=True)


@dataclasses.dataclass(frozen=True)
class ByKey:
    """The order by 64-bit keys derived from row ids, then by ids.

    The keys are stored with the rows in a column; without ``keys``, that column must exist already.
    """

    keys: Keys | None
    together: bool = True
    names: tuple[str, ...] = (KEY,)

    def check(self, given: Schema) -> None:
        """Accept any schema, as all rows have ids."""

    def stored(self, block: Block) -> Block:
        """Return the rows of ``block`` with a column of their keys, if this order has ``keys``."""
        if self.keys is None or KEY in block.schema:
            return block
        keys = Vec(self.keys(block.ids), None)
        kinds = Schema((*block.schema.items(), (KEY, pa.uint64())))
        return Block(kinds, (*block.columns, keys), block.ids)

    def order(self, block: Block) -> np.ndarray:
        """Return the row numbers of ``block`` in this order, int64."""
        return ordered_by(self.keyed(block), block.ids)

    def keyed(self, block: Block) -> np.ndarray:
        """Return the stored keys of the rows of ``block``, uint64."""
        return np.asarray(block[KEY][0])

    def merged(self, runs: list[Iterator[Block]], at_once: int) -> Iterator[Block]:
        """Yield the rows of sorted ``runs`` merged in this order, about ``at_once`` at a time."""
        return merged(runs, self.keyed, at_once)

    def shortened(self, heads: Block) -> tuple[Block, int]:
        """Return ``heads`` unchanged and 0, as numbers are never cut."""
        return heads, 0

    def placing(self, count: int) -> ByKey:
        """Return this order unchanged, as bounds contain whole keys."""
        del count
        return self


class RunsGoneError(DmlError):
    """Raised when runs cannot be read where they were written; ``places`` has that worker.

    ``unread`` are the names of missing or damaged runs; none if the worker did not answer.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        places: tuple[str, ...] = (),
        unread: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, why=why)
        self.places, self.unread = places, unread


class RunShelf(SpillFolder):
    """The runs of one operator on one worker, in a folder of their own."""

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


def store_run(shelf: RunShelf, pieces: Sequence[Piece], by: ByColumns | ByKey) -> Block | None:
    """Write the rows of a partition as a run, and return its report; None if there are no rows.

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
    return described((name, pieces[0].place, short, whole.schema), heads, counts, sizes)


def _counted(blocks: Iterable[Block], sizes: list[int]) -> Iterator[Block]:
    """Yield ``blocks`` unchanged, and append the stored bytes of each to ``sizes``.

    On disk, the ids of all rows are written out.
    """
    for block in blocks:
        sizes.append(block.nbytes - block.ids.nbytes + ID_BYTES * block.n)
        yield block


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
    about: tuple[str, int, int, Schema], heads: Block, counts: np.ndarray, sizes: Sequence[int]
) -> Block:
    """Return the report of a run: a row for each batch, with its rows, its bytes and its first key.

    ``about`` is pickled in the first row: the run's name, the place of its partition, the number of
    key columns up to the first one with cut values (0 if none), and its schema.
    """
    told = (
        pa.array([pickle.dumps(about), *[b""] * (heads.n - 1)], pa.binary()),
        Vec(counts, None),
        Vec(np.array(sizes, "i8"), None),
    )
    kinds = Schema((*TOLD.items(), *heads.schema.items()))
    return Block(kinds, (*told, *heads.columns), RowIds.run(0, 0, heads.n))
