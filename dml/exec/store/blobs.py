"""This file writes rows as blobs, and gives them back only if every bit is what was written.

On a disk they are mapped and not copied. A file is checked as a whole the first time that a process
opens it, and again when its inode, size or time of writing is another one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from dml.exec.store import digests, layout
from dml.exec.store.aligned import Laying
from dml.exec.store.primitives import Fetched, Place, Sink
from dml.exec.store.records import Record

REMEMBERED = 1 << 16  # files known to be whole; then all are checked anew


def schema_digest(schema: pa.Schema) -> str:
    """Equal for equal schemas, with metadata, as a file gives them back: of maps Arrow renames."""
    read = pa.ipc.read_schema(schema.serialize())
    return xxhash.xxh3_128_hexdigest(read.serialize())


class Rows(NamedTuple):
    """The rows of one part, as they were added to it, and what was said of them."""

    batches: list[pa.RecordBatch]
    about: Mapping[str, Any]


class Draft:
    """Rows that are written as they come, and that nobody sees before they are published."""

    def __init__(self, place: Place) -> None:
        self._place, self._name = place, layout.fresh_blob()
        self.near = place.maps  # no network is between
        self._digests, self._held = bytearray(), bytearray()
        self._sink: Sink | None = None
        self._laying: Laying | None = None
        self.schema: pa.Schema | None = None
        self.size = self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of the schema of those before; ArrowInvalid for what a file cannot hold."""
        self._write(self._layer(batch.schema).batch(batch))
        self.rows += batch.num_rows

    def coming(self, batch: pa.RecordBatch) -> int:
        """About how many bytes it will have with a batch, and no more than it will."""
        return self.size + len(self._held) + int(batch.nbytes)

    def end(self, cost_s: float, about: Mapping[str, Any]) -> Record:
        """No more come; what will be said of them."""
        self._write(self._layer(self.schema or pa.schema([])).end())
        self._flush()
        schema = schema_digest(self.schema or pa.schema([]))
        digest = digests.digest(bytes(self._digests))
        return Record(self._name, self.size, self.rows, digest, schema, cost_s, about)

    def publish(self) -> None:
        """Give what has ended its name."""
        if self._sink is not None:
            self._sink.finish()

    def drop(self) -> None:
        """Leave nothing of it, if it is not published."""
        if self._sink is not None:
            self._sink.drop()

    def _layer(self, schema: pa.Schema) -> Laying:
        if self._laying is None:
            self._sink = self._place.begin(self._name)
            self._laying, self.schema = Laying(schema), schema
        elif not schema.equals(self.schema, check_metadata=True):
            raise pa.ArrowInvalid("batches of one part are of one schema")
        return self._laying

    def _write(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            left = piece
            while left:
                whole = digests.PIECE_BYTES
                if not self._held and len(left) >= whole:
                    taken, left = left[:whole], left[whole:]
                    self._put(taken)
                else:
                    room = whole - len(self._held)
                    self._held += left[:room]
                    left = left[room:]
                if len(self._held) == whole:
                    self._flush()

    def _flush(self) -> None:
        """Write what is held; a profiler that looks at frames may hold it for a moment longer."""
        held, self._held = self._held, bytearray()
        self._put(memoryview(held))

    def _put(self, data: memoryview) -> None:
        if self._sink is not None and data:
            self._digests += digests.of_piece(data)
            self._sink.write(data)
            self.size += len(data)


class Blobs:
    """The blobs of one place, as this process knows them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._whole: set[str] = set()
        self._lock = threading.Lock()
        self.checked = 0

    def begin(self) -> Draft:
        """Write rows under a name of their own."""
        return Draft(self._place)

    def read(self, record: Record) -> Rows | None:
        """The rows of a record; None if they are gone, or are not those that were written."""
        blob = self._place.fetch(record.blob)
        if (
            blob is None
            or not 0 < blob.size == record.size
            or not self._is_whole(blob, record.digest)
        ):
            return None
        try:
            file = pa.ipc.open_file(pa.BufferReader(blob.buffer()))
            batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        except (pa.ArrowInvalid, pa.ArrowSerializationError, OSError):
            return None
        rows = sum(batch.num_rows for batch in batches)
        same = schema_digest(file.schema) == record.schema and rows == record.rows
        return Rows(batches, record.about) if same else None

    def _is_whole(self, blob: Fetched, digest: str) -> bool:
        key = f"{blob.identity} {digest}"
        with self._lock:
            if blob.identity is not None and key in self._whole:
                return True
        whole = digests.of_blob(blob) == digest
        with self._lock:
            self.checked += 1
            if whole and blob.identity is not None:
                if len(self._whole) >= REMEMBERED:
                    self._whole.clear()
                self._whole.add(key)
        return whole
