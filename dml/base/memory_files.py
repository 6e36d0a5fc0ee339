"""Bytes as a file in memory, for libraries that read files faster than Python's objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Most bytes that are copied to a file.
MOST_BYTES = 1 << 26


class MemoryReader:
    """Bytes that a library reads as a file, without a copy."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data, self.place = memoryview(data), 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place from the start (0), from here (1) or from the end (2), inside the bytes."""
        base = (0, self.place, len(self.data))[whence]
        self.place = min(max(0, base + offset), len(self.data))
        return self.place

    def tell(self) -> int:
        """Return the place."""
        return self.place

    def read(self, most: int = -1) -> bytes:
        """Return the next bytes, at most so many."""
        found = self.data[self.place : None if most < 0 else self.place + most]
        self.place += len(found)
        return bytes(found)

    def readinto(self, target: Any) -> int:
        """Fill ``target`` as far as there are bytes, and return their number."""
        found = self.data[self.place : self.place + len(target)]
        target[: len(found)] = found
        self.place += len(found)
        return len(found)


@contextmanager
def memory_file(data: bytes | memoryview) -> Iterator[int | None]:
    """Yield the descriptor of a file with ``data``, closed after the block.

    Yield None where the system has no files in memory, or no further one, and for many bytes.
    """
    file = _made(data)
    try:
        yield file
    finally:
        if file is not None:
            os.close(file)


def _made(data: bytes | memoryview) -> int | None:
    if len(data) > MOST_BYTES or not hasattr(os, "memfd_create"):
        return None
    try:
        file = os.memfd_create("dml")
    except OSError:
        return None
    try:
        done = os.pwrite(file, data, 0)
    except OSError:
        done = -1
    if done == len(data):
        return file
    os.close(file)
    return None
