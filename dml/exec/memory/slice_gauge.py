"""Measure the temporary memory of a slice: used while it runs, free when it ends.

A function may make ten arrays to keep their sum, and no partition or account shows these arrays.
The system records the peak memory of a process. The part of the peak above the memory at the end of
a slice is temporary. Memory that stays in use (a loaded model, a partition) is excluded.
"""

from __future__ import annotations

import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dml.exec.memory.memory_meter import resident_bytes

KIB = 1 << 10
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MOST = b"VmHWM:"


class Begun(NamedTuple):
    """Peak memory of the process, in bytes, and number of running slices when a slice began."""

    peak_bytes: int
    slices: int


class Gauge:
    """Measures the memory of slices in this process, several of which may run at once.

    ``own`` is True if dml started the process: then the system's peak is reset before a slice that
    runs alone. In a user's process, where other code may read the peak, only a rise of it is
    measured, in a microsecond per slice. Memory of simultaneous slices is divided by their number.
    """

    def __init__(self) -> None:
        self.own = False
        self._slices, self._lock = 0, threading.Lock()

    def begin(self) -> Begun:
        """Record that a slice starts or continues; return the values to pass to ``end``."""
        with self._lock:
            self._slices += 1
            if self.own and self._slices == 1:
                with suppress(OSError):  # the system forbids it, or has no such file
                    RESET.write_bytes(b"5")
            return Begun(self._peak(), self._slices)

    def end(self, begun: Begun) -> int:
        """Return the peak bytes of the slice beyond the memory that it leaves in use."""
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
