"""Keep a namespace of the store in a folder: on a disk of this host or a shared one.

A file that must be created once is written under a temporary name and then linked to its name,
which fails if the name exists. The root is created when the store is opened and never again: if it
vanishes, or another file system is mounted there, the store is gone and nothing is written there.
"""

from __future__ import annotations

import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dml.base.ownership import FOLDER, make_folders, own_file
from dml.cache.parts.mapped_blob import Mapped
from dml.cache.store.primitives import (
    TMP,
    ListedName,
    OvertakenError,
    Sink,
    UnusableError,
    unusable,
)

SHARED_FOLDER, SHARED_FILE = 0o2770, 0o640
TRIES = 8  # other processes may remove folders between making and using them


class Disk:
    """The folder ``below`` (such as ``v1/shared``) of ``root``, which is created if missing."""

    maps = True

    def __init__(self, root: str | os.PathLike[str], below: str) -> None:
        self._top = Path(os.path.abspath(root))
        self._root = self._top / below
        with self.translate_errors("opened"):
            make_folders(self._top)
            self._identity = self._seen()

    def begin(self, name: str) -> Sink:
        """Return a sink for a name that no other process writes."""
        with self.translate_errors("written"):
            return Writing(self, name, self._fresh())

    def put(self, name: str, data: bytes) -> None:
        """Write bytes to a name that no other process writes."""
        sink = self.begin(name)
        try:
            sink.write(data)
            sink.finish()
        finally:
            sink.drop()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create ``name``; return True if this call was the first to do so."""
        with self.translate_errors("written"):
            made = self._fresh()
            try:
                with open(made, "xb", buffering=0, opener=self.opener) as file:
                    _write(file.fileno(), data)
                self.named(made, name, os.link)
            except FileExistsError:
                return False
            finally:
                with suppress(OSError):
                    made.unlink()
        return True

    def get(self, name: str) -> bytes | None:
        """Return the bytes of ``name``; None if it does not exist."""
        with self.translate_errors("read"):
            try:
                return (self._root / name).read_bytes()
            except FileNotFoundError:
                self._check()
        return None

    def fetch(self, name: str) -> Mapped | None:
        """Return the blob ``name``, mapped; None if it does not exist."""
        with self.translate_errors("read"):
            try:
                return Mapped(f"{self._root}/{name}")
            except FileNotFoundError:
                self._check()
        return None

    def piece(self, name: str, start: int, count: int) -> memoryview | None:
        """Return ``count`` bytes of a blob from ``start`` on; None if it does not exist."""
        found = self.fetch(name)
        return None if found is None else found.piece(start, count)

    def names(self, prefix: str) -> list[str]:
        """Return every name below the folder ``prefix``, relative to the folder."""
        with self.translate_errors("read"):
            return [self._relative(each, prefix) for each in self._below(prefix)]

    def delete(self, name: str) -> None:
        """Remove ``name``, and its folder if that is empty then."""
        path = self._root / name
        with self.translate_errors("written"), suppress(FileNotFoundError):
            path.unlink()
        if name.count("/") > 1:
            with suppress(OSError):  # it is not empty, or was removed
                path.parent.rmdir()

    def beat(self, name: str) -> bool:
        """Change the stamp of ``name`` as a heartbeat; return False if the name is gone."""
        with self.translate_errors("written"):
            try:
                os.utime(self._root / name)
            except FileNotFoundError:
                return False
        return True

    def stamp(self, name: str) -> str | None:
        """Return a value that changes with every heartbeat; None if the name is gone."""
        with self.translate_errors("read"):
            try:
                seen = (self._root / name).stat()
            except FileNotFoundError:
                return None
        return f"{seen.st_ino} {seen.st_mtime_ns}"

    def list_files(self, prefix: str, *, looking: bool = False) -> list[ListedName]:
        """Return the names below ``prefix`` with sizes in bytes and ages in seconds.

        Ages are by the clock of the disk, which a new file shows. With ``looking``, no file is
        written, and ages are by the local clock.
        """
        with self.translate_errors("read"):
            below, told = self._below(prefix), list[ListedName]()
            now = time.time_ns() if looking or not below else self._now_ns()
            for each in below:
                with suppress(FileNotFoundError):
                    seen = os.stat(each)
                    age_s = (now - seen.st_mtime_ns) / 1e9
                    told.append(ListedName(self._relative(each, prefix), seen.st_size, age_s))
        return told

    def clear(self, older_s: float) -> int:
        """Remove leftovers of dead writers older than ``older_s``, and return their number."""
        old = [each for each in self.list_files(TMP) if each.age_s > older_s]
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
        """Return the time of the disk in nanoseconds, read off a new file."""
        with self.translate_errors("written"):
            made = self._fresh()
            try:
                with open(made, "xb", opener=self.opener) as file:
                    return os.fstat(file.fileno()).st_mtime_ns
            finally:
                made.unlink(missing_ok=True)

    def _fresh(self) -> Path:
        """Return the path of an unused temporary name."""
        self._make(self._root / TMP)
        return self._root / TMP / uuid.uuid4().hex

    def named(self, made: Path, name: str, give: Callable[[Path, Path], None]) -> None:
        """Give the file ``made`` its ``name`` by calling ``give``; create the folder first."""
        path = self._root / name
        for _ in range(TRIES):
            self._make(path.parent)
            with suppress(FileNotFoundError):
                give(made, path)
                return
        raise OvertakenError("files of the store vanish while they are made", at=str(path))

    def _make(self, folder: Path) -> None:
        """Create a folder below the root, and its parents, but never the root."""
        if folder.is_dir():
            return
        self._check()
        below = folder.relative_to(self._top)
        for each in (*list(reversed(below.parents))[1:], below):  # without the root
            with suppress(FileExistsError):
                self._mkdir(self._top / each)

    def _mkdir(self, folder: Path) -> None:
        """Create a folder, private to this user, or to the group if the namespace is shared."""
        folder.mkdir(FOLDER)
        if self._root in folder.parents and self._is_shared:
            folder.chmod(SHARED_FOLDER)

    @property
    def _is_shared(self) -> bool:
        """True if the namespace was opened to a group on purpose: a umask alone cannot do that."""
        try:
            return self._root.stat().st_mode & SHARED_FOLDER == SHARED_FOLDER
        except OSError:
            return False

    def opener(self, path: str, flags: int) -> int:
        """Open a new file that only its user or the group of a shared namespace can read."""
        handle = own_file(path, flags)
        if self._is_shared:
            os.fchmod(handle, SHARED_FILE)
        return handle

    def _seen(self) -> tuple[int, int]:
        seen = self._top.stat()
        return seen.st_dev, seen.st_ino

    def _check(self) -> None:
        """Raise FileNotFoundError if the root is not the folder that was opened."""
        if self._seen() != self._identity:
            raise FileNotFoundError(2, "something else lies there by now", str(self._top))

    @contextmanager
    def translate_errors(self, done: str) -> Iterator[None]:
        """Translate an OSError of the ``with`` block to UnusableError.

        ``done`` is the participle of what failed, such as "read".
        """
        try:
            yield
        except UnusableError:
            raise
        except OSError as error:
            raise unusable(str(self._top), error, done) from error


def _write(handle: int, data: bytes | memoryview) -> None:
    """Write all bytes to a file handle, in as many calls as needed."""
    left = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while left:
        left = left[os.write(handle, left) :]


class Writing:
    """A file that is written under a temporary name, until ``finish`` gives it its name."""

    def __init__(self, disk: Disk, name: str, made: Path) -> None:
        self._disk, self._name, self._made = disk, name, made
        self._handle = disk.opener(os.fspath(made), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._drop = weakref.finalize(self, _dropped, self._handle, made, os.getpid())

    def write(self, data: bytes | memoryview, /) -> None:
        """Append bytes."""
        with self._disk.translate_errors("written"):
            _write(self._handle, data)

    def finish(self) -> None:
        """Give the file its name."""
        with self._disk.translate_errors("written"):
            self._disk.named(self._made, self._name, os.replace)
        self._drop()

    def drop(self) -> None:
        """Remove the file, unless it is finished."""
        self._drop()


def _dropped(handle: int, made: Path, process: int) -> None:
    """Close a file, and remove its temporary name unless another process created the file."""
    os.close(handle)
    if os.getpid() == process:
        with suppress(OSError):
            made.unlink()
