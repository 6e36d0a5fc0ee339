"""Parquet footers are read and checked here: schema, row groups, atoms, and damage reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dml.base.cached_property import cached_property
from dml.data.schema import Schema
from dml.errors import SourceError
from dml.io.files.file_content import in_parallel
from dml.io.files.file_schemas import TypedFile, check_columns, of_one_schema, united
from dml.io.files.files import File, FilePart, FileSet, listed, numbered_parts, unreadable
from dml.io.files.paths import FileKind, Paths
from dml.io.parquet.chunk_metadata import Chunks, ColumnChunk, DamageError, read_chunks

PARQUET = FileKind("Parquet", (".parquet", ".parq", ".pq"))
MAGIC, ENCRYPTED, FRAME = b"PAR1", b"PARE", 12
FOOTER_THREADS = 16
UNITING = "union_by_name=True: a file without a column has nulls there, and the wider type holds"
# Bytes read from the end of a file: covers most footers, of a file in a store in one request.
TAIL = 64 << 10

WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}


@dataclasses.dataclass(frozen=True, eq=False)
class ParquetFile(TypedFile):
    """One Parquet file with the content of its footer."""

    metadata: pq.FileMetaData
    chunks: Chunks

    @cached_property
    def leaves(self) -> dict[str, range]:
        """For each column, the numbers of the physical columns that store it."""
        found, end = dict[str, range](), 0
        for field in self.arrow_schema:
            start, end = end, end + _leaf_count(field.type)
            found[field.name] = range(start, end)
        return found


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ParquetFiles(FileSet):
    """Files whose footers were read; with ``union_by_name`` their columns may differ."""

    files: tuple[ParquetFile, ...]
    union_by_name: bool = False
    word: ClassVar[str] = "parquet files"

    @cached_property
    def schema(self) -> Schema:
        """Schema that all files share, or the union of all; without dictionary encoding."""
        return united(self.files if self.union_by_name else self.files[:1])


@dataclasses.dataclass(frozen=True, slots=True)
class RowGroup(FilePart):
    """A row group with at least one row."""

    file: ParquetFile
    word: ClassVar[str] = "row group"
    is_row_group: ClassVar[bool] = True

    def leaves(self, columns: Iterable[str]) -> list[int]:
        """Return numbers of the physical columns in which ``columns`` are stored, ascending."""
        return sorted({leaf for name in self.having(columns) for leaf in self.file.leaves[name]})

    def having(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``columns`` that exist in the file."""
        return tuple(name for name in columns if name in self.file.leaves)

    def chunks(self, columns: Iterable[str]) -> list[ColumnChunk]:
        """Return footer metadata of each physical column in which ``columns`` are stored."""
        return [self.file.chunks.chunk(self.number, leaf) for leaf in self.leaves(columns)]


def open_files(
    paths: Paths, options: object = None, *, union_by_name: bool = False
) -> ParquetFiles:
    """Read the footers of all files that ``paths`` denote; raise SourceError if schemas differ.

    ``options`` configure access to the store of URLs. With ``union_by_name`` columns that are
    absent from some files are null there, and the wider type is used.
    """
    root, unread, given = listed(paths, PARQUET, options)
    files = in_parallel(_read_footer, unread, FOOTER_THREADS)
    shown = given + (", union_by_name=True" if union_by_name else "")
    found = ParquetFiles(root, tuple(files), shown, union_by_name)
    if not union_by_name:
        of_one_schema(files, UNITING)
        return found
    for file in files:
        check_columns(file)
    found.schema  # noqa: B018 - raises here for types that do not unite
    return found


def _read_footer(file: File) -> ParquetFile:
    """Read the footer of a file; raise SourceError that describes the damage.

    For a file in a store this is one request, two if the footer is larger than ``TAIL``. They check
    no file version; later reads do.
    """
    size = file.size
    try:
        tail = file.fetch([(max(0, size - TAIL), size)])[0]
        head = tail[:4] if size <= TAIL else MAGIC
        if size > TAIL and (tail[-4:] != MAGIC or file.remote is None):
            head = file.fetch([(0, 4)])[0]
        _judge_frame(file.path, size, head, tail[-8:])
        needed = int.from_bytes(tail[-8:-4], "little") + FRAME - 4
        if needed > len(tail):
            tail = file.fetch([(size - needed, size)])[0]
        return _described(file, tail, tail[-needed:-8])
    except OSError as error:
        raise unreadable(file.path, error) from None


def _described(file: File, tail: bytes, footer: bytes) -> ParquetFile:
    """Build the file from ``footer``, which is in its ``tail``; raise SourceError if damaged."""
    try:
        opened = pq.ParquetFile(pa.BufferReader(tail))
        metadata, schema = opened.metadata, opened.schema_arrow
        leaves = map(metadata.schema.column, range(len(metadata.schema)))
        chunks = read_chunks(footer, [leaf.physical_type for leaf in leaves])
    except (DamageError, UnicodeDecodeError, pa.ArrowException) as error:  # names are UTF-8
        raise _damaged_footer(file.path, str(error)) from None
    except OSError as error:
        if error.errno is None:  # pyarrow: the footer cannot be parsed
            raise _damaged_footer(file.path, str(error)) from None
        raise
    state = (file.path, file.name, file.size, file.mtime_ns)
    return ParquetFile(*state, schema, metadata, chunks, remote=file.remote)


def encrypted(path: str, what: str) -> SourceError:
    """Build the error for a file that cannot be read without a key."""
    return SourceError(
        f"{path} is encrypted",
        why=f"{what} encrypted, and dml reads no keys",
        try_="pyarrow.parquet.read_table(..., decryption_properties=...), and from_arrow of that",
    )


def _judge_frame(path: str, size: int, head: bytes, tail: bytes) -> None:
    """Raise SourceError unless the first 4 and the last 8 bytes are those of a Parquet file."""
    if size == 0:
        raise SourceError(f"{path} is empty", why="it has 0 bytes", try_="write it again")
    if ENCRYPTED in (head, tail[4:]):
        raise encrypted(path, "its footer is")
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


def row_groups(files: Sequence[ParquetFile], atom_rows: int | None) -> Iterator[RowGroup]:
    """Yield the row groups that have rows, in order, each divided into atoms.

    Atoms have ``atom_rows`` rows; without it, a row group is divided into the least number of equal
    atoms with at most 65,536 rows and about 8 MiB.
    """
    for file in files:
        sizes = zip(file.chunks.rows, _decoded_sizes(file), strict=True)
        yield from numbered_parts(RowGroup, file, sizes, atom_rows)


def decoded_bytes(chunk: ColumnChunk) -> int:
    """Estimate the bytes of one column chunk in memory from its footer."""
    width = WIDTHS.get(chunk.kind)
    return _text_bytes(chunk) if width is None else width * chunk.values


def _text_bytes(chunk: ColumnChunk) -> int:
    """Estimate bytes of texts and offsets: the writer's count, and at least the stored size.

    A text in a dictionary is stored once but decoded many times, which only the writer's count
    includes.
    """
    return max(chunk.uncompressed, chunk.text) + 4 * chunk.values


def _decoded_sizes(file: ParquetFile) -> Iterator[int]:
    """Yield the decoded bytes of every row group, estimated from the footer; texts have offsets."""
    schema, row_bytes = file.metadata.schema, 0
    varying: list[tuple[int, int | None]] = []  # columns whose chunk metadata must be looked at
    for i in range(len(schema)):
        column = schema.column(i)
        width = WIDTHS.get(column.physical_type)
        if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
            width = column.length
        if width is not None and column.max_repetition_level == 0:
            row_bytes += width
        else:
            varying.append((i, width))
    for group, rows in enumerate(file.chunks.rows):
        nbytes = row_bytes * rows
        for i, width in varying:
            chunk = file.chunks.chunk(group, i)
            nbytes += _text_bytes(chunk) if width is None else width * chunk.values + 4 * rows
        yield nbytes


def _leaf_count(kind: pa.DataType) -> int:
    """Return the number of physical columns in which a type is stored."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if pa.types.is_dictionary(kind) or not kind.num_fields:
        return 1
    return sum(_leaf_count(kind.field(i).type) for i in range(kind.num_fields))
