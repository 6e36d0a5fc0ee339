"""Keep copies of remote blobs on a disk of this machine, so that each blob is fetched once.

A copy lies under the name of its blob, in a folder of its entry. The copy is checked against the
record of the part, like the blob, and may be gone or damaged at any time: then the blob is read. So
copies need no leases, tombs or lists. A process that needs room removes copies of unused entries.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dml.base.read_times import ReadTimes
from dml.cache.eviction.quota_eviction import QuotaRoom
from dml.cache.parts.mapped_blob import Mapped
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.store.health import Standing
from dml.cache.store.leases import Lease
from dml.cache.store.primitives import ListedName, Sink, UnusableError

TTL_S = 60.0  # files that were not written for so long are leftovers of dead processes
BUSY_S = 60.0  # copies of entries that were read within so many seconds are not evicted
REQUEST_BYTES = 3e6  # bytes that a store could send in the latency of a request
USED = "used"
CHUNK_BYTES, CHUNKS = 64 << 20, 16  # most bytes reserved at once, and least chunks of a quota


class CopyRoom(QuotaRoom):
    """Room for copies of ``entry``, for which copies of idle entries may be evicted.

    Copies of the same entry are not evicted: they will be read as soon as those that would replace
    them. So an entry larger than the quota keeps a part of its copies, instead of evicting the
    blobs read next.
    """

    def __init__(self, disk: Disk, most_bytes: int, entry: str) -> None:
        super().__init__(disk, most_bytes, ttl_s=TTL_S)
        self._entry = entry

    def used_bytes(self) -> int:
        """Return the bytes stored, or reserved by living processes.

        Leftover files are removed at half the age at which a reservation expires: room is never
        freed while a file still occupies it.
        """
        self._place.clear(self._ttl_s / 2)
        return super().used_bytes()

    def _evict(self, nbytes: int) -> None:
        """Free ``nbytes``, if that much may be evicted: long idle and large copies first.

        A byte of a small copy saves more time than one of a large copy: each copy saves a request.
        """
        used = {each.name: each.age_s for each in self._place.list_files(USED)}
        going, left = list[tuple[float, str, int]](), set[str]()
        for each in self._place.list_files(layout.BLOBS):
            entry = each.name.partition("/")[0]
            idle_s = min(used.get(entry, each.age_s), each.age_s)
            if entry == self._entry or idle_s < BUSY_S:
                left.add(entry)
            else:
                share = each.size / (each.size + REQUEST_BYTES)
                going.append((-idle_s * share, each.name, each.size))
        if sum(size for *_, size in going) < nbytes:
            return
        for _, name, size in sorted(going):
            if nbytes > 0:
                self._place.delete(f"{layout.BLOBS}/{name}")
                nbytes -= size
                self.evicted += 1
            else:
                left.add(name.partition("/")[0])
        for entry in used.keys() - left:
            if used[entry] > BUSY_S:
                self._place.delete(f"{USED}/{entry}")


@dataclass(eq=False)
class RoomChunk:
    """Room of one reservation: ``free`` bytes, and ``taken`` bytes that are being written."""

    lease: Lease
    free: int
    taken: int = 0


class CopyAllowance:
    """The room that a process has reserved for its threads; methods raise UnusableError.

    Garbage collection may call ``give`` at any time, even in a thread that holds the lock.
    """

    def __init__(self, disk: Disk, most_bytes: int) -> None:
        self._disk, self._most = disk, most_bytes
        self._chunks: list[RoomChunk] = []
        self._lock = threading.RLock()

    def take(self, entry: str, nbytes: int) -> RoomChunk | None:
        """Reserve ``nbytes`` for a copy of ``entry``; return None if there is no room."""
        with self._lock:
            for each in self._chunks[-1:]:
                if each.free >= nbytes and self.stands(each):
                    return self._take_from(each, nbytes)
            self._emptied(self._chunks)
            most = max(nbytes, min(CHUNK_BYTES, self._most // CHUNKS))
            for asked in sorted({most, nbytes}, reverse=True):
                lease = CopyRoom(self._disk, self._most, entry).announced(asked)
                if lease is not None:
                    self._chunks.append(RoomChunk(lease, asked))
                    return self._take_from(self._chunks[-1], nbytes)
        return None

    def give(self, chunk: RoomChunk, nbytes: int, *, used: bool) -> None:
        """End the use of ``nbytes`` of ``chunk``: they are written if ``used``, else free again."""
        with self._lock:
            chunk.taken -= nbytes
            chunk.free += 0 if used else nbytes
            last = self._chunks[-1:]
            self._emptied([each for each in self._chunks if each not in last or not each.free])

    def stands(self, chunk: RoomChunk) -> bool:
        """Return True if the reservation of ``chunk`` has not expired."""
        with self._lock:
            if chunk in self._chunks and not self._disk.beat(chunk.lease.name):
                self._chunks.remove(chunk)
            return chunk in self._chunks

    def close(self) -> None:
        """Release the reserved chunks to which no thread writes."""
        with self._lock:
            self._emptied(self._chunks)

    def _take_from(self, chunk: RoomChunk, nbytes: int) -> RoomChunk:
        chunk.free -= nbytes
        chunk.taken += nbytes
        return chunk

    def _emptied(self, chunks: list[RoomChunk]) -> None:
        """Release those of ``chunks`` to which no thread writes."""
        for each in [each for each in chunks if not each.taken]:
            self._chunks.remove(each)
            each.lease.give_back()


TOLD_S = 5.0  # seconds between two notes of a process that it reads an entry
ON_DISK = "copies on this machine"
BELOW = f"{layout.FORMAT}/copies"

Pieces = Callable[[int, int], memoryview | None]
"""Returns ``count`` bytes of a blob from ``start`` on; None if the blob is gone."""


class Times(NamedTuple):
    """Functions from the bytes of a part to the seconds to read or write it."""

    near: ReadTimes
    """Time to read from the disk of this machine."""
    written: ReadTimes
    """Time to write to that disk."""
    far: ReadTimes
    """Time to read from the store."""


def folder_of(above: str) -> Path:
    """Create the folder of this user's copies below ``above``, which no other user can read.

    A user who could write there would decide which rows are read; a user who could read there might
    see rows that a store denies them. Raise UnusableError if the folder belongs to another user.
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


class LocalCopies:
    """Copies of cache parts in a local folder, for all stores; a failing disk raises no error."""

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
        self.allowance = CopyAllowance(disk, most_bytes)
        self._told: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def times(self) -> Times:
        """The times to read and write copies and to read the store; measured on first use."""
        with self._measuring:
            if self._times is None:
                self._times = self._measured()
        return self._times

    def fetch(self, entry: str, blob: str) -> Mapped | None:
        """Return the copy of ``blob``, mapped, or None if it cannot be read."""
        found = self.standing.answer(partial(self.disk.fetch, _name(entry, blob)))
        if found is not None and self.standing.unwritable is None:
            with self.standing.failing():
                self._used(entry)
        return found

    def put(self, entry: str, blob: str, size: int, pieces: Pieces, each: int) -> bool:
        """Copy a blob of ``size`` bytes, ``each`` at a time; return True if the copy exists now.

        Errors that ``pieces`` raises are not suppressed.
        """
        made = Copying(self, entry, blob, size)
        try:
            for start in range(0, size, each):
                piece = pieces(start, min(each, size - start)) if not made.void else None
                if piece is None:
                    return False
                made.write(piece)
            return made.finish()
        finally:
            made.drop()

    def drop(self, entry: str, blob: str) -> None:
        """Remove the copy of ``blob``, if it exists."""
        if self.standing.whole:
            with self.standing.failing():
                self.disk.delete(_name(entry, blob))

    def remove(self, entry: str) -> None:
        """Remove all copies of ``entry``."""
        if self.standing.whole:
            with self.standing.failing():
                folder = f"{layout.BLOBS}/{entry}"
                for each in self.disk.names(folder):
                    self.disk.delete(f"{folder}/{each}")
                self.disk.delete(f"{USED}/{entry}")

    def clear(self) -> None:
        """Remove leftover files and reservations of dead processes."""
        if self.standing.whole:
            with self.standing.failing():
                CopyRoom(self.disk, self.most_bytes, "").used_bytes()

    def close(self) -> None:
        """Give back reserved room, once writing has ended."""
        with self.standing.failing():
            self.allowance.close()

    def used_bytes(self, entry: str = "") -> int:
        """Return the bytes of all copies, or of ``entry`` alone; 0 if they cannot be listed."""
        found: list[ListedName] = []
        with self.standing.failing():
            found = self.disk.list_files(f"{layout.BLOBS}/{entry}".rstrip("/"))
        return sum(each.size for each in found)

    def _used(self, entry: str) -> None:
        """Note for other processes that ``entry`` is in use, every ``TOLD_S`` seconds."""
        now = self.clock()
        with self._lock:
            due = now - self._told.get(entry, -TOLD_S) >= TOLD_S
            if due:
                self._told[entry] = now
        if due and not self.disk.beat(f"{USED}/{entry}"):
            self.disk.put(f"{USED}/{entry}", b"")


class Copying:
    """An unfinished copy, for one thread at a time; a failure leaves no copy, and raises no error.

    ``void`` is True once it accepts no bytes. ``nbytes`` is the size of the blob, 0 if unknown.
    """

    def __init__(self, copies: LocalCopies, entry: str, blob: str, nbytes: int = 0) -> None:
        self._copies, self._entry, self._name = copies, entry, _name(entry, blob)
        self._rooms: list[tuple[RoomChunk, int]] = []
        self._sink: Sink | None = None
        self._size = self._room_bytes = 0
        self.void = not copies.standing.whole
        self._ask(nbytes)

    def write(self, data: memoryview) -> None:
        """Append bytes to the copy, unless it has failed or ended."""
        size = self._size + len(data)
        self._ask(size - self._room_bytes)
        if self.void:
            return
        with self._failing():
            if self._stands():
                self._sink = self._sink or self._copies.disk.begin(self._name)
                self._sink.write(data)
                self._size = size

    def finish(self) -> bool:
        """Publish the copy under its name; return True if it exists now."""
        done = False
        if not self.void and self._sink is not None:
            with self._failing():
                if self._stands():
                    self._sink.finish()
                    done = True
        self._end(used=done)
        return done

    def drop(self) -> None:
        """Remove the copy, unless it is finished."""
        self._end(used=False)

    def _stands(self) -> bool:
        """Return True if the copy's room is still reserved; else remove the copy."""
        stands = all(self._copies.allowance.stands(chunk) for chunk, _ in self._rooms)
        if not stands:
            self.drop()
        return stands

    def _end(self, *, used: bool) -> None:
        self.void = True
        sink, self._sink, rooms, self._rooms = self._sink, None, self._rooms, []
        if sink is not None:
            sink.drop()
        for chunk, nbytes in rooms:
            self._copies.allowance.give(chunk, nbytes, used=used)

    def _ask(self, nbytes: int) -> None:
        """Reserve ``nbytes`` more; without room the copy is dropped."""
        if nbytes <= 0 or self.void:
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
        with self._copies.standing.failing():
            yield
            done = True
        if not done:
            self.drop()


def _name(entry: str, blob: str) -> str:
    return f"{layout.BLOBS}/{entry}/{blob.rpartition('/')[2]}"
