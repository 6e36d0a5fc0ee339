"""Parquet files are read by row group: each row group is a unit, decoded page by page.

Text columns whose decoded size is unknown are decoded in two steps to bound memory. A dictionary of
few long texts is stored once but decoded for every occurrence: unless the writer recorded the
decoded size (SizeStatistics of parquet.thrift), it may be a thousand times the size in the footer.
Such columns are read as dictionary indices, which are small; the size of the texts of an atom is
computed from the indices before any text is decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from dml import checks
from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.data.block import Block, from_arrow
from dml.data.layouts import is_text_or_bytes, usual_type
from dml.data.schema import Schema
from dml.errors import SourceError
from dml.expr.node import op
from dml.io.files.file_schemas import fitted
from dml.io.files.files import FileSource, bare, chosen
from dml.io.files.paths import Paths
from dml.io.parquet.chunk_metadata import ColumnChunk
from dml.io.parquet.dictionary_sizes import SMALL_BYTES, check_texts
from dml.io.parquet.footer import (
    ParquetFiles,
    RowGroup,
    decoded_bytes,
    encrypted,
    open_files,
    row_groups,
)
from dml.io.parquet.statistics import UNKNOWN, Facts, facts_of, is_signed, may_match
from dml.io.source import Unit
from dml.kernels.rows.ids import RowIds

if TYPE_CHECKING:
    from dml.expr.columns.value import Value

# Bytes read ahead per physical column. 64 KiB is as fast as 1 MiB or whole chunks, and 40 columns
# of a 500 MB row group then hold 3 MB (benchmarks: tests/io/parquet/test_parquet_memory.py).
READ_AHEAD = 64 << 10
# Bytes of a page as most writers make them, and what a reader holds per byte of page and of atom
# (measured: row groups of 5 and of 300 MiB, 41 columns; benchmarks/bench_memory.py).
PAGE_BYTES = 1 << 20
PAGES_COUNT, ATOMS_COUNT = 1.5, 3
# Maximum row groups whose statistics are read before a run: 2 microseconds each.
LOOKED_AT = 4096
# A chunk that stores more than this, plus three bytes a value, contains more than a dictionary and
# indices: most writers stop a dictionary at 1 MiB, and write plain text after it.
DICTIONARY_BYTES, NUMBER_BYTES = 4 << 20, 3


@op
class ParquetSource(FileSource):
    """Rows of Parquet files in order of file name, row group, row.

    A unit is a row group, divided into atoms of equally many rows; this number is computed from the
    sizes of all columns in the footer, whichever columns are read. Row ids come from the file's
    name below the common folder and the row's number in the file. Page checksums are verified if
    the file has them.
    """

    files: ParquetFiles
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None
    word: ClassVar[str] = "parquet"
    columns_apart = True  # every column is a separate chunk

    @cached_property
    def parts(self) -> tuple[RowGroup, ...]:
        """The row groups that have rows."""
        return tuple(row_groups(self.files.files, self.atom_rows))

    def null_in(self, column: str) -> str:
        """Describe the first row group with nulls in ``column``, of the first 4096; "" if none."""
        for group in self.parts[:LOOKED_AT]:
            nulls = self._facts(group, column).nulls
            if nulls and column not in group.file.leaves:
                return f"{group.file.name}, which has no such column"
            if nulls:
                return f"{group.place}, whose footer counts {nulls} of {group.rows} rows as null"
        return ""

    @cached_property
    def _likeness(self) -> bytes:
        footers = [(f.size, xxhash.xxh3_128_digest(f.chunks.footer)) for f in self.files.files]
        return digest("footers", footers)

    def likeness(self) -> bytes:
        """Return a digest of file sizes and footers; files with other footers have other data."""
        return self._likeness

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Stream a row group; memory is that of one atom and the pages that contain the atom.

        Skipped atoms are decoded as well, since decoding cannot start in the middle of a row group.
        Raises SourceError if the file is damaged, or has changed since it was opened.
        """
        group = self.parts[unit.index]
        group.file.check_unchanged(fetching=bool(columns))
        starts = range(skip_atoms * group.atom_rows, group.rows, group.atom_rows)
        schema, here = self.projected(columns), group.having(columns)
        if not here:
            yield from (_null(bare(group, start), schema) for start in starts)
            return
        cutter = _AtomCutter(group, here, unit)
        decoded = _batches(group, here, cutter.hidden, at_once=unit.at_once)
        with cutter, closing(decoded):
            for batch in decoded:
                for start, atom in cutter.add(batch):
                    if start not in starts:
                        continue
                    group.file.check_unchanged(fetching=True)
                    ids = RowIds.run(group.file.key, group.first_row + start, atom.num_rows)
                    yield Block.from_arrow(fitted(atom, schema, unit.place), ids, schema)

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Estimate the bytes of pages and dictionaries, and of the atoms decoded at once.

        One atom is decoded at a time, or the whole row group if ``unit.at_once``.
        """
        group = self.parts[unit.index]
        pages = decoded = 0
        for chunk in group.chunks(columns):
            pages += min(chunk.uncompressed, PAGE_BYTES << chunk.has_dictionary)
            decoded += decoded_bytes(chunk)
        parts = 1 if unit.at_once else group.atoms
        here = int(PAGES_COUNT * pages) + int(ATOMS_COUNT * decoded) // parts
        if group.file.remote is None:
            return here
        from dml.io.parquet.remote import held_bytes  # noqa: PLC0415

        return here + held_bytes(group, group.leaves(columns))

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the compressed bytes of the column chunks."""
        return sum(chunk.compressed for chunk in self.parts[unit.index].chunks(columns))

    def may_match(self, unit: Unit, predicate: tuple[Value, ...]) -> bool:
        """Return False only if the statistics prove that no row of the row group passes."""
        return may_match(predicate, lambda name: self.facts(unit, name))

    def facts(self, unit: Unit, column: str) -> Facts:
        """Return the statistics of one column of a row group from the footer."""
        return self._facts(self.parts[unit.index], column)

    def _facts(self, group: RowGroup, name: str) -> Facts:
        """Return the footer statistics of one column of a row group; unknown for nested columns."""
        file = group.file
        if name not in self.schema:
            return UNKNOWN
        if name not in file.leaves:
            return Facts(None, None, None, nulls=group.rows, rows=group.rows)
        kind = usual_type(file.arrow_schema.field(name).type)  # the type of the bounds
        # footers count nulls of leaves: the only leaf of a struct is null if the struct is, too
        if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
            return UNKNOWN
        bounds = file.chunks.bounds(group.number, file.leaves[name][0], signed=is_signed(kind))
        return facts_of(bounds, kind, group.rows)


def read_parquet(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    union_by_name: bool = False,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ParquetSource:
    """Read rows of Parquet files: a file, a folder, a pattern, or a list of these.

    Files are read in order of their names; footers are read now, data later. ``columns`` selects
    and orders columns; those of folder names such as ``year=2024`` are added by
    ``hive_columns.located``. ``atom_rows`` sets the size of atoms, which define groups and
    positions (by default 65,536 rows or about 8 MiB). With ``union_by_name`` the result has the
    columns of all files. Raises SourceError for files that are missing, empty, truncated, not
    Parquet, or of different schemas, and SchemaError for a missing column.
    """
    checks.of_kind("union_by_name", union_by_name, (bool,), "True or False")
    files = open_files(paths, storage_options, union_by_name=union_by_name)
    return ParquetSource(files, chosen(columns, "read_parquet"), atom_rows)


class _AtomCutter:
    """Cuts the decoded rows of a row group into atoms of ``columns``, in that order.

    Errors of the decoder in the ``with`` block become a SourceError for a damaged row group, and so
    does a number of rows that differs from the footer's.
    """

    def __init__(self, group: RowGroup, columns: tuple[str, ...], unit: Unit) -> None:
        self.group, self.columns, self.unit = group, columns, unit
        self.hidden = texts_of_unknown_size(group, columns)
        self.start, self.have, self.held = 0, 0, list[pa.RecordBatch]()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        group = self.group
        if isinstance(error, OSError | pa.ArrowInvalid | pa.ArrowNotImplementedError):
            raise _damaged(group, self.columns, error) from error
        if error is None and self.have != group.rows:
            raise SourceError(
                f"row group {group.number} of {group.file.name} has {self.have} rows",
                at=group.file.path,
                why=f"its footer promises {group.rows}",
                try_="copy or write the file again",
            )

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the atoms that the next rows complete, each with the number of its first row.

        Raise MemoryContractError for an atom whose texts do not fit into ``unit.most_bytes``.
        """
        self.held.append(batch)
        self.have += batch.num_rows
        rows, rest = self.group.atom_rows, self.have % self.group.atom_rows
        last = rest if self.have == self.group.rows else 0
        for atom in chain(exactly(self.held, rows), exactly(self.held, last)):
            yield self.start, self._decoded(atom)
            self.start += rows

    def _decoded(self, atom: pa.RecordBatch) -> pa.RecordBatch:
        check_texts(atom, self.unit.most_bytes, self.unit.place)
        for name, kind in self.hidden.items():
            number, texts = atom.schema.get_field_index(name), atom.column(name).cast(kind)
            atom = atom.set_column(number, name, texts)
        return atom.select(self.columns)


def texts_of_unknown_size(group: RowGroup, columns: Iterable[str]) -> dict[str, pa.DataType]:
    """Return types of top-level text columns that may decode to far more than the footer states."""
    found = dict[str, pa.DataType]()
    for name in columns:
        kind = usual_type(group.file.arrow_schema.field(name).type)
        if is_text_or_bytes(kind) and hides(group.chunks((name,))[0]):
            found[name] = kind
    return found


def hides(chunk: ColumnChunk) -> bool:
    """Return True if ``chunk`` may consist of dictionary-encoded texts of unknown decoded size."""
    most = DICTIONARY_BYTES + NUMBER_BYTES * chunk.values
    large = chunk.values * chunk.uncompressed > SMALL_BYTES
    return chunk.has_dictionary and not chunk.text and large and chunk.uncompressed <= most


def _batches(
    group: RowGroup, columns: tuple[str, ...], hidden: Collection[str] = (), *, at_once: bool
) -> Generator[pa.RecordBatch, None, None]:
    """Decode a row group in order on this thread, page by page or at once.

    The rows before damage are yielded in either case: if decoding at once fails, it is repeated
    page by page. ``hidden`` columns stay dictionaries. Page checksums are verified.
    """
    rows = group.rows if at_once else group.atom_rows
    wanted, there = group.leaves(columns), group.file.remote
    opened: AbstractContextManager[pa.NativeFile]
    if there is None:
        opened = pa.OSFile(group.file.path)
    else:
        from dml.io.parquet.remote import opened_group  # noqa: PLC0415

        opened = opened_group(there, group, wanted)
    whole: list[pa.RecordBatch] | None = None
    with opened as file:
        reader = pq.ParquetFile(
            file,
            metadata=group.file.metadata,
            pre_buffer=False,
            buffer_size=READ_AHEAD,
            page_checksum_verification=True,
            read_dictionary=list(hidden),
        ).reader
        batches = reader.iter_batches(
            rows, row_groups=[group.number], column_indices=wanted, use_threads=False
        )
        if not at_once:
            yield from batches
            return
        with suppress(OSError, pa.ArrowException):
            whole = list(batches)
    yield from _batches(group, columns, hidden, at_once=False) if whole is None else whole


def exactly(held: list[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Remove and yield batches of exactly ``rows`` rows from ``held``; copy only if necessary."""
    have = sum(batch.num_rows for batch in held)
    while have >= rows > 0:
        whole = held[0] if len(held) == 1 else pa.concat_batches(held)
        have -= rows
        held[:] = [whole.slice(rows)] if have else []
        yield whole.slice(0, rows) if have else whole


def _null(rows: Block, schema: Schema) -> Block:
    """Return a block with the same rows and null columns, for columns absent from the file."""
    columns = (from_arrow(pa.nulls(rows.n, kind)) for kind in schema.values())
    return Block(schema, tuple(columns), rows.ids)


def _damaged(group: RowGroup, columns: tuple[str, ...], error: Exception) -> SourceError:
    """Build the SourceError for a damaged row group; decode each column to find the bad one."""
    group.file.check_unchanged()
    bad = [name for name in columns if not _decodes(group, name)]
    if "decrypt" in str(error).lower():
        names = f"column {bad[0]!r} is" if bad else "a column is"
        return encrypted(group.file.path, names)
    what = f"column {bad[0]!r} of row group {group.number}" if bad else f"row group {group.number}"
    return SourceError(
        f"{what} of {group.file.name} is damaged",
        at=f"{group.file.path}, rows {group.first_row} to {group.first_row + group.rows - 1}",
        why=" ".join(str(error).split()),
        try_="copy or write the file again",
    )


def _decodes(group: RowGroup, column: str) -> bool:
    try:
        for _ in _batches(group, (column,), at_once=False):
            pass
    except (OSError, pa.ArrowException):
        return False
    return True
