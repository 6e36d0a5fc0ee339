"""Arrow IPC files are read by record batch: each record batch is a unit, decoded as a whole."""

from __future__ import annotations

import dataclasses
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.data.layouts import check_names
from dml.errors import SourceError
from dml.expr.node import op
from dml.io.files.file_schemas import TypedFile, TypedFiles, of_one_schema
from dml.io.files.files import (
    File,
    FilePart,
    FileSource,
    chosen,
    listed,
    numbered_parts,
    several,
    unreadable,
)
from dml.io.files.paths import FileKind, Paths
from dml.io.source import Unit
from dml.io.stores.byte_ranges import LONGEST, WINDOW, RandomReader, coalesced
from dml.io.stores.stores import Range, Remote

CONTINUED = 0xFFFFFFFF
# Numbers of the flatbuffer fields that are read here.
DICTIONARIES, BATCHES = 2, 3
KIND_FIELD, HEADER = 1, 2
DICTIONARY, BATCH, INSIDE = 2, 3, 1
LENGTH, BUFFERS, PACKED = 0, 2, 3
PLACE, BUFFER = struct.Struct("<qi4xq"), struct.Struct("<qq")
SIZE = 8  # bytes of the size before a compressed buffer; -1 means uncompressed
FAULTS = (ValueError, struct.error)

Fetch = Callable[[Sequence[tuple[int, int]]], Sequence[bytes]]
"""Returns the bytes of each range (start, stop) of a file."""


class BatchSizes(NamedTuple):
    """Row count and decoded bytes of each record batch; bytes include the file's dictionaries."""

    rows: tuple[int, ...]
    nbytes: tuple[int, ...]


class FlatbufferTable(NamedTuple):
    """A flatbuffer table at byte ``at``; offsets outside raise ValueError or struct.error."""

    data: bytes
    at: int

    def field(self, number: int) -> int:
        """Return the byte offset of field ``number``; 0 if the field is absent."""
        places = self.at - self.number("<i", self.at)
        if 6 + 2 * number > self.number("<H", places):
            return 0
        place = self.number("<H", places + 4 + 2 * number)
        return self.at + place if place else 0

    def number(self, form: str, at: int) -> int:
        """Unpack the number at byte ``at``; ``form`` is its format for the ``struct`` module."""
        if at < 0:
            raise ValueError("a header leads out of itself")
        return int(struct.unpack_from(form, self.data, at)[0])

    def inner(self, number: int) -> FlatbufferTable:
        """Return the table in field ``number``."""
        at = self.field(number)
        return FlatbufferTable(self.data, at + self.number("<I", at) if at else -1)

    def items(self, number: int, form: struct.Struct) -> list[tuple[int, ...]]:
        """Return the structs in the list of field ``number``; [] if the field is absent."""
        at = self.field(number)
        if not at:
            return []
        at += self.number("<I", at)
        stop = at + 4 + self.number("<I", at) * form.size
        if stop > len(self.data):
            raise ValueError("a list in a header is longer than the header")
        return list(form.iter_unpack(self.data[at + 4 : stop]))


def sizes_in(footer: bytes, size: int, fetch: Fetch) -> BatchSizes:
    """Return the sizes of the record batches of a file of ``size`` bytes with this ``footer``.

    ``fetch`` is called for the headers of the batches, and returns the bytes of each range. Raise
    ValueError or struct.error if the file is damaged.
    """
    root = FlatbufferTable(footer, struct.unpack_from("<I", footer)[0])
    kinds = (DICTIONARIES, DICTIONARY), (BATCHES, BATCH)
    found = [(kind, *place) for number, kind in kinds for place in root.items(number, PLACE)]
    for _, start, length, body in found:
        if min(start, length, body) < 0 or start + length + body > size:
            raise ValueError("a record batch lies outside of the file")
    heads = fetch([(start, start + length) for _, start, length, _ in found])
    tables = [_batch(head, kind) for head, (kind, *_) in zip(heads, found, strict=True)]
    starts = [(start + length, body) for _, start, length, body in found]
    packed = [_packed(*pair) for pair in zip(tables, starts, strict=True)]
    said = iter(fetch([(at, at + SIZE) for places in packed for at, _ in places]))
    nbytes = [
        sum(_unpacked(next(said), length) for _, length in places) if places else body
        for places, (_, body) in zip(packed, starts, strict=True)
    ]
    first = sum(kind == DICTIONARY for kind, *_ in found)
    shared = sum(nbytes[:first])
    return BatchSizes(tuple(map(_rows, tables[first:])), tuple(n + shared for n in nbytes[first:]))


def _batch(head: bytes, kind: int) -> FlatbufferTable:
    """Return the record batch table of message ``head``; ``kind`` is BATCH or DICTIONARY."""
    start = 8 if struct.unpack_from("<I", head)[0] == CONTINUED else 4
    message = FlatbufferTable(head[start:], struct.unpack_from("<I", head, start)[0])
    if message.number("<B", message.field(KIND_FIELD)) != kind:
        raise ValueError("a message is not of the kind that the footer says")
    header = message.inner(HEADER)
    return header.inner(INSIDE) if kind == DICTIONARY else header


def _rows(table: FlatbufferTable) -> int:
    at = table.field(LENGTH)
    rows = table.number("<q", at) if at else 0
    if rows < 0:
        raise ValueError(f"a record batch has {rows} rows")
    return rows


def _packed(table: FlatbufferTable, place: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the file offset and the stored size in bytes of each compressed buffer of a batch.

    ``place`` is the offset and the size of the batch's body. The list is empty for an uncompressed
    batch.
    """
    if not table.field(PACKED):
        return []
    start, body = place
    found = [each for each in table.items(BUFFERS, BUFFER) if each[1]]
    if any(at < 0 or length < SIZE or at + length > body for at, length in found):
        raise ValueError("a buffer lies outside of its record batch")
    return [(start + at, length) for at, length in found]


def _unpacked(said: bytes, length: int) -> int:
    size = int.from_bytes(said, "little", signed=True)
    if size < -1:
        raise ValueError(f"a buffer has {size} bytes")
    return length - SIZE if size == -1 else size


KIND = FileKind("Arrow", (".arrow", ".feather", ".ipc"))
MAGIC = b"ARROW1"
NO_COLUMNS = pa.schema([])
DAMAGE = (OSError, pa.ArrowException, UnicodeDecodeError)
# Copies of a batch: stored and decoded.
COPIES = 2
# Bytes read from the end of a file, for its footer.
TAIL = 64 << 10


@dataclasses.dataclass(frozen=True, eq=False)
class ArrowFile(TypedFile):
    """An Arrow file; for a file in a store, also its footer, which every read needs."""

    footer: bytes = dataclasses.field(default=b"", kw_only=True, repr=False)


class ArrowFiles(TypedFiles[ArrowFile]):
    """Arrow files, whose record batch sizes are computed once."""

    word: ClassVar[str] = "arrow files"

    @cached_property
    def counted(self) -> tuple[BatchSizes, ...]:
        """For every file, the row counts and decoded bytes of its record batches."""
        return tuple(map(_counted, self.files))


@dataclasses.dataclass(frozen=True, slots=True)
class RecordBatchPart(FilePart):
    """A record batch with at least one row."""

    file: ArrowFile
    word: ClassVar[str] = "record batch"


@op
class ArrowSource(FileSource):
    """Rows of Arrow IPC files in order of file name, record batch, row.

    A unit is a record batch, divided into atoms of equally many rows (the last may have fewer).
    """

    files: ArrowFiles
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None
    word: ClassVar[str] = "arrow"

    @cached_property
    def parts(self) -> tuple[RecordBatchPart, ...]:
        """The record batches that have rows."""
        found: list[RecordBatchPart] = []
        for file, batches in zip(self.files.files, self.files.counted, strict=True):
            sizes = zip(*batches, strict=True)
            found += numbered_parts(RecordBatchPart, file, sizes, self.atom_rows)
        return tuple(found)

    def decoded(self, index: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return ``columns`` of a record batch, validated by Arrow; raise SourceError on damage."""
        part = self.parts[index]
        names = part.file.arrow_schema.names
        wanted = sorted(names.index(name) for name in columns)
        try:
            with _reader(part.file, wanted) as reader:
                batch = reader.get_batch(part.number)
            batch.validate(full=True)
        except DAMAGE as error:
            part.file.check_unchanged()
            raise SourceError(
                f"record batch {part.number} of {part.file.name} is damaged",
                at=f"{part.file.path}, rows {part.first_row} to {part.first_row + part.rows - 1}",
                why=" ".join(str(error).split()),
                try_="copy or write the file again",
            ) from error
        if batch.num_rows != part.rows:
            raise SourceError(f"{part.place} has {batch.num_rows} rows, and had {part.rows}")
        return batch.select(list(columns))

    def likeness(self) -> bytes:
        """Return a digest of the sizes of the files and row counts of their batches."""
        pairs = zip(self.files.files, self.files.counted, strict=True)
        return digest("batches", [(file.size, sizes.rows) for file, sizes in pairs])

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Estimate the bytes of a record batch, stored and decoded, and of a fetch from a store."""
        part = self.parts[unit.index]
        return COPIES * part.nbytes + (WINDOW if part.file.remote else 0)


@contextmanager
def _reader(
    opened: ArrowFile, fields: list[int] | None = None
) -> Iterator[pa.RecordBatchFileReader]:
    """Open a file to read the fields with numbers ``fields`` (None: all), on this thread.

    The file is not mapped into memory, since files may shrink.
    """
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
    there = opened.remote
    if there is None:
        source: pa.NativeFile = pa.OSFile(opened.path)
    else:
        held = [(there.size - len(opened.footer), opened.footer)]
        source = pa.PythonFile(RandomReader(there, held), mode="r")
    with source as file, pa.ipc.open_file(file, options=options) as reader:
        yield reader


def _counted(file: ArrowFile) -> BatchSizes:
    """Return the sizes of the record batches of a file from its headers, without decompression."""
    file.check_unchanged(fetching=True)
    try:
        footer = (file.footer or _ends(file)[1])[: -len(MAGIC) - 4]
        fetch: Fetch = file.fetch if file.remote is None else partial(_fetched, file.remote)
        return sizes_in(footer, file.size, fetch)
    except (*DAMAGE, *FAULTS) as error:
        raise _damaged(file.path, error) from None


def _fetched(there: Remote, ranges: Sequence[Range]) -> list[bytes]:
    """Return the bytes of each of ``ranges`` of a file in a store; close ranges are merged."""
    found: dict[Range, bytes] = {}
    left = deque(sorted(ranges))
    for some in _rounds(coalesced(ranges)):
        data = there.fetch(some, checked=False)
        held = RandomReader(there, [(a, part) for (a, _), part in zip(some, data, strict=True)])
        while left and left[0][0] < some[-1][1]:
            start, stop = left.popleft()
            held.seek(start)
            found[start, stop] = bytes(held.read(stop - start))
    return [found.get((start, stop), b"") for start, stop in ranges]


def _rounds(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Group ``ranges`` into lists of at most ``LONGEST`` bytes, or of one longer range."""
    found, nbytes = list[Range](), 0
    for start, stop in ranges:
        if found and nbytes + stop - start > LONGEST:
            yield found
            found, nbytes = [], 0
        found.append((start, stop))
        nbytes += stop - start
    if found:
        yield found


def _opened(file: File) -> ArrowFile:
    """Read the schema of a file, and its footer in a store; raise SourceError for damage."""
    path = file.path
    try:
        head, footer = _ends(file)
        if head != MAGIC:
            raise SourceError(
                f"{path} is not an Arrow file",
                why=f"it begins with {head!r}, Arrow IPC files begin with {MAGIC!r}",
                try_="a file of the IPC file format; pyarrow.ipc.open_stream reads streams",
            )
        state = (path, file.name, file.size, file.mtime_ns, NO_COLUMNS)
        unknown = ArrowFile(*state, remote=file.remote, footer=footer if file.remote else b"")
        with _reader(unknown) as reader:
            schema = reader.schema
        check_names(pa.struct(list(schema)))
        return dataclasses.replace(unknown, arrow_schema=schema)
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from None
        raise _damaged(path, error) from None


def _ends(file: File) -> tuple[bytes, bytes]:
    """Read the first bytes and the footer of a file, of a store in one request if small."""
    size = file.size
    head = (0, min(size, len(MAGIC)))
    first, tail = file.fetch([head, (max(0, size - TAIL), size)])
    needed = min(
        size, int.from_bytes(tail[-len(MAGIC) - 4 : -len(MAGIC)], "little") + len(MAGIC) + 4
    )
    if len(tail) < needed and tail.endswith(MAGIC):
        tail = file.fetch([(size - needed, size)])[0]
    return first, tail[-needed:]


def _damaged(path: str, error: Exception) -> SourceError:
    return SourceError(
        f"{path} is damaged",
        why=" ".join(str(error).split()),
        try_="copy or write it again; an upload may not have finished",
    )


def read_arrow(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ArrowSource:
    """Read rows of Arrow IPC files: a file, a folder, a pattern, or a list of these.

    As with ``read_parquet``, files are read in order of their names, all have one schema, and
    dictionary columns are decoded. A record batch is read as a whole. Raises SourceError for files
    that are absent, damaged, of differing schemas, or streams; SchemaError for an absent column.
    """
    root, listing, given = listed(paths, KIND, storage_options)
    files = ArrowFiles(root, of_one_schema(several(_opened, listing)), given)
    return ArrowSource(files, chosen(columns, "read_arrow"), atom_rows)
