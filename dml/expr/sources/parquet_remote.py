"""This file reads Parquet from stores: the end of a file, and the column chunks of a row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from dml.expr.sources.parquet_footer import Group
from dml.expr.sources.ranges import RandomReader, coalesced
from dml.expr.sources.stores import Range, Remote

# Bytes of a row group's chunks that are fetched before it is decoded. Of a larger one every column
# is read on by itself, so that it takes no more than this at a time.
MOST_HELD = 64 << 20
LEAST_AHEAD, MOST_AHEAD = 256 << 10, 8 << 20


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
    return fetched if fetched <= MOST_HELD else len(leaves) * _ahead(len(leaves))


def _ahead(leaves: int) -> int:
    """Bytes that are read on at a time of each of so many columns."""
    return max(LEAST_AHEAD, min(MOST_AHEAD, MOST_HELD // leaves))


@contextmanager
def opened_group(
    file: Remote, group: Group, leaves: Sequence[int], ahead: int
) -> Iterator[tuple[pa.NativeFile, int]]:
    """A file to decode some physical columns of a row group from, and how far to read ahead.

    That is ``ahead`` where all is fetched at once, which is asked for together.
    """
    ranges = ranges_of(group, leaves)
    if sum(stop - start for start, stop in ranges) <= MOST_HELD:
        fetched = file.fetch(ranges)
        held = [(start, data) for (start, _), data in zip(ranges, fetched, strict=True)]
        reader = RandomReader(file, held)
    else:
        ahead = _ahead(len(leaves))
        reader = RandomReader(file, window=0)
    try:
        yield pa.PythonFile(reader, mode="r"), ahead
    finally:
        reader.close()
