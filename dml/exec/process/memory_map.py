"""Map files into memory with private, copy-on-write pages.

Such a mapping holds no descriptor, and takes memory only for written pages; writing in it changes
neither the file nor another mapping (docs/decisions/041-rows-where-they-lie.md).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import weakref
from typing import Any

from dml.data.buffer_ownership import gone

FAILED = ctypes.c_void_p(-1).value  # the address that mmap returns on failure


def mapping(file: int, start: int, size: int, *, writable: bool = True) -> Any:
    """Map ``size`` bytes of ``file`` from ``start`` on, for as long as the returned object lives.

    Raise OSError if the system allows no more mappings: their number per process is limited.
    """
    system = _system()
    if system is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    place = system.mmap(None, size, access, flags, file, start)
    if place in (None, FAILED):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    owner = (ctypes.c_char * size).from_address(place)
    weakref.finalize(owner, _given_back, place, size).atexit = False
    return owner


def _given_back(place: int, size: int) -> None:
    gone(place)
    _system().munmap(place, size)


@functools.cache
def _system() -> Any:
    """Return the C library with mmap and munmap; None if it has no such names.

    The calls take microseconds, so they keep the GIL: taking it again would take longer.
    """
    library = ctypes.PyDLL(None, use_errno=True)
    if not all(hasattr(library, name) for name in ("mmap", "munmap")):
        return None
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mmap.restype = ctypes.c_void_p
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library
