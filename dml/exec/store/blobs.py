"""This file writes rows as blobs, and gives them back only if every bit is what was written.

On a disk they are mapped and not copied. A file is checked as a whole the first time that a process
opens it, and again when its inode, size or time of writing is another one.
"""

from __future__ import annotations

import threading

import pyarrow as pa
import xxhash

from dml.exec.store import layout
from dml.exec.store.aligned import pieces
from dml.exec.store.primitives import Fetched, Place
from dml.exec.store.records import Record

REMEMBERED = 1 << 16  # files known to be whole; then all are checked anew


def schema_digest(schema: pa.Schema) -> str:
    """Equal for equal schemas, with metadata."""
    return xxhash.xxh3_128_hexdigest(schema.serialize())


class Laid:
    """Rows as they will be written."""

    def __init__(self, table: pa.Table) -> None:
        self.pieces = list(pieces(table))
        self.size = sum(map(len, self.pieces))
        self.rows, self.schema = table.num_rows, schema_digest(table.schema)


class Blobs:
    """The blobs of one place, as this process knows them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._whole: set[str] = set()
        self._lock = threading.Lock()
        self.checked = 0

    def write(self, laid: Laid, cost_s: float) -> Record:
        """Write rows under a name of their own; what will be said of them."""
        name, found = layout.fresh_blob(), xxhash.xxh3_128()
        with self._place.writing(name) as sink:
            for piece in laid.pieces:
                found.update(piece)
                sink.write(piece)
        return Record(name, laid.size, laid.rows, found.hexdigest(), laid.schema, float(cost_s))

    def read(self, record: Record) -> pa.Table | None:
        """The rows of a record; None if they are gone, or are not those that were written."""
        blob = self._place.fetch(record.blob)
        if blob is None or blob.size != record.size or not self._is_whole(blob, record.digest):
            return None
        try:
            table = pa.ipc.open_file(pa.BufferReader(blob.buffer())).read_all()
        except (pa.ArrowInvalid, pa.ArrowSerializationError, OSError):
            return None
        same = schema_digest(table.schema) == record.schema and table.num_rows == record.rows
        return table if same else None

    def _is_whole(self, blob: Fetched, digest: str) -> bool:
        key = f"{blob.identity} {digest}"
        with self._lock:
            if blob.identity is not None and key in self._whole:
                return True
        found = xxhash.xxh3_128()
        for piece in blob.pieces():
            found.update(piece)
        whole = found.hexdigest() == digest
        with self._lock:
            self.checked += 1
            if whole and blob.identity is not None:
                if len(self._whole) >= REMEMBERED:
                    self._whole.clear()
                self._whole.add(key)
        return whole
