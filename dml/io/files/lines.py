"""The base of sources for files of consecutive rows, such as CSV files, is defined here.

Parts are sequences of rows. The row count is unknown when a file is opened, so rows are counted at
the first use, in one pass that records the offsets of parts. A compressed file has one part, since
it can only be read from its start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Self

import numpy as np
import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.data.block import Block
from dml.data.schema import Schema, code_of
from dml.errors import SourceError
from dml.expr.node import op
from dml.io.files.compression import WINDOW as UNPACKING_BYTES
from dml.io.files.file_content import in_parallel
from dml.io.files.files import File, FilePart, FileSet, FileSource, bare
from dml.io.files.records import WINDOW, Form, PartIndex, atoms, index, windows
from dml.io.source import Unit
from dml.io.stores.byte_ranges import BLOCK
from dml.io.stores.store_errors import StoreError
from dml.kernels.rows.ids import RowIds

COUNTING_THREADS = 8
# Copies of the bytes of rows during decoding: as read, joined, and parsed.
COPIES = 3
# Arrow parses a block as one; its sizes are 32 bits.
MOST_BYTES = (1 << 31) - 64
OFFSET = 4  # bytes of the offset of a value of varying length


class RowError(Exception):
    """The bytes of some rows cannot be decoded; ``row`` is the number of the first, if known."""

    def __init__(self, why: str, row: int | None = None, try_: str = "") -> None:
        super().__init__(why)
        self.why, self.row, self.try_ = why, row, try_


def block_size(data: bytes) -> int:
    """Return a block size in bytes that lets Arrow parse all of ``data`` as one block.

    Raise RowError if ``data`` is larger than Arrow parses at once.
    """
    if len(data) >= MOST_BYTES:
        raise RowError(f"an atom has {len(data)} bytes", 0, "a smaller atom_rows=")
    return len(data) + 64


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LineFiles(FileSet):
    """Files of rows in one format, and the index of each file, which is computed once.

    ``counted`` has the indices by ``atom_rows``; it is pickled with the files.
    """

    form: Form
    counted: dict[int | None, list[PartIndex]] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        """Schema of the format."""
        return self.form.schema

    @cached_property
    def digest(self) -> bytes:
        """Digest of file names and format, without content."""
        return digest("line files", tuple(f.name for f in self.files), self.form.digest)

    def shard(self, num_shards: int, index: int) -> Self:
        """Return every ``num_shards``-th file from ``index`` on, with the index of each."""
        counted = {rows: found[index::num_shards] for rows, found in self.counted.items()}
        return dataclasses.replace(super().shard(num_shards, index), counted=counted)

    def indices(self, atom_rows: int | None) -> list[PartIndex]:
        """Return each file's index for ``atom_rows``; the first call scans files in parallel."""
        if atom_rows not in self.counted:
            self.counted[atom_rows] = in_parallel(
                lambda file: self._index(file, atom_rows), self.files, COUNTING_THREADS
            )
        return self.counted[atom_rows]

    def _index(self, file: File, atom_rows: int | None) -> PartIndex:
        file.check_unchanged(fetching=True)
        try:
            start = self.form.first(file)
        except StoreError:
            raise
        except SourceError:
            start = 0  # reading will raise the error after the rows of the previous files
        with self.form.open(file) as stream:
            stream.read(start)
            return index(stream, self.form, start, atom_rows, packed=self.form.packed(file))


@dataclasses.dataclass(frozen=True, slots=True)
class LineRun(FilePart):
    """Rows of a file from byte ``start`` to ``stop`` of its uncompressed content.

    ``widest`` is the size of the largest atom in bytes. If ``broken``, the run ends with bytes that
    are not a row.
    """

    start: int
    stop: int
    widest: int
    broken: bool


@op
class LineSource(FileSource):
    """Rows of files of consecutive rows; subclasses define the format's ``word`` for a part.

    A part of an uncompressed file has about 8 MiB of whole rows; a compressed file is one part.
    """

    files: LineFiles
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None

    @cached_property
    def parts(self) -> tuple[LineRun, ...]:
        """The parts of the files, in order."""
        pairs = zip(self.files.files, self.files.indices(self.atom_rows), strict=True)
        return tuple(run for file, found in pairs for run in self._runs(file, found))

    def _runs(self, file: File, found: PartIndex) -> Iterator[LineRun]:
        first = 0
        edges = list(pairwise([*found.starts.tolist(), found.end]))
        numbers = (found.rows.tolist(), found.atom_rows.tolist(), found.widest.tolist())
        for number, ((start, stop), rows, each, widest) in enumerate(
            zip(edges, *numbers, strict=True)
        ):
            nbytes = _decoded_bytes(self.files.schema, rows, stop - start)
            broken = found.broken and number == len(edges) - 1
            yield LineRun(file, number, first, rows, each, nbytes, start, stop, widest, broken)
            first += rows

    @cached_property
    def row_count(self) -> int | None:
        """Number of rows of all files; None if a file cannot be read to its end."""
        if any(run.broken for run in self.parts):
            return None
        return sum(run.rows for run in self.parts)

    def likeness(self) -> bytes:
        """Return a digest of the sizes and contents that were read when rows were counted."""
        found = self.files.indices(self.atom_rows)
        return digest("lines", [(each.end, each.content) for each in found])

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Decode a part atom by atom; skipped atoms are scanned, not decoded.

        For bytes that are not a valid row, raises SourceError with file, row and line.
        """
        run = self.parts[unit.index]
        bare_rows = not columns and not run.broken
        run.file.check_unchanged(fetching=not bare_rows)
        if bare_rows:
            starts = range(skip_atoms * run.atom_rows, run.rows, run.atom_rows)
            yield from (bare(run, start) for start in starts)
            return
        at, row = run.start, run.first_row
        for number, (data, rows) in enumerate(self._atoms(run)):
            if number >= skip_atoms:
                run.file.check_unchanged(fetching=True)
                yield self._block(run.file, data, rows, (row, at), columns)
            at, row = at + len(data), row + rows
        if row != run.first_row + run.rows:
            raise SourceError(
                f"{run.place}: only {row - run.first_row} of {run.rows} rows are there",
                at=run.file.path,
                why="the file has changed since its rows were counted",
            )

    def _atoms(self, run: LineRun) -> Iterator[tuple[bytes, int]]:
        """Yield the bytes and row count of each atom of ``run``; raise SourceError at damage."""
        form = self.files.form
        packed = form.packed(run.file)
        try:
            start, stop = (0 if packed else run.start, None if run.broken else run.stop)
            with form.open(run.file, start, stop) as stream:
                if packed:
                    stream.read(run.start)
                if run.atoms == 1 and not packed and not run.broken:
                    yield stream.read(run.stop - run.start), run.rows
                else:
                    found = atoms(windows(stream, form), run.atom_rows)
                    yield from islice(found, run.atoms)
        except SourceError as error:
            last = run.first_row + run.rows - 1
            at = run.stop + error.offset
            where = form.spot(run.file, last, at) if run.broken else run.file.path
            raise error.located(where) from None

    def _block(
        self, file: File, data: bytes, rows: int, first: tuple[int, int], columns: tuple[str, ...]
    ) -> Block:
        """Decode the ``rows`` rows of an atom; ``first`` is number and offset of the first one."""
        row, at = first
        ids = RowIds.run(file.key, row, rows)
        if not columns:
            return Block(Schema(), (), ids)
        form = self.files.form
        try:
            batch = form.decode(data, rows, columns)
        except RowError as error:
            bad, start, why = blamed(form, data, lambda d, n: form.decode(d, n, columns), error)
            raise SourceError(
                f"row {row + bad} of {file.name} cannot be read",
                at=form.spot(file, row + bad, at + start),
                why=why,
                try_=error.try_,
            ) from None
        return Block.from_arrow(batch, ids, self.projected(columns))

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Estimate the memory of a read: copies of the largest atom, windows, and decompression.

        For a file in a store, add the current block and the prefetched block.
        """
        run = self.parts[unit.index]
        unpacking = UNPACKING_BYTES if self.files.form.packed(run.file) else 0
        fetched = min(run.file.size, 2 * BLOCK) if run.file.remote else 0
        return COPIES * run.widest + 2 * WINDOW + unpacking + fetched

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the stored bytes of the run, or of the whole file if it is compressed."""
        run = self.parts[unit.index]
        return run.file.size if self.files.form.packed(run.file) else run.stop - run.start


def blamed(
    form: Form, data: bytes, decode: Callable[[bytes, int], object], error: RowError
) -> tuple[int, int, str]:
    """Return number, byte offset and error of the first row that ``decode`` refuses.

    The row is found by bisection, unless ``error`` has its number.
    """
    starts = [0, *form.ends(data).tolist()]
    if starts[-1] < len(data):
        starts.append(len(data))
    row, count, why = (0, len(starts) - 1, error.why)
    if error.row is not None:
        row, count = error.row, 0
    while count > 0:
        half = (count + 1) // 2
        try:
            decode(data[starts[row] : starts[row + half]], half)
            row, count = row + half, count - half
        except RowError as again:
            why, count = again.why, half if half > 1 else 0
    row = min(row, len(starts) - 2)
    bad = data[starts[row] : starts[row + 1]]
    return row, starts[row] + len(bad) - len(bad.lstrip(form.blank)), why


def _decoded_bytes(schema: Schema, rows: int, nbytes: int) -> int:
    """Estimate the decoded bytes of ``rows`` rows whose stored size is ``nbytes``."""
    codes = [code_of(kind) for kind in schema.values()]
    widths = sum(OFFSET if code == "arrow" else np.dtype(code).itemsize for code in codes)
    widths += sum(int(kind.byte_width) for kind in schema.values() if pa.types.is_decimal(kind))
    return rows * widths + nbytes * ("arrow" in codes)


def inferred(
    files: Sequence[File], form: Form, infer: Callable[[bytes, int], Schema]
) -> Schema | None:
    """Infer the schema from the first rows of the first file with rows; None if all are empty.

    Rows after an undecodable row are ignored, since reading will report that row. Raise SourceError
    if the first row is undecodable.
    """
    for file in files:
        start = form.first(file)
        try:
            with form.open(file) as stream:
                stream.read(start)
                data, ends = next(windows(stream, form), (b"", ()))  # about 1 MiB
        except SourceError as error:
            raise error.located(form.spot(file, 0, start + error.offset)) from None
        rows = len(ends)
        while rows:
            try:
                return infer(data, rows)
            except RowError as error:
                rows, at, why = blamed(form, data, infer, error)
                data = data[:at]  # another column may have an earlier undecodable row
                if not rows:
                    raise SourceError(
                        f"the first row of {file.name} cannot be read",
                        at=form.spot(file, 0, start + at),
                        why=why,
                        try_=error.try_,
                    ) from None
    return None
