"""Parquet footers are read and checked here: schema, row groups, atoms, and damage reports."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dml.base.cached_property import cached_property
from dml.data.schema import Schema
from dml.errors import SourceError
from dml.io.files.file_schemas import TypedFile, check_columns, of_one_schema, united
from dml.io.files.files import (
    File,
    FilePart,
    FileSet,
    as_given,
    in_stores,
    numbered_parts,
    opened_file,
    unreadable,
)
from dml.io.files.paths import FileKind, Paths, each_of, expand
from dml.io.parquet.chunk_metadata import Chunks, ColumnChunk, DamageError, read_chunks

if TYPE_CHECKING:
    from dml.io.stores.stores import Remote

PARQUET = FileKind("Parquet", (".parquet", ".parq", ".pq"))
MAGIC, ENCRYPTED, FRAME = b"PAR1", b"PARE", 12
FOOTER_THREADS = 16
UNITING = "union_by_name=True: a file without a column has nulls there, and the wider type holds"
# Bytes fetched from the end of a file in a store: covers most footers in one request.
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
        counts = [_leaf_count(field.type) for field in self.arrow_schema]
        ends = list(accumulate(counts))
        return {
            field.name: range(end - count, end)
            for field, count, end in zip(self.arrow_schema, counts, ends, strict=True)
        }


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

    @property
    def row_group(self) -> int | None:
        """Number of the row group in the file."""
        return self.number

    def leaves(self, columns: Iterable[str]) -> list[int]:
        """Return numbers of the physical columns in which ``columns`` are stored, ascending."""
        return sorted({leaf for name in self.having(columns) for leaf in self.file.leaves[name]})

    def having(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``columns`` that exist in the file."""
        return tuple(name for name in columns if name in self.file.leaves)

    def chunks(self, columns: Iterable[str]) -> list[ColumnChunk]:
        """Return footer metadata of each physical column in which ``columns`` are stored."""
        file = self.file
        leaves = [leaf for name in self.having(columns) for leaf in file.leaves[name]]
        return [file.chunks.chunk(self.number, leaf) for leaf in leaves]


def open_files(
    paths: Paths, options: object = None, *, union_by_name: bool = False
) -> ParquetFiles:
    """Read the footers of all files that ``paths`` denote; raise SourceError if schemas differ.

    ``options`` configure access to the store of URLs. With ``union_by_name`` columns that are
    absent from some files are null there, and the wider type is used.
    """
    given = paths if isinstance(paths, str | os.PathLike) else each_of(paths)
    there = in_stores(given, PARQUET, options)
    if there is None:
        root, names = expand(given, PARQUET)
        files = _each(read_footer, [(os.path.join(root, name), name) for name in names])
    else:
        root, listed = there
        files = _each(_remote_footer, [(file, file.remote) for file in listed])
    shown = as_given(given, len(files)) + (", union_by_name=True" if union_by_name else "")
    found = ParquetFiles(root, tuple(files), shown, union_by_name)
    if not union_by_name:
        of_one_schema(files, UNITING)
        return found
    for file in files:
        check_columns(file)
    found.schema  # noqa: B018 - raises here for types that do not unite
    return found


def _each(read: Callable[..., ParquetFile], jobs: list[tuple[Any, ...]]) -> list[ParquetFile]:
    """Call ``read`` for each job in parallel and return the results."""
    if len(jobs) == 1:
        return [read(*jobs[0])]
    try:
        with ThreadPoolExecutor(min(FOOTER_THREADS, len(jobs))) as pool:
            return list(pool.map(read, *zip(*jobs, strict=True)))
    except RuntimeError:  # no more threads can be started
        return [read(*job) for job in jobs]


def read_footer(path: str, name: str) -> ParquetFile:
    """Read the footer of a local file; raise SourceError that describes the damage."""
    file = opened_file(path, name)
    try:
        _check_frame(path, file.size)
        with pa.OSFile(path) as source:
            return _described(file, source, _footer_bytes(path, file.size))
    except OSError as error:
        raise unreadable(path, error) from None


def _remote_footer(file: File, there: Remote) -> ParquetFile:
    """Read the footer of a file in a store: one request, two if it is larger than ``TAIL``.

    These requests check no file version; later reads do.
    """
    size = file.size
    tail = there.fetch([(max(0, size - TAIL), size)], checked=False)[0]
    head = tail[:4] if size <= TAIL else MAGIC
    if tail[-4:] != MAGIC and size > TAIL:
        head = there.fetch([(0, 4)], checked=False)[0]
    _judge_frame(file.path, size, head, tail[-8:])
    needed = int.from_bytes(tail[-8:-4], "little") + FRAME - 4
    if needed > len(tail):
        tail = there.fetch([(size - needed, size)], checked=False)[0]
    return _described(file, pa.BufferReader(tail), tail[-needed:-8])


def _described(file: File, source: pa.NativeFile, footer: bytes) -> ParquetFile:
    """Build the file from ``footer``, the end of ``source``; raise SourceError if damaged."""
    try:
        opened = pq.ParquetFile(source)
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


def _footer_bytes(path: str, size: int) -> bytes:
    """Return the footer of a file of ``size`` bytes, without its length and the magic bytes."""
    with open(path, "rb") as file:
        file.seek(size - 8)
        length = int.from_bytes(file.read(4), "little")
        file.seek(size - 8 - length)
        return file.read(length)


def _check_frame(path: str, size: int) -> None:
    """Check the first and last bytes, which reveal most kinds of damage."""
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    _judge_frame(path, size, head, tail)


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
        nbytes = map(_Widths(file).decoded, range(len(file.chunks.rows)))
        sizes = zip(file.chunks.rows, nbytes, strict=True)
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


class _Widths:
    """Estimates decoded bytes from footers; chunk metadata are read only if widths vary."""

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
        """Return the decoded bytes of row group ``group``; texts count with their offsets."""
        rows = self.chunks.rows[group]
        total = self.row_bytes * rows
        for i, width in self.varying:
            chunk = self.chunks.chunk(group, i)
            if width is None:
                total += _text_bytes(chunk)
            else:
                total += width * chunk.values + 4 * rows
        return total


def _leaf_count(kind: pa.DataType) -> int:
    """Return the number of physical columns in which a type is stored."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if pa.types.is_dictionary(kind) or not kind.num_fields:
        return 1
    return sum(_leaf_count(kind.field(i).type) for i in range(kind.num_fields))
