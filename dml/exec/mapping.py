"""This file maps files into memory whose pages are one's own as soon as they are written to.

Such a mapping holds no handle, and takes no memory but for what is written; neither the file nor
another mapping changes (docs/decisions/041-rows-where-they-lie.md).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import weakref
from typing import Any

from dml.expr.own_memory import gone

FAILED = ctypes.c_void_p(-1).value  # the address that says so


def mapping(file: int, start: int, size: int, *, writable: bool = True) -> Any:
    """Some bytes of ``file`` in the memory of this process, as long as what is returned lives.

    OSError if the system allows no more of them: a process may have so many.
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
    """The system's calls for mappings; None where they are called otherwise.

    They take microseconds, so that no other thread is let in meanwhile: to come back takes longer.
    """
    library = ctypes.PyDLL(None, use_errno=True)
    if not all(hasattr(library, name) for name in ("mmap", "munmap")):
        return None
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mmap.restype = ctypes.c_void_p
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library
