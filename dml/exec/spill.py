"""This file keeps sorted runs on local disk: Arrow IPC files that vanish with their owner."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from dml.expr.block import Block, from_arrow
from dml.expr.schema import Schema
from dml.kernels.ids import RowIds

ID_COLUMNS = ("\0high", "\0low")


class DiskSpill:
    """Runs of blocks of one schema, in a private folder that is removed with this object."""

    def __init__(self, schema: Schema, root: str | None = None) -> None:
        self.schema = schema
        self.folder = tempfile.mkdtemp(prefix=f"dml-spill-{os.getpid()}-", dir=root)
        self.paths: list[Path] = []
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def write(self, blocks: Iterator[Block]) -> None:
        """Append one run: a file of its own."""
        path = Path(self.folder) / f"{len(self.paths):05d}.arrow"
        ids = [pa.field(name, pa.uint64()) for name in ID_COLUMNS]
        schema = pa.schema([*self.schema.to_arrow(), *ids])
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for block in blocks:
                columns = [*block.to_arrow().columns, *map(pa.array, block.ids.arrays())]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        self.paths.append(path)

    def runs(self) -> list[Iterator[Block]]:
        """Every run from its start, block by block, over mapped memory."""
        return [self._read(path) for path in self.paths]

    def _read(self, path: Path) -> Iterator[Block]:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                *columns, high, low = batch.columns
                ids = RowIds.of_arrays(_array(high), _array(low))
                yield Block(self.schema, tuple(from_arrow(c) for c in columns), ids)

    def close(self) -> None:
        """Remove the files."""
        self._finalizer()


def _array(column: pa.Array) -> np.ndarray:
    return np.asarray(column.to_numpy())
