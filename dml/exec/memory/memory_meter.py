"""Measure memory as the memory limit counts it: the amount that would be free without the run."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

LIBRARY = ctypes.CDLL(None)  # the C library
PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE")
KIB = 1 << 10
# Counted fields of ``smaps_rollup``, in KiB, each page divided among the processes that map it:
# anonymous and shared memory, and pages of files that were written to but not yet to disk.
ADDED = ("Pss_Dirty", "SwapPss")
# Files in memory that have no name, such as those in which partitions cross between processes.
NAMELESS = "/memfd:"
# Pages that the allocator has already returned, and that the kernel may reclaim at any time.
SUBTRACTED = ("LazyFree",)


def counted_bytes(pid: int | None = None) -> int | None:
    """Return the memory of a process and its children in bytes; None if the system hides it.

    That is private anonymous memory, and shared memory counted once: the proportional set size
    without unmodified pages of files, which the kernel can drop at any time (mapped tables,
    libraries). Nameless files in memory count in full while any of the processes has them open or
    mapped. ``pid`` None is this process. The call takes about 1 ms per process and GB.
    """
    tree = list(_tree(os.getpid() if pid is None else pid))
    known = [size for each in tree if (size := _counted(each)) is not None]
    nameless: dict[str, int] = {}
    touched = sum(_nameless(each, nameless) for each in tree)
    return sum(known) - touched + sum(nameless.values()) if known else None


def anonymous_bytes() -> int | None:
    """Return the bytes of this process's anonymous memory; None if the system hides it.

    They differ by at most 1 % from the anonymous memory in ``counted_bytes``. The call takes a few
    microseconds; child processes are not included.
    """
    fields = _statm()
    return None if fields is None else (int(fields[1]) - int(fields[2])) * PAGE


def resident_bytes() -> int | None:
    """Return this process's resident set size in bytes, pages of mapped files included, or None."""
    fields = _statm()
    return None if fields is None else int(fields[1]) * PAGE


def _statm() -> list[bytes] | None:
    """Return the numbers of pages that the system tells of this process; None if it does not."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return file.read(128).split()
    except OSError:
        return None


def give_back() -> None:
    """Make the allocators return free memory to the system, which takes milliseconds."""
    pa.default_memory_pool().release_unused()
    trim = getattr(LIBRARY, "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in children(pid):
        yield from _tree(task)


def descendants(pid: int) -> list[int]:
    """Return the ids of the child processes of ``pid``, of their children, and so on."""
    return list(_tree(pid))[1:]


def end_session(pid: int, begun: Sequence[int]) -> None:
    """Kill the processes of ``begun`` that belong to the session of ``pid``, which has ended."""
    for each in begun:
        with suppress(OSError):  # the process has ended
            if os.getsid(each) == pid:
                os.kill(each, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Return the ids of the living child processes of ``pid``; [] if they cannot be determined."""
    found: list[int] = []
    with suppress(OSError):  # the process, or one of its threads, has ended
        for task in (PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def _nameless(pid: int, found: dict[str, int]) -> int:
    """Add the sizes of a process's nameless files to ``found``, in bytes by inode.

    Return how many of these bytes ``_counted`` includes already, as pages that the process has
    touched.
    """
    with suppress(OSError):  # the process has ended, or belongs to another user
        for file in os.listdir(PROC / str(pid) / "fd"):
            with suppress(OSError):  # closed meanwhile
                _add_open(PROC / str(pid) / "fd" / file, found)
    try:
        if NAMELESS not in (PROC / str(pid) / "maps").read_text(encoding="utf-8"):
            return 0
        text = (PROC / str(pid) / "smaps").read_text(encoding="utf-8")
    except OSError:
        return 0
    return _add_mapped(text, found)


def _add_open(file: Path, found: dict[str, int]) -> None:
    if os.readlink(file).startswith(NAMELESS):
        known = file.stat()
        found[str(known.st_ino)] = known.st_blocks * 512


def _add_mapped(smaps: str, found: dict[str, int]) -> int:
    touched, inside, sizes = 0, False, dict[str, int]()
    for line in [*smaps.splitlines(), "end"]:
        name, *rest = line.split()
        if name.endswith(":"):
            sizes |= {name[:-1]: int(rest[0])} if rest[-1:] == ["kB"] else {}
            continue
        touched += _of_file(sizes) if inside else 0
        inside = len(rest) > 4 and rest[4].startswith(NAMELESS)
        if inside:  # addresses, rights, offset, device, inode, path
            start, _, end = name.partition("-")
            found.setdefault(rest[3], int(end, 16) - int(start, 16))
        sizes = {}
    return touched * KIB


def _of_file(sizes: dict[str, int]) -> int:
    """Return the KiB of file pages that a mapping has touched, without pages copied on a write."""
    copied = sizes.get("Anonymous", 0)
    if "Pss_Dirty" not in sizes:  # before Linux 6.0
        return max(0, sizes.get("Private_Dirty", 0) + sizes.get("Shared_Dirty", 0) - copied)
    share = sizes.get("Pss", 0) / max(1, sizes.get("Rss", 0))  # of pages that forks share
    return max(0, sizes["Pss_Dirty"] - round(copied * share))


def _counted(pid: int) -> int | None:
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    sizes = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) * KIB
    if "Pss_Dirty" not in sizes:  # before Linux 6.0
        return sizes.get("Private_Dirty", 0) + sizes.get("Shared_Dirty", 0)
    return sum(sizes.get(n, 0) for n in ADDED) - sum(sizes.get(n, 0) for n in SUBTRACTED)
