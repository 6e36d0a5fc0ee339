"""This file reads Parquet from stores: the end of a file, and the column chunks of a row group."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from dml.expr.sources.parquet_footer import Group
from dml.expr.sources.ranges import RandomReader, coalesced
from dml.expr.sources.stores import Range, Remote

# Bytes of a row group's chunks that are fetched before it is decoded. Those of a larger one are
# fetched on as they are decoded, all by the same share, and half as much at a time: what is left of
# one round and the next are held together.
MOST_HELD = 32 << 20
# What is fetched on of a chunk at least: as much as its decoder reads ahead.
LEAST_SHARE = 64 << 10


def ranges_of(group: Group, leaves: Sequence[int]) -> list[Range]:
    """What is fetched for some physical columns of a row group; OSError if the file has no such."""
    file = group.file
    places = [file.chunks.place(group.number, leaf) for leaf in leaves]
    for leaf, (start, stop) in zip(leaves, places, strict=True):
        if stop > file.size:
            raise OSError(f"column {leaf} is at bytes {start} to {stop} of {file.size}")
    return coalesced(places)


def held_bytes(group: Group, leaves: Sequence[int]) -> int:
    """What reading some physical columns of a row group holds of the file."""
    stored = sum(group.file.chunks.chunk(group.number, leaf).compressed for leaf in leaves)
    try:
        fetched = sum(stop - start for start, stop in ranges_of(group, leaves))
    except OSError:
        return stored
    return min(fetched, MOST_HELD + 2 * LEAST_SHARE * len(leaves))


@contextmanager
def opened_group(file: Remote, group: Group, leaves: Sequence[int]) -> Iterator[pa.NativeFile]:
    """A file to decode some physical columns of a row group from."""
    ranges = ranges_of(group, leaves)
    if sum(stop - start for start, stop in ranges) <= MOST_HELD:
        fetched = file.fetch(ranges)
        held = [(start, data) for (start, _), data in zip(ranges, fetched, strict=True)]
        reader = RandomReader(file, held)
    else:
        reader = Rounds(file, [group.file.chunks.place(group.number, leaf) for leaf in leaves])
    try:
        with pa.PythonFile(reader, mode="r") as opened:
            yield opened
    finally:
        reader.close()


class Rounds(RandomReader):
    """A file of which some chunks are read, each from front to back, and all at about one pace.

    What one lacks is fetched together with what the others will lack next.
    """

    def __init__(self, file: Remote, chunks: Iterable[Range]) -> None:
        super().__init__(file, window=0)
        self._chunks = sorted(chunks)
        total = sum(stop - start for start, stop in self._chunks)
        self._shares = [
            max(LEAST_SHARE, (stop - start) * (MOST_HELD // 2) // total)
            for start, stop in self._chunks
        ]
        # of every chunk where the bytes that are held begin, and they
        self._parts = [(start, memoryview(b"")) for start, _ in self._chunks]

    def _between(self, start: int, stop: int) -> bytes | memoryview:
        i = bisect_right(self._chunks, (start, self._file.size)) - 1
        if i < 0 or stop > self._chunks[i][1] or start < self._parts[i][0]:
            return self._fetched(start, stop)  # beside the chunks, or back in one
        first, data = self._parts[i]
        self._parts[i] = (start, data[start - first :])
        if stop - start > len(self._parts[i][1]):
            self._fetch_on(i, stop)
        return self._parts[i][1][: stop - start]

    def _fetch_on(self, lacking: int, stop: int) -> None:
        """The next bytes of chunk ``lacking`` up to ``stop``, and of those with little left."""
        wanted: dict[int, Range] = {}
        for i, ((first, data), share) in enumerate(zip(self._parts, self._shares, strict=True)):
            at = first + len(data)
            if i == lacking or len(data) < share:
                end = min(self._chunks[i][1], max(at + share, stop if i == lacking else 0))
                wanted |= {i: (at, end)} if at < end else {}
        for i, more in zip(wanted, self._file.fetch(list(wanted.values())), strict=True):
            first, data = self._parts[i]
            self._parts[i] = (first, memoryview(b"".join((data, more))))
