"""This file is a namespace of the store in a folder: on a disk of this host or a shared one.

What must be made once is written aside and linked to its name, which fails if there is one.
The root is made when the store is opened and never again: if it vanishes, or something else is
mounted there, the store is gone and nothing is written to what came instead.
"""

from __future__ import annotations

import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dml.exec.store.mapped import Mapped
from dml.exec.store.primitives import TMP, Found, OvertakenError, Sink, UnusableError, unusable
from dml.ownership import FOLDER, make_folders, own_file

SHARED_FOLDER, SHARED_FILE = 0o2770, 0o640
TRIES = 8  # folders are removed by others between making and using them


class Disk:
    """The folder ``below`` (such as ``v1/shared``) of ``root``, which is made if it is not there.

    ``fsync``: waits until each file and its name are on disk, so that power may fail, too.
    """

    maps = True

    def __init__(self, root: str | os.PathLike[str], below: str, *, fsync: bool = False) -> None:
        self._top = Path(os.path.abspath(root))
        self._root = self._top / below
        self.fsync = fsync
        with self.told("opened"):
            make_folders(self._top)
            self._identity = self._seen()

    def begin(self, name: str) -> Sink:
        """Write a name that nobody else writes, little by little."""
        with self.told("written"):
            return Writing(self, name, self._fresh())

    def put(self, name: str, data: bytes) -> None:
        """Write a name that nobody else writes."""
        sink = self.begin(name)
        try:
            sink.write(data)
            sink.finish()
        finally:
            sink.drop()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Whether this was the first to make ``name``."""
        with self.told("written"):
            made = self._fresh()
            try:
                with open(made, "xb", buffering=0, opener=self.opener) as file:
                    _write(file.fileno(), data)
                    if self.fsync:
                        os.fsync(file.fileno())
                self.named(made, name, os.link)
            except FileExistsError:
                return False
            finally:
                with suppress(OSError):
                    made.unlink()
        return True

    def get(self, name: str) -> bytes | None:
        """The bytes of ``name``, None if it is not there."""
        with self.told("read"):
            try:
                return (self._root / name).read_bytes()
            except FileNotFoundError:
                self._check()
        return None

    def fetch(self, name: str) -> Mapped | None:
        """A blob, None if it is not there."""
        with self.told("read"):
            try:
                return Mapped(f"{self._root}/{name}")
            except FileNotFoundError:
                self._check()
        return None

    def piece(self, name: str, start: int, count: int) -> memoryview | None:
        """Some of the bytes of a blob, None if it is not there."""
        found = self.fetch(name)
        return None if found is None else found.piece(start, count)

    def names(self, prefix: str) -> list[str]:
        """Every name below the folder ``prefix``."""
        with self.told("read"):
            return [self._relative(each, prefix) for each in self._below(prefix)]

    def delete(self, name: str) -> None:
        """Remove a name, and folders that nothing is left in."""
        path = self._root / name
        with self.told("written"), suppress(FileNotFoundError):
            path.unlink()
        if name.count("/") > 1:
            with suppress(OSError):  # others are in it, or have removed it
                path.parent.rmdir()

    def beat(self, name: str) -> bool:
        """Change the stamp of a name of one's own; False if it is gone."""
        with self.told("written"):
            try:
                os.utime(self._root / name)
            except FileNotFoundError:
                return False
        return True

    def stamp(self, name: str) -> str | None:
        """What changes with every beat; None if the name is gone."""
        with self.told("read"):
            try:
                seen = (self._root / name).stat()
            except FileNotFoundError:
                return None
        return f"{seen.st_ino} {seen.st_mtime_ns}"

    def found(self, prefix: str, *, looking: bool = False) -> list[Found]:
        """As ``names``, with sizes and ages by the clock of the disk, which may be another's.

        That clock is read off a file that is made for it: who is ``looking`` takes their own.
        """
        with self.told("read"):
            below, told = self._below(prefix), list[Found]()
            now = time.time_ns() if looking or not below else self._now_ns()
            for each in below:
                with suppress(FileNotFoundError):
                    seen = os.stat(each)
                    age_s = (now - seen.st_mtime_ns) / 1e9
                    told.append(Found(self._relative(each, prefix), seen.st_size, age_s))
        return told

    def clear(self, older_s: float) -> int:
        """Clear away what dead writers left, which nobody wrote for so long; how many."""
        old = [each for each in self.found(TMP) if each.age_s > older_s]
        for each in old:
            self.delete(f"{TMP}/{each.name}")
        return len(old)

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
        with self.told("written"):
            made = self._fresh()
            try:
                with open(made, "xb", opener=self.opener) as file:
                    return os.fstat(file.fileno()).st_mtime_ns
            finally:
                made.unlink(missing_ok=True)

    def _fresh(self) -> Path:
        """A path that nobody has, beside all others."""
        self._make(self._root / TMP)
        return self._root / TMP / uuid.uuid4().hex

    def named(self, made: Path, name: str, give: Callable[[Path, Path], None]) -> None:
        """Give ``made`` its name, in a folder that is there."""
        path = self._root / name
        for _ in range(TRIES):
            self._make(path.parent)
            with suppress(FileNotFoundError):
                give(made, path)
                break
        else:
            raise OvertakenError("files of the store vanish while they are made", at=str(path))
        if self.fsync:
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
                self._made(self._top / each)

    def _made(self, folder: Path) -> None:
        """Make a folder that is this user's alone, or its group's if that of the namespace is."""
        folder.mkdir(FOLDER)
        if self._root in folder.parents and self._is_shared:
            folder.chmod(SHARED_FOLDER)

    @property
    def _is_shared(self) -> bool:
        """Whether the namespace was opened to a group on purpose: a umask alone cannot do that."""
        try:
            return self._root.stat().st_mode & SHARED_FOLDER == SHARED_FOLDER
        except OSError:
            return False

    def opener(self, path: str, flags: int) -> int:
        """Make a file that its user alone may read, or the group of a shared namespace."""
        handle = own_file(path, flags)
        if self._is_shared:
            os.fchmod(handle, SHARED_FILE)
        return handle

    def _seen(self) -> tuple[int, int]:
        seen = self._top.stat()
        return seen.st_dev, seen.st_ino

    def _check(self) -> None:
        """FileNotFoundError if the root is not what was opened."""
        if self._seen() != self._identity:
            raise FileNotFoundError(2, "something else lies there by now", str(self._top))

    @contextmanager
    def told(self, done: str) -> Iterator[None]:
        try:
            yield
        except UnusableError:
            raise
        except OSError as error:
            raise unusable(str(self._top), error, done) from error


def _write(handle: int, data: bytes | memoryview) -> None:
    """All bytes, however many calls that takes."""
    left = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while left:
        left = left[os.write(handle, left) :]


class Writing:
    """A file that is written aside, until it has its name."""

    def __init__(self, disk: Disk, name: str, made: Path) -> None:
        self._disk, self._name, self._made = disk, name, made
        self._handle = disk.opener(os.fspath(made), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._drop = weakref.finalize(self, _dropped, self._handle, made, os.getpid())

    def write(self, data: bytes | memoryview, /) -> None:
        """Bytes that follow those before."""
        with self._disk.told("written"):
            _write(self._handle, data)

    def finish(self) -> None:
        """Give it its name."""
        with self._disk.told("written"):
            if self._disk.fsync:
                os.fsync(self._handle)
            self._disk.named(self._made, self._name, os.replace)
        self._drop()

    def drop(self) -> None:
        """Leave nothing of it, if it has no name."""
        self._drop()


def _dropped(handle: int, made: Path, process: int) -> None:
    """Close a file, and remove it unless it has another name by now, or another process has it."""
    os.close(handle)
    if os.getpid() == process:
        with suppress(OSError):
            made.unlink()
