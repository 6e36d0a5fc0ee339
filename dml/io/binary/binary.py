"""Whole files are read as rows: a row per file, with its bytes and its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import SourceError
from dml.expr.node import op
from dml.io.files.files import File, FilePart, FileSet, FileSource, listed, several, unreadable
from dml.io.files.paths import FileKind, Paths
from dml.io.source import ATOM_BYTES, ATOM_ROWS, Unit, balanced
from dml.kernels.rows.ids import RowIds

KIND = FileKind("visible")
IMAGES = FileKind(
    "image",
    (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif", ".jp2"),
)
AUDIO = FileKind(
    "audio",
    (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".aifc", ".au", ".caf"),
)
VIDEO = FileKind(
    "video",
    (
        *(".mp4", ".m4v", ".mov", ".3gp", ".webm", ".mkv", ".avi", ".wmv", ".mpg", ".mpeg"),
        *(".ts", ".flv", ".ogv"),
    ),
)
BYTES, PATH = "bytes", "path"
COLUMNS = Schema({BYTES: pa.binary(), PATH: pa.string()})
# Arrow's offsets of binary values are 32 bits.
MOST_BYTES = (1 << 31) - 1
ROW_BYTES = 64
# Copies of the contents: as read, and as one column.
COPIES = 2


class WholeFiles(FileSet):
    """Files of any format, read as bytes."""

    schema = COLUMNS


@dataclasses.dataclass(frozen=True, slots=True)
class Several(FilePart):
    """Consecutive files from ``file`` to ``last``; ``first_row`` is the number of ``file``."""

    last: File

    @property
    def place(self) -> str:
        """Names of the first and last file, for messages."""
        same = self.rows == 1
        return self.file.name if same else f"{self.file.name} to {self.last.name}"


@op
class BinarySource(FileSource):
    """One row per file in order of file name: its bytes, and its name below the common folder.

    Each unit is one atom: ``atom_rows`` consecutive files, or without it at most 65,536 files of
    about 8 MiB together. A row's id is derived from the file's name alone.
    """

    files: WholeFiles
    include_paths: bool = True
    atom_rows: int | None = None
    word: ClassVar[str] = "binary_files"
    ids_apart: ClassVar[bool] = True  # type: ignore[misc]

    def infer(self) -> Schema:
        """Return the schema: column "bytes", and column "path" if requested."""
        return COLUMNS if self.include_paths else Schema({BYTES: COLUMNS[BYTES]})

    @cached_property
    def parts(self) -> tuple[Several, ...]:
        """Runs of consecutive files, one per unit; sizes and ``atom_rows`` determine them."""
        return tuple(self._runs())

    def _runs(self) -> Iterator[Several]:
        held: list[File] = []
        nbytes = first = 0
        most = ATOM_ROWS if self.atom_rows is None else self.atom_rows
        for file in self.files.files:
            full = self.atom_rows is None and nbytes + file.size > ATOM_BYTES
            if held and (full or len(held) == most):
                yield self._several(held, first, nbytes)
                held, nbytes, first = [], 0, first + len(held)
            held.append(file)
            nbytes += file.size + ROW_BYTES
        if held:
            yield self._several(held, first, nbytes)

    def _several(self, files: list[File], first: int, nbytes: int) -> Several:
        each = len(files) if self.atom_rows is None else self.atom_rows
        return Several(files[0], first, first, len(files), each, nbytes, files[-1])

    @property
    def addressable(self) -> bool:  # type: ignore[override]
        """True if ``atom_rows`` makes units of equal numbers of files."""
        return self.atom_rows is not None

    def addressed(self) -> BinarySource:
        """Return the same files in units of equal numbers of files."""
        if self.addressable or not self.files.files:
            return self
        nbytes = sum(file.size + ROW_BYTES for file in self.files.files)
        rows = balanced(len(self.files.files), nbytes)
        made: BinarySource = dataclasses.replace(self, atom_rows=rows).placed(self.where)
        return made

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the files, ascending (n,) uint64, and the number of each file."""
        keys = np.array([file.key for file in self.files.files], dtype=np.uint64)
        order = np.argsort(keys)
        return keys[order], order

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of the first row in ``ids``, with its file as ``place``, or None."""
        high, low = ids.slice(0, 1).arrays()
        keys, places = self._starts
        at = int(np.searchsorted(keys, high[0]))
        if int(low[0]) or at == len(keys) or keys[at] != high[0]:
            return None
        place = int(places[at])
        firsts = [part.first_row for part in self.parts]
        unit = self.unit(int(np.searchsorted(firsts, place, side="right")) - 1)
        name = self.files.files[place].name
        return dataclasses.replace(unit, place=name, file=name)

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Yield one block; open files only for column "bytes"."""
        if skip_atoms:
            return
        part = self.parts[unit.index]
        yield self._block(self.files.files[part.first_row : part.first_row + part.rows], columns)

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Read the files with the numbers ``index`` (n,) int64, in that order."""
        return self._block([self.files.files[n] for n in index.tolist()], columns)

    def _block(self, files: Sequence[File], columns: tuple[str, ...]) -> Block:
        """Open files for column "bytes" alone; raise SourceError if one has changed."""
        arrays = {}
        for name in columns:
            values = several(_content, files) if name == BYTES else (file.name for file in files)
            arrays[name] = pa.array(list(values), COLUMNS[name])
        schema = self.projected(columns)
        ids = RowIds.of_arrays(
            np.array([file.key for file in files], dtype=np.uint64),
            np.zeros(len(files), dtype=np.uint64),
        )
        return Block(schema, tuple(arrays[name] for name in columns), ids)

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return twice the bytes of the unit's files if column "bytes" is read, else 0."""
        return COPIES * unit.nbytes if BYTES in columns else 0

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the bytes of the unit's files if column "bytes" is read, else 0."""
        return unit.nbytes if BYTES in columns else 0

    def parameters_text(self) -> str:
        """Return the arguments as written."""
        paths = "" if self.include_paths else ", include_paths=False"
        atoms = "" if self.atom_rows is None else f", atom_rows={self.atom_rows}"
        return f"{self.files!r}{paths}{atoms}"


def _content(file: File) -> bytes:
    """Return all bytes of a file; raise SourceError if it is too large, or has changed."""
    if file.size > MOST_BYTES:
        raise SourceError(
            f"{file.name} is too large to be one value",
            at=file.path,
            why=f"it has {file.size} bytes; a value may have {MOST_BYTES}",
        )
    if file.remote is not None:
        return file.remote.fetch([(0, file.size)])[0]
    try:
        with open(file.path, "rb") as opened:
            found = opened.read(file.size + 1)
    except OSError as error:
        raise unreadable(file.path, error) from None
    file.check_unchanged()
    return found


def read_binary_files(
    paths: Paths,
    include_paths: bool = True,  # noqa: FBT001, FBT002 - the name that other libraries use
    *,
    kind: FileKind = KIND,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BinarySource:
    """Read a row per file: a file, all files of a folder, a pattern, or a list of these.

    Column "bytes" has the content of the file, and "path" its path relative to the common folder of
    all files, with "/" as separator; it does not depend on the location of that folder. Of folders,
    the files of ``kind`` are read. Raises
    SourceError for absent files, for a file of 2 GiB and more, or a file that has changed.
    """
    files = WholeFiles(*listed(paths, kind, storage_options))
    return BinarySource(files, bool(include_paths), atom_rows)
