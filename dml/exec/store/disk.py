"""This file is a namespace of the store in a folder: on a disk of this host or a shared one.

What must be made once is written aside and linked to its name, which fails if there is one.
The root is made when the store is opened and never again: if it vanishes, or something else is
mounted there, the store is gone and nothing is written to what came instead.
"""

from __future__ import annotations

import mmap
import os
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from dml.exec.store.primitives import TMP, Found, OvertakenError, Sink, UnusableError, unusable

PIECE = 512 << 10  # read at a time where all of a file is checked: it stays in the processor
TRIES = 8  # folders are removed by others between making and using them


class Disk:
    """The folder ``below`` (such as ``v1/shared``) of ``root``, which is made if it is not there.

    ``fsync``: waits until each file and its name are on disk, so that power may fail, too.
    """

    def __init__(self, root: str | os.PathLike[str], below: str, *, fsync: bool = False) -> None:
        self._top = Path(os.path.abspath(root))
        self._root = self._top / below
        self._fsync = fsync
        with self._told("opened"):
            self._top.mkdir(parents=True, exist_ok=True)
            self._identity = self._seen()

    @contextmanager
    def writing(self, name: str) -> Iterator[Sink]:
        """Write a name that nobody else writes; there as a whole at the end, or not at all."""
        with self._told("written"):
            made = self._fresh()
            try:
                with open(made, "xb", buffering=0) as file:
                    yield _Written(file.fileno())
                    if self._fsync:
                        os.fsync(file.fileno())
                self._named(made, name, os.replace)
            finally:
                with suppress(OSError):
                    made.unlink()

    def put(self, name: str, data: bytes) -> None:
        """The same of bytes."""
        with self.writing(name) as sink:
            sink.write(data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Whether this was the first to make ``name``."""
        with self._told("written"):
            made = self._fresh()
            try:
                with open(made, "xb", buffering=0) as file:
                    _Written(file.fileno()).write(data)
                    if self._fsync:
                        os.fsync(file.fileno())
                self._named(made, name, os.link)
            except FileExistsError:
                return False
            finally:
                with suppress(OSError):
                    made.unlink()
        return True

    def get(self, name: str) -> bytes | None:
        """The bytes of ``name``, None if it is not there."""
        with self._told("read"):
            try:
                return (self._root / name).read_bytes()
            except FileNotFoundError:
                self._check()
        return None

    def fetch(self, name: str) -> Mapped | None:
        """A blob, None if it is not there."""
        with self._told("read"):
            try:
                return Mapped(self._root / name)
            except FileNotFoundError:
                self._check()
        return None

    def names(self, prefix: str) -> list[str]:
        """Every name below the folder ``prefix``."""
        with self._told("read"):
            return [self._relative(each, prefix) for each in self._below(prefix)]

    def delete(self, name: str) -> None:
        """Remove a name, and folders that nothing is left in."""
        path = self._root / name
        with self._told("written"), suppress(FileNotFoundError):
            path.unlink()
        if name.count("/") > 1:
            with suppress(OSError):  # others are in it, or have removed it
                path.parent.rmdir()

    def beat(self, name: str) -> bool:
        """Change the stamp of a name of one's own; False if it is gone."""
        with self._told("written"):
            try:
                os.utime(self._root / name)
            except FileNotFoundError:
                return False
        return True

    def stamp(self, name: str) -> str | None:
        """What changes with every beat; None if the name is gone."""
        with self._told("read"):
            try:
                seen = (self._root / name).stat()
            except FileNotFoundError:
                return None
        return f"{seen.st_ino} {seen.st_mtime_ns}"

    def found(self, prefix: str) -> list[Found]:
        """As ``names``, with sizes and ages by the clock of the disk, which may be another's."""
        with self._told("read"):
            now, told = self._now_ns(), []
            for each in self._below(prefix):
                with suppress(FileNotFoundError):
                    seen = os.stat(each)
                    age_s = (now - seen.st_mtime_ns) / 1e9
                    told.append(Found(self._relative(each, prefix), seen.st_size, age_s))
        return told

    # ------------------------------------------------------------------------------------- inside

    def _below(self, prefix: str) -> list[str]:
        folders, files = [os.fspath(self._root / prefix)], list[str]()
        while folders:
            try:
                with os.scandir(folders.pop()) as entries:
                    for each in entries:
                        (folders if each.is_dir(follow_symlinks=False) else files).append(each.path)
            except FileNotFoundError:
                self._check()
        return files

    def _relative(self, path: str, prefix: str) -> str:
        return path[len(os.fspath(self._root / prefix)) + 1 :]

    def _now_ns(self) -> int:
        """The moment that a file gets that is made now."""
        made = self._fresh()
        try:
            with open(made, "xb") as file:
                return os.fstat(file.fileno()).st_mtime_ns
        finally:
            made.unlink(missing_ok=True)

    def _fresh(self) -> Path:
        """A path that nobody has, beside all others."""
        self._make(self._root / TMP)
        return self._root / TMP / uuid.uuid4().hex

    def _named(self, made: Path, name: str, give: Callable[[Path, Path], None]) -> None:
        """Give ``made`` its name, in a folder that is there."""
        path = self._root / name
        for _ in range(TRIES):
            self._make(path.parent)
            with suppress(FileNotFoundError):
                give(made, path)
                break
        else:
            raise OvertakenError("files of the store vanish while they are made", at=str(path))
        if self._fsync:
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _make(self, folder: Path) -> None:
        """A folder below the root, and never the root."""
        if folder.is_dir():
            return
        self._check()
        below = folder.relative_to(self._top)
        for each in (*list(reversed(below.parents))[1:], below):  # without the root
            with suppress(FileExistsError):
                (self._top / each).mkdir()

    def _seen(self) -> tuple[int, int]:
        seen = self._top.stat()
        return seen.st_dev, seen.st_ino

    def _check(self) -> None:
        """FileNotFoundError if the root is not what was opened."""
        if self._seen() != self._identity:
            raise FileNotFoundError(2, "something else lies there by now", str(self._top))

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        try:
            yield
        except UnusableError:
            raise
        except OSError as error:
            raise unusable(str(self._top), error, done) from error


class _Written:
    """A file that all bytes of a write go to, however many calls that takes."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def write(self, data: bytes | memoryview, /) -> None:
        left = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while left:
            left = left[os.write(self._handle, left) :]


class Mapped:
    """One blob on disk, open: what is read is this file, whatever has its name by then."""

    def __init__(self, path: Path) -> None:
        self._path, self._handle = path, os.open(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._handle)
        seen = os.fstat(self._handle)
        self.size = seen.st_size
        self.identity: str | None = f"{path.name} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns}"

    def pieces(self) -> Iterator[memoryview]:
        """All bytes, by reads: a page that cannot be read ends a process that maps it."""
        held = memoryview(bytearray(PIECE))
        try:
            place = 0
            while count := os.preadv(self._handle, [held], place):
                yield held[:count]
                place += count
        except OSError as error:
            raise unusable(str(self._path), error, "read") from error

    def buffer(self) -> pa.Buffer:
        """The file mapped into memory; the mapping outlives its name."""
        try:
            found = mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise unusable(str(self._path), error, "read") from error
        self._close()
        return pa.py_buffer(found)
