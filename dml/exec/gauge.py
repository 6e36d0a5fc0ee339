"""This file measures what a slice takes while it runs and has given back when it ends.

A function may make ten arrays to keep their sum: no partition and no account shows them. The system
keeps the most memory that a process ever had; what that was above the end of a slice is what the
slice took. What stays (a model that was loaded, a partition) is not counted.
"""

from __future__ import annotations

import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dml.exec.memory import resident_bytes

KIB = 1 << 10
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MOST = b"VmHWM:"


class Begun(NamedTuple):
    """The most that the process had had, and how many slices ran in it."""

    peak_bytes: int
    slices: int


class Gauge:
    """What slices of this process take, several of which may run at once.

    ``own`` says that the process is ours: the system's mark is set back before every slice. Of a
    user's process, whose mark others may read, only what rises above it is seen: a microsecond a
    slice. What slices side by side took is divided by their number.
    """

    def __init__(self) -> None:
        self.own = False
        self._slices, self._lock = 0, threading.Lock()

    def begin(self) -> Begun:
        """A slice begins, or goes on."""
        with self._lock:
            self._slices += 1
            if self.own and self._slices == 1:
                with suppress(OSError):  # a system that does not let us, or has no such file
                    RESET.write_bytes(b"5")
            return Begun(self._peak(), self._slices)

    def end(self, begun: Begun) -> int:
        """Bytes that the slice took at most, beyond what it has left."""
        with self._lock:
            slices = max(begun.slices, self._slices)
            self._slices -= 1
        peak = self._peak()
        if not self.own and peak <= begun.peak_bytes:
            return 0
        return max(0, peak - (resident_bytes() or peak)) // slices

    def _peak(self) -> int:
        if not self.own:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return most if sys.platform == "darwin" else most * KIB
        with suppress(OSError):
            for line in STATUS.read_bytes().splitlines():
                if line.startswith(MOST):
                    return int(line.split()[1]) * KIB
        return 0


GAUGE = Gauge()
