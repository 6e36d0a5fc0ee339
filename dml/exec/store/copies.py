"""This file keeps copies of blobs on a disk of this machine, so that what lies far is fetched once.

A copy lies under the name of its blob, in a folder of its entry. It is checked like its blob, by
what the record says, and may be gone or damaged at any time: then the blob itself is read. So
nobody leases, ends or lists copies; whoever needs room removes those of entries not in use.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dml.exec.store import layout
from dml.exec.store.copy_room import USED, Allowance, Chunk, CopyRoom
from dml.exec.store.disk import Disk
from dml.exec.store.mapped import Mapped
from dml.exec.store.primitives import Found, OvertakenError, Sink, UnusableError
from dml.exec.store.standing import Standing
from dml.read_times import ReadTimes

TOLD_S = 5.0  # between two notes of a process that an entry is read
ON_DISK = "copies on this machine"
BELOW = f"{layout.FORMAT}/copies"

Pieces = Callable[[int, int], memoryview | None]
"""Some of the bytes of a blob, from where and how many; None if it is gone."""


class Times(NamedTuple):
    """Seconds for parts of so many bytes, as was measured or is believed."""

    near: ReadTimes
    """Read from the disk of this machine."""
    written: ReadTimes
    """Written there."""
    far: ReadTimes
    """Read from the store."""


def folder_of(above: str) -> Path:
    """The folder of this user's copies below ``above``, which nobody else can look into.

    Who can write there decides which rows are read, and who can read there sees what a store may
    keep from them. UnusableError if it is another user's.
    """
    folder = Path(os.path.abspath(os.path.expanduser(above))) / f"copies-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.lstat()
        if seen.st_uid != os.geteuid() or folder.is_symlink():
            raise _unfit(folder, "it is another user's")
        if seen.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise _unfit(folder, error.strerror or str(error)) from error
    return folder


def _unfit(folder: Path, why: str) -> UnusableError:
    return UnusableError(
        "copies cannot be kept", at=str(folder), why=why, try_="another cache_local_dir"
    )


class Copies:
    """The copies in one folder, for all stores of a process; nothing is raised for their sake."""

    def __init__(
        self,
        disk: Disk,
        most_bytes: int,
        measured: Callable[[], Times],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.disk, self.most_bytes, self.clock = disk, most_bytes, clock
        self._measured, self._measuring = measured, threading.Lock()
        self._times: Times | None = None
        self.standing = Standing(ON_DISK)
        self.allowance = Allowance(disk, most_bytes)
        self._told: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def times(self) -> Times:
        """How long copies take, and what they are copies of; measured when it is first asked."""
        with self._measuring:
            if self._times is None:
                self._times = self._measured()
        return self._times

    def fetch(self, entry: str, blob: str) -> Mapped | None:
        """The copy of a blob, if there is one."""
        found: Mapped | None = None
        if self.standing.unusable is None:
            with self.failing():
                found = self.disk.fetch(_name(entry, blob))
        if found is not None and self.standing.unwritable is None:
            with self.failing():
                self._used(entry)
        return found

    def begin(self, entry: str, blob: str, nbytes: int = 0) -> Copying:
        """Write a copy little by little; of ``nbytes``, if that is known."""
        return Copying(self, entry, blob, nbytes)

    def put(self, entry: str, blob: str, size: int, pieces: Pieces, each: int) -> bool:
        """Whether there is a copy now of a blob that ``pieces`` gives, so many bytes at a time.

        What fails there is raised.
        """
        made = self.begin(entry, blob, size)
        try:
            for start in range(0, size, each):
                piece = pieces(start, min(each, size - start)) if made.has_room else None
                if piece is None:
                    return False
                made.write(piece)
            return made.finish()
        finally:
            made.drop()

    def drop(self, entry: str, blob: str) -> None:
        """Remove a copy, if there is one."""
        if self.standing.whole:
            with self.failing():
                self.disk.delete(_name(entry, blob))

    def remove(self, entry: str) -> None:
        """Remove all copies of an entry."""
        if self.standing.whole:
            with self.failing():
                folder = f"{layout.BLOBS}/{entry}"
                for each in self.disk.names(folder):
                    self.disk.delete(f"{folder}/{each}")
                self.disk.delete(f"{USED}/{entry}")

    def clear(self) -> None:
        """Clear away what the dead have left."""
        if self.standing.whole:
            with self.failing():
                CopyRoom(self.disk, self.most_bytes, "").used_bytes()

    def close(self) -> None:
        """Nothing more will be written."""
        with self.failing():
            self.allowance.close()

    def used_bytes(self, entry: str = "") -> int:
        """Bytes of all copies, or of those of one entry; 0 if that cannot be told."""
        found: list[Found] = []
        with self.failing():
            found = self.disk.found(f"{layout.BLOBS}/{entry}".rstrip("/"))
        return sum(each.size for each in found)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What fails is said once; runs go on without it."""
        try:
            yield
        except OvertakenError:
            return
        except UnusableError as error:
            self.standing.give_up(error)

    def _used(self, entry: str) -> None:
        """Note for others that an entry is in use."""
        now = self.clock()
        with self._lock:
            due = now - self._told.get(entry, -TOLD_S) >= TOLD_S
            if due:
                self._told[entry] = now
        if due and not self.disk.beat(f"{USED}/{entry}"):
            self.disk.put(f"{USED}/{entry}", b"")


class Copying:
    """A copy in the making, for one thread at a time; what fails leaves none, and is no error."""

    def __init__(self, copies: Copies, entry: str, blob: str, nbytes: int) -> None:
        self._copies, self._entry, self._name = copies, entry, _name(entry, blob)
        self._rooms: list[tuple[Chunk, int]] = []
        self._sink: Sink | None = None
        self._size = self._room_bytes = 0
        self._void = not copies.standing.whole
        self._ask(nbytes)

    @property
    def has_room(self) -> bool:
        """Whether anything is written."""
        return not self._void

    def write(self, data: memoryview) -> None:
        """Bytes that follow those before."""
        size = self._size + len(data)
        self._ask(size - self._room_bytes)
        if self._void:
            return
        with self._failing():
            if self._stands():
                self._sink = self._sink or self._copies.disk.begin(self._name)
                self._sink.write(data)
                self._size = size

    def finish(self) -> bool:
        """Give it its name; whether it is there now."""
        done = False
        if not self._void and self._sink is not None:
            with self._failing():
                if self._stands():
                    self._sink.finish()
                    done = True
        self._end(used=done)
        return done

    def drop(self) -> None:
        """Leave nothing of it, if it is not finished."""
        self._end(used=False)

    def _stands(self) -> bool:
        """Whether there is still room for it; else nothing of it is left."""
        stands = all(self._copies.allowance.stands(chunk) for chunk, _ in self._rooms)
        if not stands:
            self.drop()
        return stands

    def _end(self, *, used: bool) -> None:
        self._void = True
        sink, self._sink, rooms, self._rooms = self._sink, None, self._rooms, []
        if sink is not None:
            sink.drop()
        for chunk, nbytes in rooms:
            self._copies.allowance.give(chunk, nbytes, used=used)

    def _ask(self, nbytes: int) -> None:
        """Room for so many bytes more; without it, there will be no copy."""
        if nbytes <= 0 or self._void:
            return
        with self._failing():
            chunk = self._copies.allowance.take(self._entry, nbytes)
            if chunk is None:
                self.drop()
            else:
                self._rooms.append((chunk, nbytes))
                self._room_bytes += nbytes

    @contextmanager
    def _failing(self) -> Iterator[None]:
        done = False
        with self._copies.failing():
            yield
            done = True
        if not done:
            self.drop()


def _name(entry: str, blob: str) -> str:
    return f"{layout.BLOBS}/{entry}/{blob.rpartition('/')[2]}"
