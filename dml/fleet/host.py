"""This file says what the machine is: cores and memory that this process may use, and its class."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Final

from dml.control_groups import GROUPS, PROC, cpu_quota, memory

GIB: Final = 1 << 30


def cores(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Cores that this process may use: those it may run on, and no more than its groups grant."""
    affinity = getattr(os, "sched_getaffinity", None)
    there = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = cpu_quota(proc, groups)
    return there if quota is None else min(there, max(1, math.ceil(quota)))


def machine_bytes() -> int | None:
    """Memory of the machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def cgroup_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Memory that the narrowest control group grants; None without a limit."""
    return memory(proc, groups)[1]


def host_class() -> str:
    """Machines that cost the same: system, processor, cores, memory up to a power of two."""
    usable = [each for each in (machine_bytes(), cgroup_bytes()) if each]
    gib = 1 << max(0, round(min(usable) / GIB) - 1).bit_length() if usable else 0
    return f"{platform.system()}-{platform.machine()}-{cores()}c-{gib}g".lower()
