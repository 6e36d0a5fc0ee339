"""This file reads Arrow IPC files: record batches are the units, each decoded at once."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pyarrow as pa

from dml.errors import SourceError
from dml.expr.block import Block
from dml.expr.computed import cached_property
from dml.expr.fingerprint import digest
from dml.expr.node import op
from dml.expr.schema import Schema
from dml.expr.sources.arrow_sizes import FAULTS, Sizes, sizes_in
from dml.expr.sources.encoded import check_texts
from dml.expr.sources.file_schemas import TypedFile, check_columns, check_same, columns_in
from dml.expr.sources.files import (
    File,
    FileSet,
    FileSource,
    Part,
    bare,
    chosen,
    listed,
    several,
    unreadable,
)
from dml.expr.sources.paths import Kind, Paths
from dml.expr.sources.ranges import LONGEST, WINDOW, RandomReader, coalesced
from dml.expr.sources.source import Unit, balanced
from dml.expr.sources.stores import Range, Remote
from dml.kernels.ids import RowIds

KIND = Kind("Arrow", (".arrow", ".feather", ".ipc"))
MAGIC = b"ARROW1"
NO_COLUMNS = pa.schema([])
DAMAGE = (OSError, pa.ArrowException, UnicodeDecodeError)
# A batch as it is stored, and as it is decoded.
COPIES = 2
# What is fetched of the end of a file in a store, for its footer.
TAIL = 64 << 10


@dataclasses.dataclass(frozen=True, eq=False)
class ArrowFile(TypedFile):
    """A file with its footer, if it is in a store: it is needed for every batch."""

    footer: bytes = dataclasses.field(default=b"", kw_only=True, repr=False)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ArrowFiles(FileSet):
    """Files whose schemas were read; what was counted in them stays with them."""

    files: tuple[ArrowFile, ...]

    @cached_property
    def digest(self) -> bytes:
        """Name of the set: file names and schema, no content."""
        return digest("arrow files", tuple(f.name for f in self.files), self.schema.to_arrow())

    @cached_property
    def schema(self) -> Schema:
        """Columns of every file; dictionary encoding is taken off."""
        return Schema(columns_in(self.files[0].arrow_schema))

    @cached_property
    def counted(self) -> tuple[Sizes, ...]:
        """For every file, the rows of its batches, and the bytes that they unpack to."""
        return tuple(map(_counted, self.files))


@dataclasses.dataclass(frozen=True, slots=True)
class Batch(Part):
    """A record batch with rows."""

    file: ArrowFile

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.file.name}, record batch {self.number}"


@op
class ArrowSource(FileSource):
    """Rows of Arrow IPC files in order of file name, record batch, row.

    A unit is a record batch, and atoms are equal runs of its rows.
    """

    files: ArrowFiles
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None
    word: ClassVar[str] = "arrow"

    @cached_property
    def parts(self) -> tuple[Batch, ...]:
        """The record batches that have rows."""
        pairs = zip(self.files.files, self.files.counted, strict=True)
        return tuple(batch for file, sizes in pairs for batch in self._batches(file, sizes))

    def _batches(self, file: ArrowFile, sizes: Sizes) -> Iterator[Batch]:
        first = 0
        for number, (rows, nbytes) in enumerate(zip(*sizes, strict=True)):
            if rows:
                each = self.atom_rows or balanced(rows, nbytes)
                yield Batch(file, number, first, rows, each, nbytes)
            first += rows

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Decode a record batch, and cut it; memory is that of the batch.

        Raises SourceError where the file is damaged, or has changed since it was opened, and
        MemoryContractError for an atom of few long texts that are many once they are decoded.
        """
        part = self.parts[unit.index]
        part.file.check_unchanged(fetching=bool(columns))
        starts = range(skip_atoms * part.atom_rows, part.rows, part.atom_rows)
        if not columns:
            yield from (bare(part, start) for start in starts)
            return
        batch = self._decoded(part, columns)
        for start in starts:
            part.file.check_unchanged(fetching=True)
            piece = batch.slice(start, part.atom_rows)
            check_texts(piece, unit.most_bytes, unit.place)
            ids = RowIds.run(part.file.key, part.first_row + start, piece.num_rows)
            yield Block.from_arrow(piece, ids, self.projected(columns))

    def _decoded(self, part: Batch, columns: tuple[str, ...]) -> pa.RecordBatch:
        """The columns of a record batch, checked to be what Arrow allows."""
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
        """Sizes of the files, and rows of their batches."""
        pairs = zip(self.files.files, self.files.counted, strict=True)
        return digest("batches", [(file.size, sizes.rows) for file, sizes in pairs])

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """A whole batch: as it is stored, and decoded; of a store what comes along with it."""
        part = self.parts[unit.index]
        return COPIES * part.nbytes + (WINDOW if part.file.remote else 0)

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """The batch's share of the file."""
        part = self.parts[unit.index]
        return part.file.size * part.rows // self._rows_in[part.file.key]

    @cached_property
    def _rows_in(self) -> dict[int, int]:
        """Rows of every file, by its key."""
        pairs = zip(self.files.files, self.files.counted, strict=True)
        return {file.key: sum(sizes.rows) for file, sizes in pairs}


@contextmanager
def _reader(
    opened: ArrowFile, fields: list[int] | None = None
) -> Iterator[pa.RecordBatchFileReader]:
    """Reads ``fields``, all if None; on this thread, and not mapped: files may be cut off."""
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
    there = opened.remote
    if there is None:
        source: pa.NativeFile = pa.OSFile(opened.path)
    else:
        held = [(there.size - len(opened.footer), opened.footer)]
        source = pa.PythonFile(RandomReader(there, held), mode="r")
    with source as file, pa.ipc.open_file(file, options=options) as reader:
        yield reader


def _counted(file: ArrowFile) -> Sizes:
    """What the headers of a file say of its batches; nothing is unpacked."""
    file.check_unchanged(fetching=True)
    try:
        if file.remote is not None:
            there = file.remote
            footer = file.footer[: -len(MAGIC) - 4]
            return sizes_in(footer, file.size, lambda ranges: _fetched(there, ranges))
        with open(file.path, "rb") as opened:
            number = opened.fileno()
            opened.seek(file.size - len(MAGIC) - 4)
            length = int.from_bytes(opened.read(4), "little")
            footer = os.pread(number, length, file.size - len(MAGIC) - 4 - length)
            return sizes_in(
                footer, file.size, lambda ranges: [os.pread(number, b - a, a) for a, b in ranges]
            )
    except (*DAMAGE, *FAULTS) as error:
        raise _damaged(file.path, error) from None


def _fetched(there: Remote, ranges: Sequence[Range]) -> list[bytes]:
    """The bytes of ranges of a file in a store; little of what lies between them is held."""
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
    """Ranges that are fetched together."""
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
    """The schema of one file; SourceError that says what is wrong with it."""
    path = file.path
    try:
        head, footer = _ends(file) if file.remote is not None else (_head(path), b"")
        if head != MAGIC:
            raise SourceError(
                f"{path} is not an Arrow file",
                why=f"it begins with {head!r}, Arrow IPC files begin with {MAGIC!r}",
                try_="a file of the IPC file format; pyarrow.ipc.open_stream reads streams",
            )
        unknown = ArrowFile(
            path, file.name, file.size, file.mtime_ns, NO_COLUMNS, remote=file.remote, footer=footer
        )
        with _reader(unknown) as reader:
            schema = reader.schema
        for kind in (pa.struct(list(schema)), *(field.type for field in schema)):
            _check_names(kind)
        return dataclasses.replace(unknown, arrow_schema=schema)
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from None
        raise _damaged(path, error) from None


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(len(MAGIC))


def _ends(file: File) -> tuple[bytes, bytes]:
    """The first bytes of a file in a store, and its footer, together if they are not large."""
    there, size = file.remote, file.size
    if there is None:
        return b"", b""
    head = (0, min(size, len(MAGIC)))
    first, tail = there.fetch([head, (max(0, size - TAIL), size)], checked=False)
    needed = min(
        size, int.from_bytes(tail[-len(MAGIC) - 4 : -len(MAGIC)], "little") + len(MAGIC) + 4
    )
    if len(tail) < needed and tail.endswith(MAGIC):
        tail = there.fetch([(size - needed, size)], checked=False)[0]
    return first, tail[-needed:]


def _check_names(kind: pa.DataType) -> None:
    """UnicodeDecodeError for a name inside that is no text, which nobody could ask for."""
    for number in range(kind.num_fields):
        field = kind.field(number)
        if field.name is not None:
            _check_names(field.type)


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
    """Rows of Arrow IPC files: a file, a folder, a pattern, or a list of these.

    As ``read_parquet``: files in order of their names, all of one schema, dictionary columns
    decoded. A record batch is read as a whole. Raises SourceError for files that are absent,
    damaged, of differing schemas, or streams; SchemaError for a column that is not there.
    """
    root, listing, given = listed(paths, KIND, storage_options)
    files = tuple(several(_opened, listing))
    check_columns(files[0])
    for file in files[1:]:
        check_same(files[0], file)
    found = ArrowFiles(root, files, given)
    return ArrowSource(found, chosen(columns, "read_arrow"), atom_rows)
