"""Write rows as blobs, and return rows only if every bit is as it was written.

Blobs on a disk are mapped and not copied. A file is checked as a whole the first time that a
process opens it, and again when its inode, size or modification time has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import xxhash

from dml.cache.parts import blob_digest, wide_columns
from dml.cache.parts.aligned_format import Laying
from dml.cache.parts.records import PartRecord
from dml.cache.parts.wide_columns import Runs, Wide, WideShape, starts
from dml.cache.store import layout
from dml.cache.store.local_copies import Copying
from dml.cache.store.primitives import Fetched, Sink, StorePlace

T = TypeVar("T")

Beside: TypeAlias = Callable[[str], Copying]
"""Begins a copy of the blob of that name."""

UNFIT = (ValueError, KeyError, IndexError, TypeError, AttributeError)  # raised by foreign files
SHAPES = 1 << 12  # most files whose layout is remembered
REMEMBERED = 1 << 16  # most files known to be whole; beyond that all are checked again


def schema_digest(schema: pa.Schema) -> str:
    """Return the digest of a schema and its metadata, as read back: names of fields may change."""
    read = pa.ipc.read_schema(schema.serialize())
    return xxhash.xxh3_128_hexdigest(read.serialize())


class PartRows(NamedTuple):
    """The rows of one part, with their description."""

    runs: Runs
    """The batches as stored: several may be stored as one, with the row count of each."""
    about: Mapping[str, Any]
    loaded_bytes: int = 0
    """Memory that they take while any of them lives; mapped rows take none."""
    cost_s: float = 0.0
    """Seconds that it took to make them."""
    nbytes: int = 0
    """Bytes of their blob."""
    read: bool = True
    """Whether all bytes were read and checked now; else the file was checked earlier."""
    copied: bool = False
    """Whether they come from a copy on this machine."""

    @property
    def came(self) -> tuple[int, int]:
        """The bytes that came from a local copy, and those that came from the store."""
        return (self.nbytes, 0) if self.copied else (0, self.nbytes)

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The batches as they were added to the part."""
        cuts = ((batch, zip(starts(rows), rows, strict=True)) for batch, rows in self.runs)
        return [batch.slice(start, count) for batch, each in cuts for start, count in each]


class Draft:
    """A blob that is written batch by batch, and is invisible until it is published."""

    def __init__(self, place: StorePlace, beside: Beside | None = None) -> None:
        self._place, self._name, self._beside = place, layout.fresh_blob(), beside
        self._copy: Copying | None = None
        self.near = place.maps  # True if no network is between this process and the blob
        self._digests, self._held = bytearray(), bytearray()
        self._sink: Sink | None = None
        self._laying: Laying | Wide | None = None
        self.schema: pa.Schema | None = None
        self.size = self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; raise ArrowInvalid if its schema differs or a file cannot hold it."""
        self._write(self._layer(batch.schema).batch(batch))
        self.rows += batch.num_rows

    def coming(self, batch: pa.RecordBatch) -> int:
        """Return a lower estimate of the size in bytes after ``batch`` is added."""
        return self.size + len(self._held) + int(batch.nbytes)

    def end(self, cost_s: float, about: Mapping[str, Any]) -> PartRecord:
        """Write the end of the file, and return the record of the part."""
        self._write(self._layer(self.schema or pa.schema([])).end())
        self._flush()
        schema = schema_digest(self.schema or pa.schema([]))
        digest = blob_digest.digest(bytes(self._digests))
        return PartRecord(self._name, self.size, self.rows, digest, schema, cost_s, about)

    def publish(self) -> None:
        """Give the blob, written to its end, its name in the store."""
        if self._sink is not None:
            self._sink.finish()

    def settle(self) -> None:
        """Publish the local copy, too, once the part is committed."""
        if self._copy is not None:
            self._copy.finish()

    def drop(self) -> None:
        """Remove the blob and its local copy, as far as they are not published."""
        for each in (self._sink, self._copy):
            if each is not None:
                each.drop()

    def _layer(self, schema: pa.Schema) -> Laying | Wide:
        if self._laying is None:
            self._sink = self._place.begin(self._name)
            self._copy = None if self._beside is None else self._beside(self._name)
            column = wide_columns.wide(schema)
            self._laying = Laying(schema) if column is None else Wide(schema, column)
            self.schema = schema
        elif not schema.equals(self.schema, check_metadata=True):
            raise pa.ArrowInvalid("batches of one part are of one schema")
        return self._laying

    def _write(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            left = piece
            while left:
                whole = blob_digest.PIECE_BYTES
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
        """Write the buffered bytes, and begin a new buffer.

        The old buffer is not reused, since a profiler may still reference it.
        """
        held, self._held = self._held, bytearray()
        self._put(memoryview(held))

    def _put(self, data: memoryview) -> None:
        if self._sink is not None and data:
            self._digests += blob_digest.of_piece(data)
            self._sink.write(data)
            self.size += len(data)
            if self._copy is not None:
                self._copy.write(data)


class Blobs:
    """The blobs of one place, with the results of checks that this process made."""

    def __init__(self, place: StorePlace) -> None:
        self._place = place
        self._whole: dict[str | None, bool] = {}
        self._shapes: dict[str | None, tuple[WideShape | None]] = {}
        self.checked = 0

    def read(self, record: PartRecord) -> PartRows | None:
        """Return the rows of a record; None if they are missing or damaged."""
        blob = self._place.fetch(record.blob)
        return None if blob is None else self.rows(blob, record, maps=self._place.maps)

    def rows(self, blob: Fetched, record: PartRecord, *, maps: bool) -> PartRows | None:
        """Return the rows of ``blob``; None if it does not match the record."""
        if not 0 < blob.size == record.size:
            return None
        key = None if blob.identity is None else f"{blob.identity} {record.digest}"
        checked, known = key in self._whole, self._shapes.get(key)
        if not checked and not self._is_whole(blob, record.digest, key):
            return None
        try:
            (shape,) = known or (wide_columns.shape_of(blob.buffer()),)
            schema, runs = wide_columns.read(blob.buffer(), shape)
            for batch, _ in () if known else runs:
                batch.validate(full=True)  # else offsets could point outside of the blob
        except (pa.ArrowException, OSError, *UNFIT):
            return None
        if known is None:
            rows = sum(batch.num_rows for batch, _ in runs)
            if schema_digest(schema) != record.schema or rows != record.rows:
                return None
            _remember(self._shapes, key, (shape,), SHAPES)
        loaded = 0 if maps else record.size
        return PartRows(runs, record.about, loaded, record.cost_s, record.size, not checked)

    def _is_whole(self, blob: Fetched, digest: str, key: str | None) -> bool:
        whole = blob_digest.of_blob(blob) == digest
        self.checked += 1
        if whole:
            _remember(self._whole, key, whole, REMEMBERED)
        return whole


def _remember(memo: dict[str | None, T], key: str | None, value: T, most: int) -> None:
    """Memoize what is known of the file ``key``, if that is known; forget all beyond ``most``."""
    if key is not None:
        if len(memo) >= most:
            memo.clear()
        memo[key] = value
