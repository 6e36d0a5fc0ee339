"""Map a blob on a disk, with its pages loaded so that a disk failure is an error.

A process that touches an unreadable page is killed; a process that has the system load the page
first gets an error. Large pages, where the system has them, make a mapping cost next to nothing.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Callable

import pyarrow as pa

from dml.cache.store.primitives import Fetched, unusable
from dml.data.buffer_ownership import alone
from dml.exec.process.memory_map import mapping

HUGEPAGE, POPULATE_READ = 14, 22  # madvise numbers of Linux; the second since 5.14


class Mapped(Fetched):
    """One open blob on disk: the file that was opened is read, even if its name is reused."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._handle = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._handle)
        seen = os.fstat(self._handle)
        self.size = seen.st_size
        name = os.path.basename(path)
        self.identity = f"{name} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns}"

    def piece(self, start: int, count: int) -> memoryview:
        """Return ``count`` bytes from ``start`` on: mapped if pages could be loaded, else read."""
        held = self.buffer()
        if _brought(held.address + start, count):
            return memoryview(held)[start : start + count]
        return self._read(start, count)

    def _read(self, start: int, count: int) -> memoryview:
        """Read ``count`` bytes from ``start`` on; fewer at the end of the file."""
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
        """Return the file mapped into memory; the mapping outlives the file's name."""
        return self._mapped

    @functools.cached_property
    def _mapped(self) -> pa.Buffer:
        try:
            owner = mapping(self._handle, 0, self.size)
        except OSError:  # no more mappings are possible
            return pa.py_buffer(self._read(0, self.size))
        alone(ctypes.addressof(owner), owner)
        found = pa.py_buffer(owner)
        _advised()(found.address, found.size, HUGEPAGE)  # the system may refuse
        return found


def _brought(address: int, count: int) -> bool:
    """Load the pages of a mapping; return False if the system cannot do that."""
    start = address - address % mmap.PAGESIZE
    return _advised()(start, address + count - start, POPULATE_READ) == 0


@functools.cache
def _advised() -> Callable[[int, int, int], int]:
    """Return the ``madvise`` call of the system, which releases the GIL."""
    call = getattr(ctypes.CDLL(None), "madvise", None)
    if call is None or not hasattr(mmap, "MADV_HUGEPAGE"):  # not Linux: the numbers differ
        return lambda *_: -1
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return call  # type: ignore[no-any-return]
