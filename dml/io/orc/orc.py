"""ORC files are read by stripe: each is a unit, decoded at once in another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
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
    unreadable,
)
from dml.io.files.paths import FileKind, Paths
from dml.io.orc.orc_process import Answer, EndedError, UndecodedError, answer
from dml.io.source import Unit

KIND = FileKind("ORC", (".orc",))
MAGIC = b"ORC"
# Copies of a stripe: stored and decoded in the worker process, and received from it.
COPIES = 3
AGAIN = "copy or write the file again"


@dataclasses.dataclass(frozen=True, eq=False)
class OrcFile(TypedFile):
    """A file whose tail was read: row counts of its stripes, and the bytes of a row."""

    stripes: tuple[int, ...]
    width: float


class OrcFiles(TypedFiles):
    """ORC files of equal columns."""

    files: tuple[OrcFile, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Stripe(FilePart):
    """A stripe with at least one row."""

    file: OrcFile
    word: ClassVar[str] = "stripe"


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
        found: list[Stripe] = []
        for file in self.files.files:
            sizes = ((rows, int(rows * file.width)) for rows in file.stripes)
            found += numbered_parts(Stripe, file, sizes, self.atom_rows)
        return tuple(found)

    def decoded(self, index: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return the columns of a stripe from the worker process, validated by Arrow."""
        part = self.parts[index]
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
        """Return a digest of the sizes of the files and row counts of their stripes."""
        return digest("stripes", [(file.size, file.stripes) for file in self.files.files])

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Estimate a whole stripe: stored, decoded in the worker, and received."""
        return COPIES * self.parts[unit.index].nbytes

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the stripe's share of the file size."""
        part = self.parts[unit.index]
        return part.file.size * part.rows // max(1, sum(part.file.stripes))


def _answer(file: File, what: str, at: str, **request: Any) -> Answer:
    """Send a request about a file to the worker process; SourceError if it cannot be read."""
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
    """Read the tail of a file; SourceError that describes the damage."""
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
    """Read rows of ORC files: a file, a folder, a pattern, or a list of these, sorted by name.

    Footers are read now, stripes as a whole on demand, both in a separate process: the library that
    reads ORC terminates its process for some damaged files. At most four of these processes are
    started; each takes half a second to start and some 70 MB, and ends with this process.

    SourceError for files that are absent, damaged, of differing schemas, or in a store; SchemaError
    for an absent column.
    """
    root, plain, given = listed(paths, KIND, storage_options)
    if plain[0].remote is not None:
        raise SourceError(
            "ORC files cannot be read out of a store",
            at=plain[0].path,
            why="the process that decodes them opens files of this machine alone",
            try_="a copy in a folder, or Parquet files",
        )
    files = OrcFiles(root, of_one_schema(map(_opened, plain)), given)
    return OrcSource(files, chosen(columns, "read_orc"), atom_rows)
