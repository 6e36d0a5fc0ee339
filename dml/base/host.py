"""The host is described by the cores, GPUs and memory that this process may use, and its class."""

from __future__ import annotations

import itertools
import math
import os
import platform
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from dml.base.control_groups import GROUPS, PROC, cpu_quota, memory

GIB: Final = 1 << 30
DEVICES: Final = Path("/dev")
UUIDS: Final = ("GPU-", "MIG-")
NUMBER: Final = re.compile(r"\+?[0-9]+")


def cores(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the number of cores that this process may use, by its affinity and control groups."""
    affinity = getattr(os, "sched_getaffinity", None)
    there = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = cpu_quota(proc, groups)
    return there if quota is None else min(there, max(1, math.ceil(quota)))


def gpus(devices: Path = DEVICES) -> int:
    """Return the number of NVIDIA GPUs that this process may use, by CUDA_VISIBLE_DEVICES."""
    if not (devices / "nvidiactl").exists():
        return 0
    there = sum(1 for each in devices.glob("nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, _visible(visible.strip(), there))


def _visible(text: str, there: int) -> int:
    """Return how many of ``there`` GPUs the value ``text`` of CUDA_VISIBLE_DEVICES makes visible.

    Entries are numbers, or all begin with "GPU-" or all with "MIG-". The list ends at the first
    other entry, and at a number that no GPU has. If a device is named twice, none is visible. A
    process sees only the first of several MIG devices. (Source: CUDA C++ programming guide, CUDA
    environment variables; PyTorch, ``torch.cuda``, for numbers with letters and repeated entries.)
    """
    entries = [each.strip() for each in text.split(",")]
    if (prefix := text[:4]) in UUIDS:
        names = [*itertools.takewhile(lambda each: each.startswith(prefix), entries)]
        most = 1 if prefix == "MIG-" else there
        return min(most, len(names)) if len(set(names)) == len(names) else 0
    found = itertools.takewhile(bool, map(NUMBER.match, entries))
    numbers = [int(each[0]) for each in found if each is not None]
    known = [*itertools.takewhile(lambda each: each < there, numbers)]
    return len(known) if len(set(numbers)) == len(numbers) else 0


def machine_bytes() -> int | None:
    """Return the bytes of memory of the machine; None where the system does not report them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def cgroup_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Return the memory limit in bytes of the tightest control group; None without a limit."""
    return memory(proc, groups)[1]


def host_class() -> str:
    """Return a name for machines with equal costs: system, processor, cores, 2**n GiB of memory."""
    usable = [each for each in (machine_bytes(), cgroup_bytes()) if each]
    gib = 1 << max(0, round(min(usable) / GIB) - 1).bit_length() if usable else 0
    return f"{platform.system()}-{platform.machine()}-{cores()}c-{gib}g".lower()


def vector_instructions() -> str:
    """Return the sets of vector instructions that NumPy found in this processor."""
    found: Any = np.show_config(mode="dicts")
    sets = found.get("SIMD Extensions", {})  # empty entries are left out
    return ",".join(sorted({*sets.get("baseline", ()), *sets.get("found", ())}))
