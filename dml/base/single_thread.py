"""Limit libraries to one thread where a worker thread calls users' functions.

Each worker is one slot: a library that a function calls would otherwise divide its work among all
processors, for every worker at once. Only limits that a library keeps per thread are set: OpenMP
and MKL have such numbers. Other libraries have one number for the process, such as the OpenBLAS of
NumPy's wheels (also where the name says ``local``), Accelerate and OpenCV. Changing that number
would slow the caller's own computation down, and change its last bits, depending on the code that
runs at the time. ``docs/options.md`` says what to do about those libraries.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

Limit: TypeAlias = Callable[[int], int]
"""Sets the number of threads for the work of the calling thread; returns the previous number."""

# How the names of library files begin that keep a number of threads for each thread.
OPENMP = ("libgomp", "libiomp", "libomp")
MKL = ("libmkl_rt",)
# The files that this process has mapped, on Linux; elsewhere no library is found or limited.
MAPS = Path("/proc/self/maps")

# True within ``single_threaded``; a thread that works for another one reads it in its context.
SINGLE = ContextVar("single", default=False)

# The number of modules at the last search for libraries, and its result.
_found: tuple[int, tuple[Limit, ...]] = (-1, ())


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit libraries to one thread where possible, for this thread in the ``with`` block only."""
    limits = _limits()
    before = [limit(1) for limit in limits]
    outer = SINGLE.set(True)
    try:
        yield
    finally:
        SINGLE.reset(outer)
        for limit, number in zip(limits, before, strict=True):
            limit(number)


def _limits() -> tuple[Limit, ...]:
    """Return the limits of the loaded libraries, found again after modules were imported."""
    global _found  # noqa: PLW0603 - what is loaded is loaded once a process
    modules, found = _found
    if modules != len(sys.modules):
        modules = len(sys.modules)
        found = tuple(limit for path in _mapped() if (limit := _limit_of(path)) is not None)
        _found = modules, found
    return found


def _mapped() -> list[str]:
    """Return the paths of OpenMP and MKL libraries that are mapped in this process."""
    lines: list[str] = []
    with suppress(OSError):
        lines = MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count(" /"))
    return [path for path in paths if Path(path).name.startswith((*OPENMP, *MKL))]


def _limit_of(path: str) -> Limit | None:
    """Return the limit of the library at ``path``; None if its functions are missing."""
    try:
        # it is loaded already: this only finds it; its functions return at once, so that they keep
        # Python's lock, for which many threads may compete
        library = ctypes.PyDLL(path)
    except OSError:
        return None
    return limit_of(library, mkl=Path(path).name.startswith(MKL))


def limit_of(library: Any, *, mkl: bool) -> Limit | None:
    """Return the limit of an OpenMP (``mkl``: MKL) library; None if it lacks the functions."""
    if mkl:
        own: Limit | None = getattr(library, "MKL_Set_Num_Threads_Local", None)
        return own
    read = getattr(library, "omp_get_max_threads", None)
    write = getattr(library, "omp_set_num_threads", None)
    if read is None or write is None:
        return None

    def limit(number: int) -> int:
        before = int(read())
        write(number)
        return before

    return limit
