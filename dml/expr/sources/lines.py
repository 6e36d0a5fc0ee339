"""This file reads files of rows that follow one another as bytes: parts are runs of such rows.

Opening such a file tells nothing about its rows, so they are counted at the first use, in one pass
that keeps where parts begin. A file that is packed has one part, since it can only be read from
its start.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice, pairwise
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from dml.errors import InternalError, SourceError
from dml.expr.block import Block
from dml.expr.computed import cached_property
from dml.expr.fingerprint import digest
from dml.expr.schema import Schema, code_of
from dml.expr.sources.compressed import WINDOW as UNPACKING_BYTES
from dml.expr.sources.compressed import Stream, opened, packing
from dml.expr.sources.files import File, FileSet, FileSource, Part, bare
from dml.expr.sources.ranges import BLOCK
from dml.expr.sources.records import WINDOW, Index, atoms, index, windows
from dml.expr.sources.source import Unit
from dml.expr.sources.store_errors import StoreError
from dml.kernels.ids import RowIds

COUNTING_THREADS = 8
# What decoding holds beside the rows that it makes: their bytes, joined, and parsed.
COPIES = 3
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


OFFSET = 4  # bytes of a value of varying length beside its own


class RowError(Exception):
    """The bytes of some rows cannot be decoded; ``row`` is the first of them, if that is known."""

    def __init__(self, why: str, row: int | None = None, try_: str = "") -> None:
        super().__init__(why)
        self.why, self.row, self.try_ = why, row, try_


class Form:
    """What a format knows of bytes: where rows end in them, and what they mean.

    ``schema`` has all columns that it gives.
    """

    schema: Schema
    # What may stand before a row and is none of it, so that a place is where the row begins.
    blank: ClassVar[bytes] = b"\r\n"

    @property
    def digest(self) -> bytes:
        """Name of all that decides what bytes mean."""
        raise InternalError(f"{type(self).__name__} has no name")

    def packed(self, file: File) -> bool:
        """True for a file that can only be read from its start."""
        return bool(packing(file.name))

    def open(
        self, file: File, start: int = 0, stop: int | None = None
    ) -> AbstractContextManager[Stream]:
        """The unpacked bytes of ``file`` (see ``opened``)."""
        return opened(file, start, stop)

    def first(self, file: File) -> int:
        """The byte of the unpacked ``file`` at which its rows begin."""
        with self.open(file, stop=len(BYTE_ORDER_MARK)) as stream:
            return after_mark(stream.read(len(BYTE_ORDER_MARK)))

    def spot(self, file: File, row: int, at: int) -> str:
        """Where row ``row`` is, which begins at byte ``at``, for people."""
        return spot(file, row, at)

    def ends(self, window: bytes) -> np.ndarray:
        """Where rows end (see ``Splitter``)."""
        raise InternalError(f"{type(self).__name__} has no rows")

    def unclosed(self, window: bytes) -> int | None:
        """Where a quote opens that does not close (see ``Splitter``)."""
        return None

    def last(self, window: bytes) -> bool:
        """True if what follows the last end is a row (see ``Splitter``)."""
        return True

    def decode(self, data: bytes, rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """The ``rows`` rows that ``data`` holds; RowError where it does not."""
        raise InternalError(f"{type(self).__name__} decodes nothing")


def after_mark(head: bytes) -> int:
    """Where text begins in a file that begins with ``head``."""
    return len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LineFiles(FileSet):
    """Files of rows in one form; what was counted in them stays with them, also when sent away."""

    form: Form
    counted: dict[int | None, list[Index]] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        """The form's."""
        return self.form.schema

    @cached_property
    def digest(self) -> bytes:
        """Names of the files, and the form; no content."""
        return digest("line files", tuple(f.name for f in self.files), self.form.digest)

    def shard(self, num_shards: int, index: int) -> Self:
        """Some of the files, with what was counted in them."""
        counted = {rows: found[index::num_shards] for rows, found in self.counted.items()}
        return dataclasses.replace(super().shard(num_shards, index), counted=counted)

    def indices(self, atom_rows: int | None) -> list[Index]:
        """The index of every file, several at a time; looks through them once."""
        if atom_rows not in self.counted:
            with ThreadPoolExecutor(max(1, min(COUNTING_THREADS, len(self.files)))) as pool:
                found = list(pool.map(lambda file: self._index(file, atom_rows), self.files))
            self.counted[atom_rows] = found
        return self.counted[atom_rows]

    def _index(self, file: File, atom_rows: int | None) -> Index:
        file.check_unchanged(fetching=True)
        try:
            start = self.form.first(file)
        except StoreError:
            raise
        except SourceError:
            start = 0  # which is where reading, after the files before, will come to it
        with self.form.open(file) as stream:
            stream.read(start)
            return index(stream, self.form, start, atom_rows, packed=self.form.packed(file))


@dataclasses.dataclass(frozen=True, slots=True)
class Run(Part):
    """Rows of a file from byte ``start`` to ``stop`` of what it holds unpacked."""

    start: int
    stop: int
    widest: int
    broken: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Atom:
    """The bytes of some rows of a file: its row ``row`` begins at byte ``at``."""

    file: File
    data: bytes
    rows: int
    row: int
    at: int


class LineSource(FileSource):
    """Rows of files in which one row follows another; subclasses say which ``word`` they have.

    A part of a plain file has about 8 MiB of whole rows, that of a packed one is all of it.
    """

    files: LineFiles

    @cached_property
    def parts(self) -> tuple[Run, ...]:
        """The runs of rows, in order."""
        pairs = zip(self.files.files, self.files.indices(self.atom_rows), strict=True)
        return tuple(run for file, found in pairs for run in self._runs(file, found))

    def _runs(self, file: File, found: Index) -> Iterator[Run]:
        first = 0
        edges = list(pairwise([*found.starts.tolist(), found.end]))
        numbers = (found.rows.tolist(), found.atom_rows.tolist(), found.widest.tolist())
        for number, ((start, stop), rows, each, widest) in enumerate(
            zip(edges, *numbers, strict=True)
        ):
            nbytes = _decoded_bytes(self.files.schema, rows, stop - start)
            broken = found.broken and number == len(edges) - 1
            yield Run(file, number, first, rows, each, nbytes, start, stop, widest, broken)
            first += rows

    @cached_property
    def row_count(self) -> int | None:
        """Rows of all files; None where one cannot be read to its end."""
        if any(run.broken for run in self.parts):
            return None
        return sum(run.rows for run in self.parts)

    def likeness(self) -> bytes:
        """The bytes of the files, unpacked: they were seen when rows were counted."""
        found = self.files.indices(self.atom_rows)
        return digest("lines", [(each.end, each.content) for each in found])

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Decode a run of rows atom by atom; what is skipped is looked through, not decoded.

        Raises SourceError that names file, row and line for bytes that mean no row.
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
                yield self._block(Atom(run.file, data, rows, row, at), columns)
            at, row = at + len(data), row + rows
        if row != run.first_row + run.rows:
            raise SourceError(
                f"{run.place}: only {row - run.first_row} of {run.rows} rows are there",
                at=run.file.path,
                why="the file has changed since its rows were counted",
            )

    def _atoms(self, run: Run) -> Iterator[tuple[bytes, int]]:
        """The bytes and number of rows of every atom, up to what cannot be read."""
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

    def _block(self, atom: Atom, columns: tuple[str, ...]) -> Block:
        """The rows of one atom, decoded."""
        ids = RowIds.run(atom.file.key, atom.row, atom.rows)
        if not columns:
            return Block(Schema(), (), ids)
        form = self.files.form
        try:
            batch = form.decode(atom.data, atom.rows, columns)
        except RowError as error:
            bad, start, why = blamed(
                form, atom.data, lambda d, n: form.decode(d, n, columns), error
            )
            raise SourceError(
                f"row {atom.row + bad} of {atom.file.name} cannot be read",
                at=form.spot(atom.file, atom.row + bad, atom.at + start),
                why=why,
                try_=error.try_,
            ) from None
        return Block.from_arrow(batch, ids, self.projected(columns))

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """An atom's bytes, joined and parsed, what is read at once, and what unpacking holds.

        Of a file in a store also the block at hand, and the one ahead.
        """
        run = self.parts[unit.index]
        unpacking = UNPACKING_BYTES if self.files.form.packed(run.file) else 0
        fetched = min(run.file.size, 2 * BLOCK) if run.file.remote else 0
        return COPIES * run.widest + 2 * WINDOW + unpacking + fetched

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """The bytes of the run, or of the packed file."""
        run = self.parts[unit.index]
        return run.file.size if self.files.form.packed(run.file) else run.stop - run.start


def blamed(
    form: Form, data: bytes, decode: Callable[[bytes, int], object], error: RowError
) -> tuple[int, int, str]:
    """The first row of ``data`` that cannot be decoded, where it begins, and why; by halving."""
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


def spot(file: File, row: int, at: int, *, returns: bool = False) -> str:
    """Where row ``row`` is, of which byte ``at`` of the file is part."""
    return f"{file.path}, row {row}, line {line_at(file, at, returns=returns)}"


def line_at(file: File, at: int, *, returns: bool) -> int:
    r"""The line of a byte of a file, which is read again up to there.

    Lines end with ``\n``, and where ``returns`` count also with ``\r`` alone.
    """
    line, newlines = 1, io.IncrementalNewlineDecoder(None, translate=returns)
    with opened(file) as stream:
        while at > 0 and (piece := stream.read(min(at, WINDOW))):
            line += newlines.decode(piece.decode("latin-1")).count("\n")
            at -= len(piece)
    return line + newlines.decode("", final=True).count("\n")


def _decoded_bytes(schema: Schema, rows: int, nbytes: int) -> int:
    """Bytes of ``rows`` rows in memory, for what takes ``nbytes`` as it is stored."""
    codes = [code_of(kind) for kind in schema.values()]
    widths = sum(OFFSET if code == "arrow" else np.dtype(code).itemsize for code in codes)
    widths += sum(int(kind.byte_width) for kind in schema.values() if pa.types.is_decimal(kind))
    return rows * widths + nbytes * ("arrow" in codes)


def sample(file: File, form: Form, start: int) -> tuple[bytes, int]:
    """The first rows of a file, whole ones of about 1 MiB, and how many; b"" if it has none."""
    with form.open(file) as stream:
        stream.read(start)
        for data, ends in windows(stream, form):
            return data, len(ends)
    return b"", 0


def inferred(
    files: Sequence[File], form: Form, infer: Callable[[bytes, int], Schema]
) -> Schema | None:
    """The schema of the first rows of the first file that has any; None if none has.

    Rows after one that cannot be decoded are not looked at: reading will come to it. SourceError
    if it is the first.
    """
    for file in files:
        start = form.first(file)
        try:
            data, rows = sample(file, form, start)
        except SourceError as error:
            raise error.located(form.spot(file, 0, start + error.offset)) from None
        while rows:
            try:
                return infer(data, rows)
            except RowError as error:
                rows, at, why = blamed(form, data, infer, error)
                data = data[:at]  # in which another column may have an earlier one
                if not rows:
                    raise SourceError(
                        f"the first row of {file.name} cannot be read",
                        at=form.spot(file, 0, start + at),
                        why=why,
                        try_=error.try_,
                    ) from None
    return None
