"""This file reads Parquet footers: schema, row groups, their atoms, and what a file suffers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from dml.errors import SourceError
from dml.expr.fingerprint import digest
from dml.expr.schema import Schema, short
from dml.expr.sources.parquet_chunks import Chunk, Chunks, DamageError, read_chunks
from dml.expr.sources.parquet_paths import Paths, expand, missing
from dml.expr.sources.source import ATOM_BYTES, ATOM_ROWS
from dml.kernels.ids import source_key

MAGIC, ENCRYPTED, FRAME = b"PAR1", b"PARE", 12
FOOTER_THREADS = 16

WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}


@dataclasses.dataclass(frozen=True, eq=False)
class ParquetFile:
    """One file as its footer described it; ``name`` is its name in the set of files."""

    path: str
    name: str
    size: int
    mtime_ns: int
    metadata: pq.FileMetaData
    arrow_schema: pa.Schema
    chunks: Chunks

    @cached_property
    def key(self) -> int:
        """What the ids of this file's rows share."""
        return source_key(self.name)

    @cached_property
    def leaves(self) -> dict[str, range]:
        """Numbers of the physical columns that each column is stored in."""
        counts = [_leaf_count(field.type) for field in self.arrow_schema]
        ends = list(accumulate(counts))
        return {
            field.name: range(end - count, end)
            for field, count, end in zip(self.arrow_schema, counts, ends, strict=True)
        }

    def check_unchanged(self) -> None:
        """SourceError if the file is no longer the one whose footer was read."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise _unreadable(self.path, error) from None
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceError(
                f"{self.name} has changed since it was opened",
                at=self.path,
                why=f"it had {self.size} bytes and now has {now.st_size}"
                if now.st_size != self.size
                else f"it has still {self.size} bytes, but was written to",
                try_="read_parquet again, on files that nobody writes",
            )


@dataclasses.dataclass(frozen=True, eq=False)
class FileSet:
    """Files of one schema below one folder, in order of their names; ``given`` is for people.

    The name (``digest``) is made of the names in the folder and the schema: the same elsewhere.
    """

    root: str
    files: tuple[ParquetFile, ...]
    given: str

    @cached_property
    def digest(self) -> bytes:
        """Name of the set: file names and schema, no content."""
        return digest("parquet files", tuple(f.name for f in self.files), self.schema.to_arrow())

    @cached_property
    def schema(self) -> Schema:
        """Columns of every file; dictionary encoding is taken off."""
        return Schema(columns_in(self.files[0].arrow_schema))

    def __repr__(self) -> str:
        return self.given


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A row group with rows: where it is, and how it is cut into atoms."""

    file: ParquetFile
    number: int
    first_row: int
    rows: int
    atom_rows: int
    nbytes: int

    @property
    def atoms(self) -> int:
        """How many atoms it is cut into."""
        return -(-self.rows // self.atom_rows)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.file.name}, row group {self.number}"

    def chunks(self, columns: Iterable[str]) -> list[Chunk]:
        """What the footer says of each physical column that ``columns`` are stored in."""
        file = self.file
        leaves = [leaf for name in columns for leaf in file.leaves[name]]
        return [file.chunks.chunk(self.number, leaf) for leaf in leaves]


def open_files(paths: Paths) -> FileSet:
    """Read the footers of all files that ``paths`` mean; SourceError unless all are alike."""
    root, names = expand(paths)
    jobs = [(os.path.join(root, name), name) for name in names]
    if len(jobs) == 1:
        files = [read_footer(*jobs[0])]
    else:
        with ThreadPoolExecutor(min(FOOTER_THREADS, len(jobs))) as pool:
            files = list(pool.map(read_footer, *zip(*jobs, strict=True)))
    _check_columns(files[0])
    for file in files[1:]:
        _check_same(files[0], file)
    shown = (
        repr(os.fspath(paths)) if isinstance(paths, str | os.PathLike) else f"{len(files)} files"
    )
    return FileSet(root, tuple(files), shown)


def read_footer(path: str, name: str) -> ParquetFile:
    """The footer of one file; SourceError that says what is wrong with it."""
    try:
        found = os.stat(path)
        _check_frame(path, found.st_size)
        with pa.OSFile(path) as source:
            opened = pq.ParquetFile(source)
            metadata, schema = opened.metadata, opened.schema_arrow
        chunks = read_chunks(_footer_bytes(path, found.st_size), _kinds(metadata))
    except (DamageError, UnicodeDecodeError) as error:  # names of columns are UTF-8
        raise _damaged_footer(path, str(error)) from None
    except pa.ArrowException as error:
        raise _damaged_footer(path, str(error)) from None
    except OSError as error:
        if error.errno is None:  # pyarrow: the footer cannot be parsed
            raise _damaged_footer(path, str(error)) from None
        raise _unreadable(path, error) from None
    return ParquetFile(path, name, found.st_size, found.st_mtime_ns, metadata, schema, chunks)


def footer_digest(file: ParquetFile) -> bytes:
    """Digest of the bytes of a file's footer: schema, places, sizes, statistics."""
    return xxhash.xxh3_128_digest(file.chunks.footer)


def _footer_bytes(path: str, size: int) -> bytes:
    """The footer of a file of ``size`` bytes, without its length and the magic."""
    with open(path, "rb") as file:
        file.seek(size - 8)
        length = int.from_bytes(file.read(4), "little")
        file.seek(size - 8 - length)
        return file.read(length)


def _kinds(metadata: pq.FileMetaData) -> list[str]:
    """Physical type of every physical column."""
    return [metadata.schema.column(i).physical_type for i in range(len(metadata.schema))]


def _check_frame(path: str, size: int) -> None:
    """Look at the first and last bytes, which say most of what can be wrong."""
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    if size == 0:
        raise SourceError(f"{path} is empty", why="it has 0 bytes", try_="write it again")
    if ENCRYPTED in (head, tail[4:]):
        raise SourceError(f"{path} is encrypted", why="encrypted Parquet is not supported")
    if head != MAGIC:
        raise SourceError(
            f"{path} is not a Parquet file",
            why=f"it begins with {head!r}, Parquet begins with {MAGIC!r}",
            try_="a pattern that leaves it out, such as 'folder/*.parquet'",
        )
    if size < FRAME or tail[4:] != MAGIC:
        raise SourceError(
            f"{path} is truncated",
            why=f"it has {size} bytes and ends with {tail[-4:]!r}, not with {MAGIC!r}",
            try_="copy or write it again; an upload may not have finished",
        )
    footer = int.from_bytes(tail[:4], "little")
    if footer > size - FRAME:
        raise _damaged_footer(path, f"a footer of {footer} bytes cannot be in {size} bytes")


def _damaged_footer(path: str, why: str) -> SourceError:
    return SourceError(f"the footer of {path} is damaged", why=why, try_="copy or write it again")


def _unreadable(path: str, error: OSError) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return missing(path)
    return SourceError(f"{path} cannot be read", why=error.strerror or str(error))


def columns_in(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Names and types as they are delivered."""
    for field in schema:
        is_coded = pa.types.is_dictionary(field.type)
        yield field.name, field.type.value_type if is_coded else field.type


def _check_columns(file: ParquetFile) -> None:
    """Refuse two columns of one name, and files without columns."""
    names = file.arrow_schema.names
    if not names:
        raise SourceError(f"{file.name} has no columns", at=file.path)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SourceError(
            f"{file.name} has two columns called {twice!r}",
            at=file.path,
            try_="write it again under different names",
        )


def _check_same(first: ParquetFile, other: ParquetFile) -> None:
    """Refuse a file whose columns differ from the first file's (nullability aside)."""
    here, there = (list(columns_in(f.arrow_schema)) for f in (first, other))
    if here == there:
        return
    types, others = dict(here), dict(there)
    at = f"{first.path} and {other.path}"
    for name in (*types, *others):
        if name not in types or name not in others:
            has, lacks = (first, other) if name in types else (other, first)
            raise SourceError(
                f"{lacks.name} has no column {name!r}, {has.name} has",
                at=at,
                why="files of one source have the same columns",
                try_="two sources with the columns they share, then concat",
            )
        if types[name] != others[name]:
            raise SourceError(
                f"column {name!r} is {short(types[name])} in {first.name}"
                f" and {short(others[name])} in {other.name}",
                at=at,
                why="files of one source have the same types",
                try_="two sources, .cast(...), then concat",
            )
    name = next(b for (a, _), (b, _) in zip(here, there, strict=True) if a != b)
    raise SourceError(
        f"column {name!r} stands at another place in {other.name} than in {first.name}",
        at=at,
        why="files of one source have the same columns in the same order",
        try_="two sources with .select(...), then concat",
    )


def row_groups(files: Sequence[ParquetFile], atom_rows: int | None) -> Iterator[Group]:
    """The row groups that have rows, in order, each cut into atoms.

    Atoms are equal: as few as keep 65,536 rows and about 8 MiB; ``atom_rows`` says otherwise.
    """
    for file in files:
        widths = _Widths(file)
        first_row = 0
        for number, rows in enumerate(file.chunks.rows):
            if rows:
                nbytes = widths.decoded(number)
                yield Group(
                    file, number, first_row, rows, atom_rows or balanced(rows, nbytes), nbytes
                )
            first_row += rows


def balanced(rows: int, nbytes: int) -> int:
    """Rows of an atom, for a row group of ``rows`` rows that decodes to ``nbytes``."""
    most = max(1, min(ATOM_ROWS, ATOM_BYTES * rows // max(1, nbytes)))
    return -(-rows // -(-rows // most))


def decoded_bytes(chunk: Chunk) -> int:
    """Bytes of one column chunk in memory, as far as its footer tells."""
    width = WIDTHS.get(chunk.kind)
    return chunk.uncompressed + 4 * chunk.values if width is None else width * chunk.values


class _Widths:
    """Estimates decoded bytes from footers, looking at a chunk only where widths vary."""

    def __init__(self, file: ParquetFile) -> None:
        schema = file.metadata.schema
        self.chunks, self.row_bytes = file.chunks, 0
        self.varying: list[tuple[int, int | None]] = []
        for i in range(len(schema)):
            column = schema.column(i)
            width = WIDTHS.get(column.physical_type)
            if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
                width = column.length
            if width is not None and column.max_repetition_level == 0:
                self.row_bytes += width
            else:
                self.varying.append((i, width))

    def decoded(self, group: int) -> int:
        """Bytes of one row group: exact widths, encoded size and offsets for text."""
        rows = self.chunks.rows[group]
        total = self.row_bytes * rows
        for i, width in self.varying:
            chunk = self.chunks.chunk(group, i)
            if width is None:
                total += chunk.uncompressed + 4 * chunk.values
            else:
                total += width * chunk.values + 4 * rows
        return total


def _leaf_count(kind: pa.DataType) -> int:
    """How many physical columns a type is stored in."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if pa.types.is_dictionary(kind) or not kind.num_fields:
        return 1
    return sum(_leaf_count(kind.field(i).type) for i in range(kind.num_fields))
