"""Bytes as a file in memory, for libraries that read files faster than Python's objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Most bytes that are copied to a file.
MOST_BYTES = 1 << 26


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
