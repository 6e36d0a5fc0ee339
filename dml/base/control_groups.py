"""Limits on memory and processors are read here from this process's control groups (cgroups)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
GROUPS: Final = Path("/sys/fs/cgroup")
# Where version 2 is mounted: alone, or beside version 1.
UNIFIED: Final = ("", "unified")
# Usage and limit of memory in version 2 and 1; quota and period of processor time.
MEMORY_FILES: Final = (
    ("memory.current", "memory.max"),
    ("memory.usage_in_bytes", "memory.limit_in_bytes"),
)
CPU_FILES: Final = (("cpu.max", "cpu.max"), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
UNLIMITED: Final = 1 << 60
LINE_BYTES: Final = 256  # more than one or two numbers take
FRESH_S: Final = 0.1  # a run asks for its limits several times while it begins

_LINES: Final = dict[Path, tuple[float, str]]()  # first lines, and when they were read


def cpu_quota(proc: Path = PROC, groups: Path = GROUPS) -> float | None:
    """Return the cores that the tightest group of all levels allows; None without a limit."""
    granted = (_quota(*pair) for pair in _files("cpu", CPU_FILES, proc, groups))
    return min((each for each in granted if each is not None), default=None)


def memory(proc: Path = PROC, groups: Path = GROUPS) -> tuple[int | None, int | None]:
    """Return (bytes in use, limit in bytes) of the group with the tightest limit of all levels.

    Without a limit, return the usage of the process's own group, and None. An unknown usage is
    None, too. Usage includes cached pages of files, which the kernel can drop.
    """
    known = [
        (_number(now), _number(most)) for now, most in _files("memory", MEMORY_FILES, proc, groups)
    ]
    limited = [(now, most) for now, most in known if most is not None and most < UNLIMITED]
    if limited:
        return min(limited, key=lambda each: each[1])
    return next((now for now, _ in known if now is not None), None), None


@cache
def _files(
    controller: str, names: tuple[tuple[str, str], ...], proc: Path, groups: Path
) -> list[tuple[Path, Path]]:
    """Return the pairs of files that exist; cached, since looking them up is slow."""
    pairs = [(level / a, level / b) for level in levels(controller, proc, groups) for a, b in names]
    return [pair for pair in pairs if any(each.exists() for each in pair)]


def levels(controller: str, proc: Path, groups: Path) -> list[Path]:
    """Return folders that may have the files of ``controller``: a group before its parents.

    The mount point is always among the folders: in a container it is the container's own group,
    while the path of the process may exist only on the host.
    """
    found: dict[Path, None] = {}
    for names, path in [*_own(proc), ("", ""), (controller, "")]:
        if names and controller not in names.split(","):
            continue
        steps = [step for step in path.split("/") if step]
        steps = [] if ".." in steps else steps  # beyond what is mounted
        for root in (controller, names) if names else UNIFIED:
            top = groups / root
            found |= dict.fromkeys(top.joinpath(*steps[:n]) for n in range(len(steps), -1, -1))
    return list(found)


def _own(proc: Path) -> Iterator[tuple[str, str]]:
    """Yield the controllers ("" in version 2) and the path of each group of this process."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        yield names, path


def _quota(quota_file: Path, period_file: Path) -> float | None:
    quota, _, period = _first_line(quota_file).partition(" ")
    if period_file != quota_file:
        period = _first_line(period_file)
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return None


def _number(path: Path) -> int | None:
    text = _first_line(path)
    return int(text) if text.isdigit() else None


def _first_line(path: Path) -> str:
    """Return the first line of a file as it is, or was up to ``FRESH_S`` seconds ago."""
    now_s = time.perf_counter()
    read_s, line = _LINES.get(path, (-math.inf, ""))
    if now_s - read_s < FRESH_S:
        return line
    try:
        with open(path, "rb", buffering=0) as file:  # unbuffered: every run reads it
            line = file.read(LINE_BYTES).decode("ascii").partition("\n")[0].strip()
    except (OSError, UnicodeError):
        line = ""
    _LINES[path] = now_s, line
    return line
