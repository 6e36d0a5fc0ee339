"""This file writes rows as blobs, and gives them back only if every bit is what was written.

On a disk they are mapped and not copied. A file is checked as a whole the first time that a process
opens it, and again when its inode, size or time of writing is another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import xxhash

from dml.exec.store import digests, layout, wide
from dml.exec.store.aligned import Laying
from dml.exec.store.primitives import Fetched, Place, Sink
from dml.exec.store.records import Record
from dml.exec.store.wide import Runs, Shape, Wide

if TYPE_CHECKING:
    from dml.exec.store.copies import Copying

    Beside = Callable[[str], Copying]

UNFIT = (ValueError, KeyError, IndexError, TypeError, AttributeError)  # written by no one of ours
SHAPES = 1 << 12  # files of which it is remembered how they are laid out
REMEMBERED = 1 << 16  # files known to be whole; then all are checked anew


def schema_digest(schema: pa.Schema) -> str:
    """Equal for equal schemas, with metadata, as a file gives them back: of maps Arrow renames."""
    read = pa.ipc.read_schema(schema.serialize())
    return xxhash.xxh3_128_hexdigest(read.serialize())


class Rows(NamedTuple):
    """The rows of one part, as they were added to it, and what was said of them."""

    batches: Sequence[pa.RecordBatch]
    about: Mapping[str, Any]
    loaded_bytes: int = 0
    """What they take of memory, as long as any of them lives; mapped ones take none."""
    cost_s: float = 0.0
    """What it took to make them."""
    nbytes: int = 0
    """Bytes of their blob."""
    read: bool = True
    """Whether all of them were read for this; else some may have been, and others are as known."""
    copied: bool = False
    """Whether they are those of a copy on this machine."""

    @property
    def came(self) -> tuple[int, int]:
        """Bytes that came from a copy, and from the store."""
        return (self.nbytes, 0) if self.copied else (0, self.nbytes)

    @property
    def runs(self) -> Runs:
        """The batches as they lie: some are put together in one, of so many rows each."""
        return wide.runs_of(self.batches)


class Draft:
    """Rows that are written as they come, and that nobody sees before they are published."""

    def __init__(self, place: Place, beside: Beside | None = None) -> None:
        self._place, self._name, self._beside = place, layout.fresh_blob(), beside
        self._copy: Copying | None = None
        self.near = place.maps  # no network is between
        self._digests, self._held = bytearray(), bytearray()
        self._sink: Sink | None = None
        self._laying: Laying | Wide | None = None
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

    def settle(self) -> None:
        """It is what counts: so does its copy on this machine."""
        if self._copy is not None:
            self._copy.finish()

    def drop(self) -> None:
        """Leave nothing of it, if it is not published, nor of its copy, if that is not settled."""
        for each in (self._sink, self._copy):
            if each is not None:
                each.drop()

    def _layer(self, schema: pa.Schema) -> Laying | Wide:
        if self._laying is None:
            self._sink = self._place.begin(self._name)
            self._copy = None if self._beside is None else self._beside(self._name)
            column = wide.wide(schema)
            self._laying = Laying(schema) if column is None else Wide(schema, column)
            self.schema = schema
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
            if self._copy is not None:
                self._copy.write(data)


class Blobs:
    """The blobs of one place, as this process knows them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._whole: set[str] = set()
        self._shapes: dict[str, Shape | None] = {}
        self._lock = threading.Lock()
        self.checked = 0

    def begin(self, beside: Beside | None = None) -> Draft:
        """Write rows under a name of their own."""
        return Draft(self._place, beside)

    def read(self, record: Record) -> Rows | None:
        """The rows of a record; None if they are gone, or are not those that were written."""
        blob = self._place.fetch(record.blob)
        return None if blob is None else self.rows(blob, record, maps=self._place.maps)

    def rows(self, blob: Fetched, record: Record, *, maps: bool) -> Rows | None:
        """The rows of a blob, if it is what a record says."""
        if not 0 < blob.size == record.size:
            return None
        key = None if blob.identity is None else f"{blob.identity} {record.digest}"
        checked = self._checked(key)
        if not checked and not self._is_whole(blob, record.digest, key):
            return None
        try:
            shape, known = self._shape(blob, key)
            schema, batches = wide.read(blob.buffer(), shape)
            for batch, _ in () if known else wide.runs_of(batches):
                batch.validate(full=True)  # or offsets could lead to memory beside the blob
        except (pa.ArrowException, OSError, *UNFIT):
            return None
        if not known:
            rows = sum(batch.num_rows for batch in batches)
            if schema_digest(schema) != record.schema or rows != record.rows:
                return None
            self._know(key, shape)
        loaded = 0 if maps else record.size
        return Rows(batches, record.about, loaded, record.cost_s, record.size, not checked)

    def _shape(self, blob: Fetched, key: str | None) -> tuple[Shape | None, bool]:
        """What a blob says of itself, and whether it was found to be right before."""
        with self._lock:
            if key is not None and key in self._shapes:
                return self._shapes[key], True
        return wide.shape_of(blob.buffer()), False

    def _know(self, key: str | None, shape: Shape | None) -> None:
        with self._lock:
            if key is not None:
                if len(self._shapes) >= SHAPES:
                    self._shapes.clear()
                self._shapes[key] = shape

    def _checked(self, key: str | None) -> bool:
        """Whether a file was found to be whole before."""
        with self._lock:
            return key is not None and key in self._whole

    def _is_whole(self, blob: Fetched, digest: str, key: str | None) -> bool:
        whole = digests.of_blob(blob) == digest
        with self._lock:
            self.checked += 1
            if whole and key is not None:
                if len(self._whole) >= REMEMBERED:
                    self._whole.clear()
                self._whole.add(key)
        return whole
