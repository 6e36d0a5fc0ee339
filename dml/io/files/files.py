"""The base class of file sources is defined here: parts of files are its units."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import InternalError, SchemaError, SourceError
from dml.io.files.file_content import (
    State,
    contents,
    in_parallel,
    looked_at,
    revisions,
    settled_state,
    unread_bytes,
)
from dml.io.files.paths import FileKind, Paths, each_of, expand, missing
from dml.io.parquet.dictionary_sizes import check_texts
from dml.io.random_access import check_atom_rows
from dml.io.source import Source, Unit, balanced
from dml.kernels.rows.ids import RowIds, source_key

if TYPE_CHECKING:
    import pyarrow as pa

    from dml.io.parquet.statistics import Facts
    from dml.io.stores.stores import Remote


@dataclasses.dataclass(frozen=True, eq=False)
class File:
    """One file as it was when the source was built; ``name`` is its name in the set of files.

    ``remote`` gives access to a file in a store; ``path`` is then a URL for messages.
    """

    path: str
    name: str
    size: int
    mtime_ns: int
    remote: Remote | None = dataclasses.field(default=None, kw_only=True)

    @cached_property
    def key(self) -> int:
        """The high 64 bits of the ids of all rows of this file, derived from its name."""
        return source_key(self.name)

    def state(self) -> State | tuple[str, str] | None:
        """Return a value that differs after every change; None if no such value exists."""
        if self.remote is None:
            return settled_state(self.path)
        return (self.remote.url, self.remote.version) if self.remote.certain else None

    def changed_ns(self) -> int:
        """Return the change time in ns, which users cannot set; 0 for a file in a store.

        A deleted file counts as changed now.
        """
        if self.remote is not None:
            return 0
        try:
            return os.stat(self.path).st_ctime_ns
        except OSError:
            return time.time_ns()

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of every range (start, stop), without a check for changes of the file.

        Raise OSError for a file on disk, SourceError for a file in a store.
        """
        if self.remote is not None:
            return self.remote.fetch(ranges, checked=False)
        with open(self.path, "rb") as file:
            return [os.pread(file.fileno(), stop - start, start) for start, stop in ranges]

    def check_unchanged(self, *, fetching: bool = False) -> None:
        """Raise SourceError if the file is no longer the one that was opened.

        ``fetching`` is True if the caller reads bytes of the file: files in stores are checked at
        every fetch, so another request is unnecessary.
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
            from dml.io.stores.stores import changed  # noqa: PLC0415 - as all of that room here

            raise changed(SourceError, self.name, self.path, self.size, now.st_size)


T = TypeVar("T")
Some = TypeVar("Some", bound=File)


@dataclasses.dataclass(frozen=True, eq=False)
class FileSet:
    """Files of one schema below one folder, in order of their names.

    ``given`` describes the files in messages. ``digest`` covers the file names and the schema, so
    copies of the files in another folder have an equal digest.
    """

    root: str
    files: Sequence[File]
    given: str
    word: ClassVar[str] = "files"

    @property
    def schema(self) -> Schema:
        """Schema of every file."""
        raise InternalError(f"{type(self).__name__} has no schema")

    @cached_property
    def digest(self) -> bytes:
        """Digest of file names and schema, without content."""
        return digest(self.word, tuple(f.name for f in self.files), self.schema.to_arrow())

    def shard(self, num_shards: int, index: int) -> Self:
        """Return every ``num_shards``-th file from ``index`` on, with the schema of all files."""
        given = f"{self.given}, files {index}::{num_shards}"
        made = dataclasses.replace(self, files=tuple(self.files[index::num_shards]), given=given)
        made.__dict__["schema"] = self.schema
        return made

    def __repr__(self) -> str:
        return self.given


@dataclasses.dataclass(frozen=True, slots=True)
class FilePart:
    """Consecutive rows of a file, which are decoded in order, with their division into atoms.

    ``word`` is the format's term for a part, such as "row group", and ``number`` is the index of
    the part in the file; ``word`` is empty if the format has no such parts.
    """

    file: File
    number: int
    first_row: int
    rows: int
    atom_rows: int
    nbytes: int
    word: ClassVar[str] = ""
    is_row_group: ClassVar[bool] = False

    @property
    def atoms(self) -> int:
        """Number of atoms in the part."""
        return -(-self.rows // self.atom_rows)

    @property
    def place(self) -> str:
        """Description of the part for messages: the file name, and the part number or row range."""
        if self.word:
            return f"{self.file.name}, {self.word} {self.number}"
        return f"{self.file.name}, rows {self.first_row} to {self.first_row + self.rows - 1}"


SomePart = TypeVar("SomePart", bound=FilePart)


def numbered_parts(
    kind: type[SomePart], file: File, sizes: Iterable[tuple[int, int]], atom_rows: int | None
) -> Iterator[SomePart]:
    """Yield the parts of ``file`` with rows; ``sizes`` has each part's rows and decoded bytes."""
    first_row = 0
    for number, (rows, nbytes) in enumerate(sizes):
        if rows:
            each = atom_rows or balanced(rows, nbytes)
            yield kind(file, number, first_row, rows, each, nbytes)
        first_row += rows


class FileSource(Source):
    """Rows of files in order of file name, part and row; each part is a unit.

    Subclasses define ``parts``, and ``decoded`` if a part is decoded as a whole, else ``read``.
    Row ids come from the file's name below the common folder and the row's number in the file.
    """

    files: FileSet
    columns: tuple[str, ...] | None
    atom_rows: int | None
    word: ClassVar[str] = ""

    def files_shard(self, num_shards: int, index: int) -> Self:
        """Return the source of every ``num_shards``-th file from ``index`` on, names unchanged."""
        return self.replace(files=self.files.shard(num_shards, index))

    @property
    def parts(self) -> Sequence[FilePart]:
        """The parts that have rows."""
        raise InternalError(f"{type(self).__name__} has no parts")

    def check(self) -> None:
        """Raise PlanError unless ``atom_rows`` is None or a positive integer."""
        if self.atom_rows is not None:
            check_atom_rows(self.atom_rows, f"read_{self.word}")

    def infer(self) -> Schema:
        """Return the schema of the selected columns, in the requested order."""
        schema = self.files.schema
        if self.columns is None:
            return schema
        return Schema((name, schema.require(name, f"read_{self.word}")) for name in self.columns)

    @cached_property
    def _atom_ends(self) -> list[int]:
        return list(accumulate(part.atoms for part in self.parts))

    @cached_property
    def row_count(self) -> int | None:
        """Number of rows of all files."""
        return sum(part.rows for part in self.parts)

    @property
    def unit_count(self) -> int:
        """Number of parts that have rows."""
        return len(self.parts)

    @property
    def atom_count(self) -> int:
        """Number of atoms of all parts."""
        return self._atom_ends[-1] if self._atom_ends else 0

    def unit(self, index: int) -> Unit:
        """Return the unit of part ``index``, counted over all files."""
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
            row_group=part.number if part.is_row_group else None,
        )

    def facts(self, unit: Unit, column: str) -> Facts | None:
        """Return the statistics of a column of ``unit``; None if unknown without reading."""
        return None

    def changed_ns(self, unit: Unit) -> int:
        """Return the time of the last change of the unit's file, in ns."""
        return self.parts[unit.index].file.changed_ns()

    @property
    def far(self) -> bool:  # type: ignore[override]
        """True if the files are in a store."""
        return any(file.remote is not None for file in self.files.files[:1])

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the file size times the part's share of the file's rows."""
        part = self.parts[unit.index]
        return part.file.size * part.rows // self._rows_in[part.file.key]

    @cached_property
    def _rows_in(self) -> Counter[int]:
        """Number of rows of each file, by the file's key."""
        found = Counter[int]()
        for part in self.parts:
            found[part.file.key] += part.rows
        return found

    def projected(self, columns: tuple[str, ...]) -> Schema:
        """Return the schema of ``columns``."""
        return self.files.schema.select(columns)

    def decoded(self, index: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Decode ``columns`` of all rows of part ``index``."""
        raise InternalError(f"{type(self).__name__} does not decode parts at once")

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Decode a whole part in memory, and yield its atoms.

        Raises SourceError if the file is damaged, or has changed since it was opened, and
        MemoryContractError for an atom whose dictionary-encoded texts exceed the limit when
        decoded.
        """
        part = self.parts[unit.index]
        part.file.check_unchanged(fetching=bool(columns))
        starts = range(skip_atoms * part.atom_rows, part.rows, part.atom_rows)
        if not columns:
            yield from (bare(part, start) for start in starts)
            return
        batch = self.decoded(unit.index, columns)
        for start in starts:
            part.file.check_unchanged(fetching=True)
            piece = batch.slice(start, part.atom_rows)
            check_texts(piece, unit.most_bytes, unit.place)
            ids = RowIds.run(part.file.key, part.first_row + start, piece.num_rows)
            yield Block.from_arrow(piece, ids, self.projected(columns))

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the files, ascending (n,) uint64, and the position of each file's first row."""
        firsts: dict[int, int] = {}
        start = 0
        for part in self.parts:
            firsts.setdefault(part.file.key, start - part.first_row)
            start += part.rows
        keys = sorted(firsts)
        return np.array(keys, dtype=np.uint64), np.array([firsts[k] for k in keys], dtype=np.int64)

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Return the position of each row, counted over all files: (n,) int64."""
        keys, starts = self._starts
        high, low = ids.arrays()
        found: np.ndarray = starts[np.searchsorted(keys, high)] + low.astype(np.int64)
        return found

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of the first row in ``ids``; None if no part contains the row."""
        high, low = (int(half[0]) for half in ids.slice(0, 1).arrays())
        for index, part in enumerate(self.parts):
            if part.file.key == high and 0 <= low - part.first_row < part.rows:
                return self.unit(index)
        return None

    def identity(self) -> bytes:
        """Return a digest of names, sizes and content of the files; reads all their bytes once."""
        files = self.files.files
        named = contents([file.remote or file.path for file in files])
        for file in files:
            file.check_unchanged()
        return digest(self.word, [(f.name, f.size, c) for f, c in zip(files, named, strict=True)])

    def identity_bytes(self) -> float:
        """Return the bytes of files not yet digested; infinity if one of them is in a store."""
        return sum(unread_bytes(file.remote or file.path) for file in self.files.files)

    def content_parts(self, *, quick: bool) -> Iterator[tuple[str, str, bytes]]:
        """Yield three values for every file: its name, its size as text, and its digest.

        The digest is that of the content, or if ``quick`` the one from ``revisions``.
        """
        files = self.files.files
        known = (revisions if quick else contents)([file.remote or file.path for file in files])
        for file, name in zip(files, known, strict=True):
            yield f"file {file.name!r}", f"{file.size:,} bytes with digest {name.hex()[:8]}", name

    def opened(self) -> bytes:
        """Return a digest of names and states, or of content for files without a reliable state."""
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
        """Return a digest of the names and the ``revisions`` of the files."""
        files = self.files.files
        found = revisions([file.remote or file.path for file in files])
        for file in files:
            file.check_unchanged()
        return digest(self.word, self.likeness(), [f.name for f in files], found)

    def parameters_text(self) -> str:
        """Return the arguments of the source as written."""
        columns = "" if self.columns is None else f", columns={list(self.columns)}"
        atoms = "" if self.atom_rows is None else f", atom_rows={self.atom_rows}"
        return f"{self.files!r}{columns}{atoms}"


def bare(part: FilePart, start: int) -> Block:
    """Return the atom of ``part`` that begins at row ``start``, with row ids but no columns."""
    rows = min(part.atom_rows, part.rows - start)
    return Block(Schema(), (), RowIds.run(part.file.key, part.first_row + start, rows))


def listed(
    paths: Paths, kind: FileKind, options: object = None
) -> tuple[str, tuple[File, ...], str]:
    """Return the common folder of the files that ``paths`` denote, the files, and a description.

    ``options`` configure access to the store if ``paths`` are URLs.
    """
    given = paths if isinstance(paths, str | os.PathLike) else each_of(paths)
    there = in_stores(given, kind, options)
    if there is None:
        root, names = expand(given, kind)
        there = root, tuple(opened_file(os.path.join(root, name), name) for name in names)
    return *there, as_given(given, len(there[1]))


def in_stores(paths: Paths, kind: FileKind, options: object) -> tuple[str, tuple[File, ...]] | None:
    """Return the common folder and the files that URLs denote; None if all ``paths`` are local.

    Raise SourceError if only some of ``paths`` are URLs.
    """
    given = each_of(paths)
    urls = [path for path in given if isinstance(path, str) and "://" in path]
    if not urls:
        return None
    from dml.io.stores.remote_paths import find_files  # noqa: PLC0415
    from dml.io.stores.store_errors import shown_url  # noqa: PLC0415

    if len(urls) < len(given):
        here = next(str(path) for path in given if path not in urls)
        raise SourceError(
            "the files lie in several places",
            why=f"{shown_url(urls[0])} is in a store, {here} on this machine",
            try_="a source for each, then concat",
        )
    root, files = find_files(urls, kind, options)
    each = (File(there.url, name, there.size, 0, remote=there) for name, there in files.items())
    return root, tuple(each)


def several(read: Callable[[Some], T], files: Sequence[Some]) -> Iterable[T]:
    """Return the result of ``read`` for each file in order; read files in stores in parallel."""
    if not files or files[0].remote is None:
        return map(read, files)
    from dml.io.stores.remote_paths import ASKING_THREADS  # noqa: PLC0415

    return in_parallel(read, files, ASKING_THREADS)


def as_given(paths: Paths, count: int) -> str:
    """Return a single path as written (a URL without secrets); for several, "<count> files"."""
    if isinstance(paths, str | os.PathLike):
        text = os.fspath(paths)
        if "://" not in text:
            return repr(text)
        from dml.io.stores.store_errors import shown_url  # noqa: PLC0415

        return repr(shown_url(text))
    return f"{count} files"


def opened_file(path: str, name: str) -> File:
    """Return a local file with its current size and time; raise SourceError if inaccessible."""
    try:
        found = looked_at(path)
    except OSError as error:
        raise unreadable(path, error) from None
    return File(path, name, found.st_size, found.st_mtime_ns)


def unreadable(path: str, error: OSError) -> SourceError:
    """Build the SourceError for a file that is missing or not readable."""
    if isinstance(error, FileNotFoundError):
        return missing(path)
    return SourceError(f"{path} cannot be read", why=error.strerror or str(error))


def chosen(columns: object, door: str) -> tuple[str, ...] | None:
    """Return the names in ``columns`` as a tuple; None selects all columns.

    Raise SchemaError for duplicates and for other values than names. ``door`` is the public
    function that was called, for the message.
    """
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
