"""This file reads ORC files: stripes are the units, each decoded at once in another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from dml.errors import SourceError
from dml.expr.block import Block
from dml.expr.computed import cached_property
from dml.expr.fingerprint import digest
from dml.expr.node import op
from dml.expr.schema import Schema
from dml.expr.sources.file_schemas import TypedFile, check_columns, check_same, columns_in
from dml.expr.sources.files import (
    File,
    FileSet,
    FileSource,
    Part,
    bare,
    chosen,
    listed,
    unreadable,
)
from dml.expr.sources.orc_process import Answer, EndedError, UndecodedError, answer
from dml.expr.sources.paths import Kind, Paths
from dml.expr.sources.source import Unit, balanced
from dml.kernels.ids import RowIds

KIND = Kind("ORC", (".orc",))
MAGIC = b"ORC"
# A stripe as it is stored and decoded in the other process, and as it came from there.
COPIES = 3
AGAIN = "copy or write the file again"


@dataclasses.dataclass(frozen=True, eq=False)
class OrcFile(TypedFile):
    """A file whose tail was read: the rows of its stripes, and the bytes of a row."""

    stripes: tuple[int, ...]
    width: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrcFiles(FileSet):
    """Files of equal columns."""

    files: tuple[OrcFile, ...]

    @cached_property
    def schema(self) -> Schema:
        """Columns of every file."""
        return Schema(columns_in(self.files[0].arrow_schema))


@dataclasses.dataclass(frozen=True, slots=True)
class Stripe(Part):
    """A stripe with rows."""

    file: OrcFile

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.file.name}, stripe {self.number}"


@op
class OrcSource(FileSource):
    """Rows of ORC files in order of file name, stripe, row.

    A unit is a stripe, and atoms are equal runs of its rows.
    """

    files: OrcFiles
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None
    word: ClassVar[str] = "orc"

    @cached_property
    def parts(self) -> tuple[Stripe, ...]:
        """The stripes that have rows."""
        return tuple(stripe for file in self.files.files for stripe in self._stripes(file))

    def _stripes(self, file: OrcFile) -> Iterator[Stripe]:
        first = 0
        for number, rows in enumerate(file.stripes):
            if rows:
                nbytes = int(rows * file.width)
                each = self.atom_rows or balanced(rows, nbytes)
                yield Stripe(file, number, first, rows, each, nbytes)
            first += rows

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Have a stripe decoded, and cut it; memory is that of the stripe.

        Raises SourceError where the file is damaged, or has changed since it was opened.
        """
        part = self.parts[unit.index]
        part.file.check_unchanged()
        starts = range(skip_atoms * part.atom_rows, part.rows, part.atom_rows)
        if not columns:
            yield from (bare(part, start) for start in starts)
            return
        batch = self._decoded(part, columns)
        for start in starts:
            part.file.check_unchanged()
            piece = batch.slice(start, part.atom_rows)
            ids = RowIds.run(part.file.key, part.first_row + start, piece.num_rows)
            yield Block.from_arrow(piece, ids, self.projected(columns))

    def _decoded(self, part: Stripe, columns: tuple[str, ...]) -> pa.RecordBatch:
        """The columns of a stripe, checked to be what Arrow allows."""
        at = f"{part.file.path}, rows {part.first_row} to {part.first_row + part.rows - 1}"
        what = f"stripe {part.number} of {part.file.name}"
        found = _answer(part.file, what, at, stripe=part.number, columns=columns)[1]
        try:
            found.validate(full=True)
        except pa.ArrowException as error:
            raise _damaged(what, at, error) from None
        types = [part.file.arrow_schema.field(name).type for name in columns]
        batches = found.to_batches()
        if found.num_rows != part.rows or found.schema.types != types or len(batches) != 1:
            raise _damaged(what, at, f"it has {found.num_rows} rows of {found.schema.types}")
        return batches[0]

    def likeness(self) -> bytes:
        """Sizes of the files, and rows of their stripes."""
        return digest("stripes", [(file.size, file.stripes) for file in self.files.files])

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """A whole stripe: as it is stored, decoded there, and here."""
        return COPIES * self.parts[unit.index].nbytes

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """The stripe's share of the file."""
        part = self.parts[unit.index]
        return part.file.size * part.rows // max(1, sum(part.file.stripes))


def _answer(file: File, what: str, at: str, **request: Any) -> Answer:
    """What the other process says of a file; SourceError for what it cannot read."""
    try:
        return answer({"path": file.path, **request})
    except UndecodedError as error:
        file.check_unchanged()
        if isinstance(error, EndedError) and error.outside:
            raise SourceError(
                f"{what} could not be read",
                at=at,
                why=f"{error}, from outside; memory may have run out",
                try_="again, with more memory, or files of smaller stripes",
            ) from None
        raise _damaged(what, at, error) from None


def _damaged(what: str, at: str, why: object) -> SourceError:
    return SourceError(f"{what} is damaged", at=at, why=str(why), try_=AGAIN)


def _opened(file: File) -> OrcFile:
    """A file with what its tail says; SourceError that says what is wrong with it."""
    try:
        with open(file.path, "rb") as opened:
            head = opened.read(len(MAGIC))
    except OSError as error:
        raise unreadable(file.path, error) from None
    if head != MAGIC:
        raise SourceError(
            f"{file.path} is not an ORC file",
            why=f"it begins with {head!r}, ORC files begin with {MAGIC!r}",
            try_="the reader of its own format",
        )
    said, none = _answer(file, file.path, "")
    rows = tuple(said["rows"])
    own = (file.path, file.name, file.size, file.mtime_ns, none.schema)
    return OrcFile(*own, rows, said["nbytes"] / max(1, sum(rows)))


def read_orc(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> OrcSource:
    """Rows of ORC files: a file, a folder, a pattern, or a list of these, sorted by name.

    Footers are read now, a stripe as a whole when it is needed, both in a process that does nothing
    else: the library that reads ORC ends its process for some damaged files. At most four of these
    are started, each takes half a second to start and some 70 MB, and ends with this process.

    SourceError for files that are absent, damaged, of differing schemas, or in a store; SchemaError
    for a column that is not there.
    """
    root, plain, given = listed(paths, KIND, storage_options)
    if plain[0].remote is not None:
        raise SourceError(
            "ORC files cannot be read out of a store",
            at=plain[0].path,
            why="the process that decodes them opens files of this machine alone",
            try_="a copy in a folder, or Parquet files",
        )
    files = tuple(map(_opened, plain))
    check_columns(files[0])
    for file in files[1:]:
        check_same(files[0], file)
    return OrcSource(OrcFiles(root, files, given), chosen(columns, "read_orc"), atom_rows)
