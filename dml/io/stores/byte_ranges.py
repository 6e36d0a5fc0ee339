"""Files in stores are read by byte ranges: close ranges are merged, and requests run in parallel.

``RandomReader`` presents fetched bytes to pyarrow as a file; ``Blocks`` reads a file from front to
back with one block of prefetch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dml.io.stores.stores import Range, Remote

# Unneeded bytes that are fetched to save a request: a store sends them in a few milliseconds, and
# a request takes ten times as long to begin.
GAP = 256 << 10
# Bytes of a request: stores are read fastest by several requests of 8 to 16 MiB at a time.
LONGEST = 16 << 20
BLOCK = 8 << 20
# The first blocks of a file of which perhaps only the header or the first rows are read.
FIRST_BLOCKS = (128 << 10, 1 << 20)
# Bytes fetched for small reads, such as the header of a record batch.
WINDOW = 1 << 20


def coalesced(ranges: Iterable[Range]) -> list[Range]:
    """Return ascending ranges that cover ``ranges``; small gaps are closed, long ranges cut."""
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if merged:
            first, last = merged[-1]
            if start <= last or (start - last <= GAP and stop - first <= LONGEST):
                merged[-1] = (first, max(last, stop))
                continue
        if stop > start:
            merged.append((start, stop))
    return [
        (at, min(at + LONGEST, stop))
        for start, stop in merged
        for at in range(start, stop, LONGEST)
    ]


class RandomReader:
    """A file in a store that pyarrow can read; bytes not in ``held`` are fetched on demand.

    ``held`` are pairs (offset, bytes) that were fetched before. The last window fetched on demand
    is cached. Only one thread may use the object.
    """

    def __init__(self, file: Remote, held: Sequence[tuple[int, bytes]] = (), window: int = WINDOW):
        self._file, self._window = file, window
        self.hold(held)
        self._at = 0
        self._last: tuple[int, memoryview] = (0, memoryview(b""))
        self.closed = False

    def hold(self, held: Sequence[tuple[int, bytes]]) -> None:
        """Replace the bytes that were fetched before."""
        self._starts = [start for start, _ in held]
        self._held = [memoryview(data) for _, data in held]

    def read(self, size: int = -1) -> bytes | memoryview:
        """Return the next ``size`` bytes, fewer at the end of the file."""
        stop = self._file.size if size < 0 else min(self._at + size, self._file.size)
        start, self._at = self._at, max(self._at, stop)
        if stop <= start:
            return b""
        return self._between(start, stop)

    def _between(self, start: int, stop: int) -> bytes | memoryview:
        pieces: list[memoryview] = []
        at = start
        while at < stop:
            i = bisect_right(self._starts, at) - 1
            inside = self._held[i][at - self._starts[i] :] if i >= 0 else memoryview(b"")
            if not len(inside):
                break
            pieces.append(inside[: stop - at])
            at += len(pieces[-1])
        if at < stop:
            return self._fetched(start, stop)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _fetched(self, start: int, stop: int) -> memoryview:
        first, held = self._last
        if not first <= start <= stop <= first + len(held):
            end = min(self._file.size, max(stop, start + self._window))
            first, held = start, memoryview(self._file.fetch([(start, end)])[0])
            self._last = first, held
        return held[start - first : stop - first]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position as files do."""
        self._at = (0, self._at, self._file.size)[whence] + offset
        return self._at

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._at

    def close(self) -> None:
        """Release the fetched bytes; no connection is open."""
        self.closed = True
        self._starts, self._held, self._last = [], [], (0, memoryview(b""))


class Blocks:
    """Bytes ``start`` to ``stop`` (the end if None) of a file, with one block of prefetch.

    Without a ``stop`` the first blocks are small and not followed by prefetch, since the reader may
    need only a few bytes.
    """

    def __init__(self, file: Remote, start: int = 0, stop: int | None = None) -> None:
        self._file, self._end = file, file.size if stop is None else min(stop, file.size)
        self._sizes = list(FIRST_BLOCKS) if stop is None else []
        self._next, self._held, self._used = start, b"", 0
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: Future[bytes] | None = None
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Return ``size`` bytes, all if negative; fewer only at the end."""
        pieces: list[bytes] = []
        wanted = self._end if size < 0 else size
        while wanted > 0 and (self._used < len(self._held) or self._more()):
            piece = self._held[self._used : self._used + wanted]
            pieces.append(piece)
            self._used += len(piece)
            wanted -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _more(self) -> bool:
        """Load the next block, and start to prefetch the one after it; return False at the end."""
        if self._ahead is None and self._next >= self._end:
            return False
        self._held = b""  # released before the next block is loaded
        if self._ahead is None:
            small = bool(self._sizes)
            data = self._file.fetch([self._range()])[0]
        else:
            small, data = False, self._ahead.result()
            self._ahead = None
        self._held, self._used = data, 0
        if not small and self._next < self._end:
            self._pool = self._pool or ThreadPoolExecutor(1, "dml-read-ahead")
            wanted = self._range()
            self._ahead = self._pool.submit(lambda: self._file.fetch([wanted])[0])
        return True

    def _range(self) -> Range:
        """Return the range of the next block, and advance past it."""
        start = self._next
        self._next = min(self._end, start + (self._sizes.pop(0) if self._sizes else BLOCK))
        return start, self._next

    def readable(self) -> bool:
        """Return True until closed; the file is not seekable."""
        return not self.closed

    def seekable(self) -> bool:
        """Return False: bytes are read from front to back only."""
        return False

    def close(self) -> None:
        """Release the fetched bytes; the result of a running request is discarded."""
        self.closed = True
        self._held, self._ahead = b"", None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
