"""This file says what the machine is: cores and memory that this process may use, and its class."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
GIB: Final = 1 << 30
UNLIMITED: Final = 1 << 60
LINE_BYTES: Final = 256  # more than a number or two of the system have


def cores() -> int:
    """Cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def cpu_quota(cgroup: Path = CGROUP) -> float | None:
    """Cores that the control group grants, as a number of cores; None without a limit."""
    quota, _, period = _first_line(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return None


def machine_bytes() -> int | None:
    """Memory of the machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def cgroup_bytes(cgroup: Path = CGROUP) -> int | None:
    """Memory that the control group grants (version 2, then 1); None without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _first_line(cgroup / name)
        if text.isdigit() and int(text) < UNLIMITED:
            return int(text)
    return None


def host_class() -> str:
    """Machines that cost the same: system, processor, cores, memory up to a power of two."""
    usable = [each for each in (machine_bytes(), cgroup_bytes()) if each]
    gib = 1 << max(0, round(min(usable) / GIB) - 1).bit_length() if usable else 0
    return f"{platform.system()}-{platform.machine()}-{cores()}c-{gib}g".lower()


def _first_line(path: Path) -> str:
    try:
        with open(path, "rb", buffering=0) as file:  # every run asks
            return file.read(LINE_BYTES).decode("ascii").partition("\n")[0].strip()
    except (OSError, UnicodeError):
        return ""
