"""This file holds what sources over files share: files, their parts as units, names of rows."""

from __future__ import annotations

import dataclasses
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np

from dml.errors import InternalError, SchemaError, SourceError
from dml.expr.block import Block
from dml.expr.computed import cached_property
from dml.expr.fingerprint import digest
from dml.expr.schema import Schema
from dml.expr.sources.addressed import check_atom_rows
from dml.expr.sources.file_content import (
    State,
    contents,
    looked_at,
    revisions,
    settled_state,
    unread_bytes,
)
from dml.expr.sources.paths import Kind, Paths, each_of, expand, missing
from dml.expr.sources.remote_paths import ASKING_THREADS, found, urls_in
from dml.expr.sources.source import Source, Unit
from dml.expr.sources.store_errors import shown_url
from dml.expr.sources.stores import Remote, changed
from dml.kernels.ids import RowIds, source_key

if TYPE_CHECKING:
    from dml.expr.sources.parquet_stats import Facts


@dataclasses.dataclass(frozen=True, eq=False)
class File:
    """One file as it was when the source was made; ``name`` is its name in the set of files.

    ``remote`` is how a file is read that is in a store; its ``path`` is then a URL for people.
    """

    path: str
    name: str
    size: int
    mtime_ns: int
    remote: Remote | None = dataclasses.field(default=None, kw_only=True)

    @cached_property
    def key(self) -> int:
        """What the ids of this file's rows share."""
        return source_key(self.name)

    def state(self) -> State | tuple[str, str] | None:
        """What is different after every change, if there is such a thing."""
        if self.remote is None:
            return settled_state(self.path)
        return (self.remote.url, self.remote.version) if self.remote.certain else None

    def changed_ns(self) -> int:
        """When it was changed last, which nobody can set; 0 of one in a store, which has versions.

        A file that is gone has changed now.
        """
        if self.remote is not None:
            return 0
        try:
            return os.stat(self.path).st_ctime_ns
        except OSError:
            return time.time_ns()

    def check_unchanged(self, *, fetching: bool = False) -> None:
        """SourceError if the file is no longer the one that was opened.

        ``fetching`` says that bytes of it are read here: those of a store are checked whenever they
        are fetched, so another request would tell nothing new.
        """
        if self.remote is not None:
            if not fetching:
                self.remote.check()
            return
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise unreadable(self.path, error) from None
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise changed(SourceError, self.name, self.path, self.size, now.st_size)


T = TypeVar("T")
Some = TypeVar("Some", bound=File)


@dataclasses.dataclass(frozen=True, eq=False)
class FileSet:
    """Files of one schema below one folder, in order of their names; ``given`` is for people.

    The name (``digest``) is made of the names in the folder and the schema: the same elsewhere.
    """

    root: str
    files: Sequence[File]
    given: str

    @property
    def schema(self) -> Schema:
        """Columns of every file."""
        raise InternalError(f"{type(self).__name__} has no schema")

    @cached_property
    def digest(self) -> bytes:
        """Name of the set: file names and schema, no content."""
        return digest("files", tuple(f.name for f in self.files), self.schema.to_arrow())

    def shard(self, num_shards: int, index: int) -> Self:
        """Every ``num_shards``-th file from ``index`` on; columns are those of all files."""
        given = f"{self.given}, files {index}::{num_shards}"
        made = dataclasses.replace(self, files=tuple(self.files[index::num_shards]), given=given)
        made.__dict__["schema"] = self.schema
        return made

    def __repr__(self) -> str:
        return self.given


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A run of rows of a file that one stream decodes, and how it is cut into atoms."""

    file: File
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
        return f"{self.file.name}, rows {self.first_row} to {self.first_row + self.rows - 1}"

    @property
    def row_group(self) -> int | None:
        """The number of the row group that it is, if it is one."""
        return None


class FileSource(Source):
    """Rows of files in order of file name, part, row; subclasses have ``parts`` and ``read``.

    A unit is a part. Row ids come from the file's name below the common folder and the row's
    number in the file.
    """

    files: FileSet
    columns: tuple[str, ...] | None
    atom_rows: int | None
    word: ClassVar[str] = ""

    def files_shard(self, num_shards: int, index: int) -> Self:
        """Some of the files, named as they are among all of them."""
        return self.replace(files=self.files.shard(num_shards, index))

    @property
    def parts(self) -> Sequence[Part]:
        """The parts that have rows."""
        raise InternalError(f"{type(self).__name__} has no parts")

    def check(self) -> None:
        """Atoms have rows."""
        if self.atom_rows is not None:
            check_atom_rows(self.atom_rows, f"read_{self.word}")

    def infer(self) -> Schema:
        """The selected columns, in the order asked for."""
        schema = self.files.schema
        if self.columns is None:
            return schema
        return Schema((name, schema.require(name, f"read_{self.word}")) for name in self.columns)

    @cached_property
    def _atom_ends(self) -> list[int]:
        return list(accumulate(part.atoms for part in self.parts))

    @cached_property
    def row_count(self) -> int | None:
        """Rows of all files."""
        return sum(part.rows for part in self.parts)

    @property
    def unit_count(self) -> int:
        """Number of parts that have rows."""
        return len(self.parts)

    @property
    def atom_count(self) -> int:
        """Atoms of all parts."""
        return self._atom_ends[-1] if self._atom_ends else 0

    def unit(self, index: int) -> Unit:
        """Part ``index``, counted over all files."""
        if not 0 <= index < self.unit_count:
            raise InternalError(f"{self.title()} has no unit {index}")
        part = self.parts[index]
        return Unit(
            index=index,
            atom=self._atom_ends[index] - part.atoms,
            atoms=part.atoms,
            rows=part.rows,
            atom_rows=part.atom_rows,
            nbytes=part.nbytes,
            place=part.place,
            file=part.file.name,
            row_group=part.row_group,
        )

    def facts(self, unit: Unit, column: str) -> Facts | None:
        """What is known of a column of ``unit`` without reading it, if files say anything."""
        del unit, column
        return None

    def changed_ns(self, unit: Unit) -> int:
        """Of its file."""
        return self.parts[unit.index].file.changed_ns()

    @property
    def far(self) -> bool:
        """True if they are in a store."""
        return any(file.remote is not None for file in self.files.files[:1])

    def unit_of_atom(self, atom: int) -> int:
        """Index of the part that holds atom number ``atom``."""
        return bisect_right(self._atom_ends, atom)

    @cached_property
    def _projections(self) -> dict[tuple[str, ...], Schema]:
        return {}

    def projected(self, columns: tuple[str, ...]) -> Schema:
        """The one schema object of all blocks with these columns: comparing it costs nothing."""
        found = self._projections.get(columns)
        if found is None:
            found = Schema((name, self.files.schema[name]) for name in columns)
            self._projections[columns] = found
        return found

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the files in ascending order, and the global position of each one's first row."""
        firsts: dict[int, int] = {}
        start = 0
        for part in self.parts:
            firsts.setdefault(part.file.key, start - part.first_row)
            start += part.rows
        keys = sorted(firsts)
        return np.array(keys, dtype=np.uint64), np.array([firsts[k] for k in keys], dtype=np.int64)

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Rows of the files before, and the row's number in its own file."""
        keys, starts = self._starts
        high, low = ids.arrays()
        found: np.ndarray = starts[np.searchsorted(keys, high)] + low.astype(np.int64)
        return found

    def unit_of(self, ids: RowIds) -> Unit | None:
        """The part of a row, by its file's key and its number in the file."""
        high, low = (int(half[0]) for half in ids.slice(0, 1).arrays())
        for index, part in enumerate(self.parts):
            if part.file.key == high and 0 <= low - part.first_row < part.rows:
                return self.unit(index)
        return None

    def identity(self) -> bytes:
        """Names, sizes and content of the files; reads all their bytes once."""
        files = self.files.files
        named = contents([file.remote or file.path for file in files])
        for file in files:
            file.check_unchanged()
        return digest(self.word, [(f.name, f.size, c) for f, c in zip(files, named, strict=True)])

    def identity_bytes(self) -> float:
        """What was not read for it yet; nothing is fetched from a store for it."""
        return sum(unread_bytes(file.remote or file.path) for file in self.files.files)

    def content_parts(self, *, quick: bool) -> Iterator[tuple[str, str, bytes]]:
        """Every file with its content."""
        files = self.files.files
        known = (revisions if quick else contents)([file.remote or file.path for file in files])
        for file, name in zip(files, known, strict=True):
            yield f"file {file.name!r}", f"{file.size:,} bytes with digest {name.hex()[:8]}", name

    def opened(self) -> bytes:
        """Names and states of the files; the content of those whose state could hide a change."""
        files = self.files.files
        states = [file.state() for file in files]
        hiding = [file for file, state in zip(files, states, strict=True) if state is None]
        read = contents([file.remote or file.path for file in hiding])
        for file in hiding:
            file.check_unchanged()
        after = iter(read)
        named = [
            (file.name, state or next(after)) for file, state in zip(files, states, strict=True)
        ]
        return digest(self.word, self.likeness(), named)

    def revision(self) -> bytes:
        """Names of the files and what tells their content apart (``revisions``)."""
        files = self.files.files
        found = revisions([file.remote or file.path for file in files])
        for file in files:
            file.check_unchanged()
        return digest(self.word, self.likeness(), [f.name for f in files], found)

    def shown(self) -> str:
        """As it was written."""
        columns = "" if self.columns is None else f", columns={list(self.columns)}"
        atoms = "" if self.atom_rows is None else f", atom_rows={self.atom_rows}"
        return f"{self.files!r}{columns}{atoms}"


def bare(part: Part, start: int) -> Block:
    """The atom of ``part`` from its row ``start`` on, without columns: only rows and ids."""
    rows = min(part.atom_rows, part.rows - start)
    return Block(Schema(), (), RowIds.run(part.file.key, part.first_row + start, rows))


def listed(paths: Paths, kind: Kind, options: object = None) -> tuple[str, tuple[File, ...], str]:
    """The common folder of the files that ``paths`` mean, the files, and the paths for people.

    ``options`` open the store that URLs lead to.
    """
    given = paths if isinstance(paths, str | os.PathLike) else each_of(paths)
    there = in_stores(given, kind, options)
    if there is not None:
        return *there, as_given(given, len(there[1]))
    root, names = expand(given, kind)
    files = tuple(opened_file(os.path.join(root, name), name) for name in names)
    return root, files, as_given(given, len(files))


def in_stores(paths: Paths, kind: Kind, options: object) -> tuple[str, tuple[File, ...]] | None:
    """Folder and files that URLs mean; None if ``paths`` are of this machine."""
    given = each_of(paths)
    urls = list(urls_in(given))
    if not urls:
        return None
    if len(urls) < len(given):
        here = next(str(path) for path in given if path not in urls)
        raise SourceError(
            "the files lie in several places",
            why=f"{shown_url(urls[0])} is in a store, {here} on this machine",
            try_="a source for each, then concat",
        )
    root, files = found(urls, kind, options)
    each = (File(there.url, name, there.size, 0, remote=there) for name, there in files.items())
    return root, tuple(each)


def several(read: Callable[[Some], T], files: Sequence[Some]) -> Iterator[T]:
    """What ``read`` gives for each file, in order; of files in stores several at a time."""
    if len(files) < 2 or files[0].remote is None:
        yield from map(read, files)
        return
    with ThreadPoolExecutor(min(ASKING_THREADS, len(files))) as pool:
        yield from pool.map(read, files)


def as_given(paths: Paths, count: int) -> str:
    """The paths as they were written, if that is short; URLs without what may be secret."""
    if isinstance(paths, str | os.PathLike):
        return repr(shown_url(os.fspath(paths)))
    return f"{count} files"


def opened_file(path: str, name: str) -> File:
    """A file as it is now; SourceError if it is not there, or no file."""
    try:
        found = looked_at(path)
    except OSError as error:
        raise unreadable(path, error) from None
    return File(path, name, found.st_size, found.st_mtime_ns)


def unreadable(path: str, error: OSError) -> SourceError:
    """The error for a file that is not there, or may not be read."""
    if isinstance(error, FileNotFoundError):
        return missing(path)
    return SourceError(f"{path} cannot be read", why=error.strerror or str(error))


def chosen(columns: object, door: str) -> tuple[str, ...] | None:
    """The names that were asked for, each once; SchemaError for what is no list of names."""
    if columns is None:
        return None
    if not isinstance(columns, str | Iterable):
        raise SchemaError(
            f"{door} needs a list of column names, got columns={columns!r}",
            why=f"it is of type {type(columns).__name__}",
            try_='columns=["a", "b"], or no columns= for all of them',
        )
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SchemaError(
            f"{door} is asked for column {twice!r} twice",
            why=f"columns={list(names)}; names in a row are different",
            try_=f"with_columns(copy=col({twice!r})) for a second copy",
        )
    return names
