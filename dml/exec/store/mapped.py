"""This file maps a blob on a disk, and brings its pages so that a failing disk is an error.

A page that cannot be read ends a process that touches it, and is an error for one that asks the
system for it first. Large pages, where the system has them, make a mapping cost next to nothing.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Callable

import pyarrow as pa

from dml.exec.mapping import mapping
from dml.exec.store.primitives import unusable
from dml.expr.own_memory import alone

HUGEPAGE, POPULATE_READ = 14, 22  # numbers of Linux; the second one since 5.14


class Mapped:
    """One blob on disk, open: what is read is this file, whatever has its name by then."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._handle = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._handle)
        seen = os.fstat(self._handle)
        self.size = seen.st_size
        name = os.path.basename(path)
        self.identity: str | None = f"{name} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns}"

    def piece(self, start: int, count: int) -> memoryview:
        """Some of the bytes, mapped once they are in memory, else read."""
        held = self.buffer()
        if _brought(held.address + start, count):
            return memoryview(held)[start : start + count]
        return self._read(start, count)

    def _read(self, start: int, count: int) -> memoryview:
        """Some of the bytes, as they are read; fewer at the end of the file."""
        read = memoryview(bytearray(count))
        try:
            place = 0
            while place < count:
                now = os.preadv(self._handle, [read[place:]], start + place)
                if not now:
                    break
                place += now
        except OSError as error:
            raise unusable(os.fspath(self._path), error, "read") from error
        return read[:place]

    def buffer(self) -> pa.Buffer:
        """The file mapped into memory; the mapping outlives its name."""
        return self._mapped

    @functools.cached_property
    def _mapped(self) -> pa.Buffer:
        try:
            owner = mapping(self._handle, 0, self.size)
        except OSError:  # there is no room for more of them
            return pa.py_buffer(self._read(0, self.size))
        alone(ctypes.addressof(owner), owner)
        found = pa.py_buffer(owner)
        _advised()(found.address, found.size, HUGEPAGE)  # it may be refused
        return found


def _brought(address: int, count: int) -> bool:
    """Whether the system has brought the pages of a mapping; False if it cannot, or cannot say."""
    start = address - address % mmap.PAGESIZE
    return _advised()(start, address + count - start, POPULATE_READ) == 0


@functools.cache
def _advised() -> Callable[[int, int, int], int]:
    """The call of the system, during which other threads run."""
    call = getattr(ctypes.CDLL(None), "madvise", None)
    if call is None or not hasattr(mmap, "MADV_HUGEPAGE"):  # not Linux: the number means another
        return lambda *_: -1
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return call  # type: ignore[no-any-return]
