"""Parquet files in object stores are read by ranges: the footer, and chunks of row groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from dml.io.parquet.footer import RowGroup
from dml.io.stores.byte_ranges import RandomReader, coalesced
from dml.io.stores.stores import Range, Remote

# Bytes of a row group's chunks that are fetched before it is decoded. Chunks of a larger group are
# fetched in rounds of half as many bytes while they are decoded, each chunk by its share: the rest
# of a round and the next round are in memory together.
MOST_HELD = 32 << 20
# Minimum bytes of a chunk per round: as much as its decoder reads ahead.
LEAST_SHARE = 64 << 10


def ranges_of(group: RowGroup, leaves: Sequence[int]) -> list[Range]:
    """Return the byte ranges of leaf columns of a row group; OSError beyond the file's end."""
    file = group.file
    places = [file.chunks.place(group.number, leaf) for leaf in leaves]
    for leaf, (start, stop) in zip(leaves, places, strict=True):
        if stop > file.size:
            raise OSError(f"column {leaf} is at bytes {start} to {stop} of {file.size}")
    return coalesced(places)


def held_bytes(group: RowGroup, leaves: Sequence[int]) -> int:
    """Return the fetched bytes in memory while leaf columns ``leaves`` of a row group are read."""
    stored = sum(group.file.chunks.chunk(group.number, leaf).compressed for leaf in leaves)
    try:
        fetched = sum(stop - start for start, stop in ranges_of(group, leaves))
    except OSError:
        return stored
    return min(fetched, MOST_HELD + 2 * LEAST_SHARE * len(leaves))


@contextmanager
def opened_group(file: Remote, group: RowGroup, leaves: Sequence[int]) -> Iterator[pa.NativeFile]:
    """Open a file from which the physical columns ``leaves`` of a row group can be decoded."""
    ranges = ranges_of(group, leaves)
    if sum(stop - start for start, stop in ranges) <= MOST_HELD:
        fetched = file.fetch(ranges)
        held = [(start, data) for (start, _), data in zip(ranges, fetched, strict=True)]
        reader = RandomReader(file, held)
    else:
        reader = ChunkRounds(file, [group.file.chunks.place(group.number, leaf) for leaf in leaves])
    try:
        with pa.PythonFile(reader, mode="r") as opened:
            yield opened
    finally:
        reader.close()


class ChunkRounds(RandomReader):
    """Reads several chunks of a file in parallel, each from front to back at the same pace.

    A fetch for one chunk also fetches the next bytes of other chunks with few buffered bytes.
    """

    def __init__(self, file: Remote, chunks: Iterable[Range]) -> None:
        super().__init__(file, window=0)
        self._chunks = sorted(chunks)
        total = sum(stop - start for start, stop in self._chunks)
        self._shares = [
            max(LEAST_SHARE, (stop - start) * (MOST_HELD // 2) // total)
            for start, stop in self._chunks
        ]
        # for every chunk, the offset of the bytes in memory, and the bytes
        self._parts = [(start, memoryview(b"")) for start, _ in self._chunks]

    def _between(self, start: int, stop: int) -> bytes | memoryview:
        i = bisect_right(self._chunks, (start, self._file.size)) - 1
        if i < 0 or stop > self._chunks[i][1] or start < self._parts[i][0]:
            return self._fetched(start, stop)  # outside of the chunks, or backwards in one
        first, data = self._parts[i]
        self._parts[i] = (start, data[start - first :])
        if stop - start > len(self._parts[i][1]):
            self._fetch_on(i, stop)
        return self._parts[i][1][: stop - start]

    def _fetch_on(self, lacking: int, stop: int) -> None:
        """Fetch bytes of chunk ``lacking`` up to ``stop``, and of chunks with few bytes left."""
        wanted: dict[int, Range] = {}
        for i, ((first, data), share) in enumerate(zip(self._parts, self._shares, strict=True)):
            at = first + len(data)
            if i == lacking or len(data) < share:
                end = min(self._chunks[i][1], max(at + share, stop if i == lacking else 0))
                wanted |= {i: (at, end)} if at < end else {}
        for i, more in zip(wanted, self._file.fetch(list(wanted.values())), strict=True):
            first, data = self._parts[i]
            self._parts[i] = (first, memoryview(b"".join((data, more))))
