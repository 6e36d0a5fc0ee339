"""This file has libraries compute on one thread where a worker thread calls users' functions.

Each worker is one slot: what a function calls would otherwise share its work among all processors,
for every worker at once. Only what a library keeps for each thread by itself is set: OpenMP and
MKL have such numbers. Others have one for the process, as the OpenBLAS of NumPy's wheels (also
where it says ``local``), Accelerate and OpenCV; to change that would slow the caller's own
computation down, and change its last bits, depending on what runs at the time.
``docs/options.md`` says what to do about those.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

Limit: TypeAlias = Callable[[int], int]
"""Sets the number of threads that the calling thread's work is shared among; gives the last one."""

# How the files of libraries begin that have a number for each thread.
OPENMP = ("libgomp", "libiomp", "libomp")
MKL = ("libmkl_rt",)
# What this process has mapped, on Linux; elsewhere nothing is found, and nothing is set.
MAPS = Path("/proc/self/maps")

# How many modules there were when libraries were looked for, and what was found.
_found: tuple[int, tuple[Limit, ...]] = (-1, ())


@contextmanager
def single_threaded() -> Iterator[None]:
    """Until it ends, libraries that this thread calls use no other threads, as far as they can.

    Other threads, the caller's among them, are not affected.
    """
    limits = _limits()
    before = [limit(1) for limit in limits]
    try:
        yield
    finally:
        for limit, number in zip(limits, before, strict=True):
            limit(number)


def _limits() -> tuple[Limit, ...]:
    """Those of the libraries that are loaded; looked for again once there are more modules."""
    global _found  # noqa: PLW0603 - what is loaded is loaded once a process
    modules, found = _found
    if modules != len(sys.modules):
        modules = len(sys.modules)
        found = tuple(limit for path in _mapped() if (limit := _limit_of(path)) is not None)
        _found = modules, found
    return found


def _mapped() -> list[str]:
    """The files of libraries, as they are mapped in this process."""
    lines: list[str] = []
    with suppress(OSError):
        lines = MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count(" /"))
    return [path for path in paths if Path(path).name.startswith((*OPENMP, *MKL))]


def _limit_of(path: str) -> Limit | None:
    """How to limit the library at ``path``; None if it does not have what its name promises."""
    try:
        library = ctypes.CDLL(path)  # it is there already: this only finds it
    except OSError:
        return None
    return limit_of(library, mkl=Path(path).name.startswith(MKL))


def limit_of(library: Any, *, mkl: bool) -> Limit | None:
    """How to limit a ``library`` of OpenMP, or of MKL; None if it has no such functions."""
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
