"""Spill runs of blocks to local disk, as Arrow IPC files that are removed with their owner."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from dml.base.ownership import FILE, own_file
from dml.data.block import Block, from_arrow
from dml.data.schema import Schema
from dml.errors import MemoryContractError
from dml.kernels.rows.ids import RowIds

ID_COLUMNS = ("\0high", "\0low")
PREFIX, LOCK = "dml-spill-", "owned"


class DiskSpill:
    """Runs of blocks of one schema, in a private folder that is removed with this object.

    A run is a sequence of blocks in one file. It is read once, block by block, and its file is
    removed afterwards, unless ``runs`` is told to keep it. The folder is removed by ``close``, when
    this object is garbage-collected, and at interpreter exit. The folder of a killed process is
    removed when another process begins to spill there. Raise MemoryContractError if the disk cannot
    take the rows.
    """

    def __init__(
        self,
        schema: Schema,
        root: str | None = None,
        wrote: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.schema, self._wrote = schema, wrote
        self._written, self._paths = 0, list[Path]()
        self._owned = SpillFolder(root)

    @property
    def folder(self) -> str:
        """Path of the folder with the runs."""
        return self._owned.path

    @property
    def count(self) -> int:
        """Number of runs that are still to be read."""
        return len(self._paths)

    def write(self, blocks: Iterator[Block]) -> None:
        """Append the blocks as one run, in a file of its own."""
        path = Path(self.folder) / f"{self._written:05d}.arrow"
        self._written += 1
        nbytes = write_run(path, self.schema, blocks)
        self._paths.append(path)
        self._wrote(nbytes)

    def runs(self, most: int | None = None, *, keep: bool = False) -> list[Iterator[Block]]:
        """Return iterators over the first ``most`` runs (None: all); ``keep`` keeps their files."""
        taken = self._paths[:most]
        if not keep:
            self._paths = self._paths[len(taken) :]
        return [self._read(path, keep=keep) for path in taken]

    def _read(self, path: Path, *, keep: bool) -> Iterator[Block]:
        """Yield a run's blocks, not mapped: pages that are not yet on disk count as memory."""
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for i in range(reader.num_record_batches):
                yield block_read(self.schema, reader.get_batch(i))
        if not keep:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder with all files."""
        self._owned.close()


class SpillFolder:
    """A private folder below ``root`` (None: the system's temporary one), removed with this object.

    It is also removed at interpreter exit. The folder of a killed process is removed when another
    process makes a folder there. Raise MemoryContractError if the disk has no room.
    """

    def __init__(self, root: str | None = None) -> None:
        try:
            self.path = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root)
            owned = _owned(Path(self.path))
        except OSError as error:
            raise _no_room(root or tempfile.gettempdir(), error) from error
        self._finalizer = weakref.finalize(self, _removed, self.path, owned)
        swept(os.path.dirname(self.path))

    def close(self) -> None:
        """Remove the folder with its content."""
        self._finalizer()


class Spilling:
    """Creates spills in folders below ``root``; ``written`` and ``nbytes`` count runs and bytes."""

    def __init__(self, root: str | None = None) -> None:
        self.root = root
        self.written = self.nbytes = 0

    def __call__(self, schema: Schema) -> DiskSpill:
        """Return a new spill for rows of ``schema``."""
        return DiskSpill(schema, self.root, self.wrote)

    def wrote(self, nbytes: int) -> None:
        """Count one run of ``nbytes`` bytes."""
        self.written += 1
        self.nbytes += nbytes


def write_run(path: Path, schema: Schema, blocks: Iterable[Block]) -> int:
    """Write rows of ``schema`` with their ids as one Arrow file, and return its size in bytes.

    Raise MemoryContractError if the disk has no room; then the file is removed.
    """
    ids = [pa.field(name, pa.uint64()) for name in ID_COLUMNS]
    stored = pa.schema([*schema.to_arrow(), *ids])
    try:
        path.touch(FILE)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, stored) as writer:
            for block in blocks:
                columns = [*block.to_arrow().columns, *map(pa.array, block.ids.arrays())]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=stored))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _no_room(str(path.parent), error) from error
    return path.stat().st_size


def block_read(schema: Schema, batch: pa.RecordBatch) -> Block:
    """Return the block that ``write_run`` wrote as ``batch``."""
    *columns, high, low = batch.columns
    ids = RowIds.of_arrays(high.to_numpy(), low.to_numpy())
    return Block(schema, tuple(from_arrow(column) for column in columns), ids)


def _owned(folder: Path) -> IO[Any]:
    """Return a file in ``folder``, locked against other processes while this one has it open.

    The file gets its name only after it is locked, so that no other process can lock it first.
    """
    # open as long as the folder is used
    file = open(folder / f"{LOCK}.new", "wb", opener=own_file)  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)
    os.rename(file.name, folder / LOCK)
    return file


def _removed(folder: str, owned: IO[Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    owned.close()


@cache
def swept(root: str) -> None:
    """Remove the spill folders in ``root`` whose owners are gone, once for each ``root``."""
    with suppress(OSError):
        for entry in os.scandir(root):
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError), open(os.path.join(entry.path, LOCK), "rb+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)


def _no_room(folder: str, error: OSError) -> MemoryContractError:
    return MemoryContractError(
        "rows that exceed the memory number could not be written to disk",
        at=folder,
        why=error.strerror or str(error),
        try_="spill_dir= a folder on a disk with room, or a larger memory_limit=",
    )
