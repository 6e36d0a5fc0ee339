"""This file keeps copies of blobs on a disk of this machine within their room.

To ask for room lists all copies, so a process asks for much at once, and divides it among its own.
What it has asked for counts as long as it says so, besides what was written there already.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dml.exec.store import layout
from dml.exec.store.disk import Disk
from dml.exec.store.leases import Lease
from dml.exec.store.quota import Room

TTL_S = 60.0  # what nobody has written to for so long was left by the dead
BUSY_S = 60.0  # entries that were read since then lose nothing to others
REQUEST_BYTES = 3e6  # that a store could send while it begins to answer
USED = "used"
CHUNK_BYTES, CHUNKS = 64 << 20, 16  # asked for at once; and at most a part of all


class CopyRoom(Room):
    """Room for copies of ``entry``, for which copies of entries that nobody reads may go.

    None of its own: they will be asked for as soon as what would replace them, so that an entry
    larger than the room keeps a part of itself, instead of pushing out what comes next.
    """

    def __init__(self, disk: Disk, most_bytes: int, entry: str) -> None:
        super().__init__(disk, most_bytes, ttl_s=TTL_S)
        self._entry = entry

    def used_bytes(self) -> int:
        """Bytes that are there, or announced by the living; what the dead left is not.

        A file is written after its room was announced anew, so that it is the first to be cleared.
        """
        self._place.clear(self._ttl_s / 2)
        return super().used_bytes()

    def _evict(self, nbytes: int) -> None:
        """Make room of ``nbytes``, if so much may go: where idle seconds cost least to end.

        A byte of a small copy saves more than one of a large one, as each is a request, too.
        """
        used = {each.name: each.age_s for each in self._place.found(USED)}
        going, left = list[tuple[float, str, int]](), set[str]()
        for each in self._place.found(layout.BLOBS):
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
class Chunk:
    """Room that was asked for at once: bytes that are free, and bytes that are being written."""

    lease: Lease
    free: int
    taken: int = 0


class Allowance:
    """The room that a process has asked for, for all of its threads; all raise UnusableError.

    A part of it may be given back by whoever collects garbage, in any thread that holds the lock.
    """

    def __init__(self, disk: Disk, most_bytes: int) -> None:
        self._disk, self._most = disk, most_bytes
        self._chunks: list[Chunk] = []
        self._lock = threading.RLock()

    def take(self, entry: str, nbytes: int) -> Chunk | None:
        """Room for ``nbytes`` of a copy of ``entry``; None if there is none."""
        with self._lock:
            for each in self._chunks[-1:]:
                if each.free >= nbytes and self.stands(each):
                    return self._taken(each, nbytes)
            self._emptied(self._chunks)
            most = max(nbytes, min(CHUNK_BYTES, self._most // CHUNKS))
            for asked in sorted({most, nbytes}, reverse=True):
                lease = CopyRoom(self._disk, self._most, entry).announced(asked)
                if lease is not None:
                    self._chunks.append(Chunk(lease, asked))
                    return self._taken(self._chunks[-1], nbytes)
        return None

    def give(self, chunk: Chunk, nbytes: int, *, used: bool) -> None:
        """Room that was taken is used: what was written is there; or it is free again."""
        with self._lock:
            chunk.taken -= nbytes
            chunk.free += 0 if used else nbytes
            last = self._chunks[-1:]
            self._emptied([each for each in self._chunks if each not in last or not each.free])

    def stands(self, chunk: Chunk) -> bool:
        """Whether a chunk still counts: nobody took this process for dead."""
        with self._lock:
            if chunk in self._chunks and not self._disk.beat(chunk.lease.name):
                self._chunks.remove(chunk)
            return chunk in self._chunks

    def close(self) -> None:
        """What nobody writes to is announced no more."""
        with self._lock:
            self._emptied(self._chunks)

    def _taken(self, chunk: Chunk, nbytes: int) -> Chunk:
        chunk.free -= nbytes
        chunk.taken += nbytes
        return chunk

    def _emptied(self, chunks: list[Chunk]) -> None:
        """Give back those that nobody writes to."""
        for each in [each for each in chunks if not each.taken]:
            self._chunks.remove(each)
            each.lease.give_back()
