"""Let a Dask worker keep some freed memory while it works for a run.

Dask starts its workers with ``MALLOC_TRIM_THRESHOLD_=65536``, so that their reported size is the
memory in use. The C library then requests every large array anew from the system, page by page, and
returns it at once. For a pipeline that makes megabytes at a time, that is most of the system time,
and takes longer than sending them (benchmarks/results/lending.md). While a worker has the job of a
run, it keeps freed memory up to the library's own default; afterwards the old settings are
restored. A threshold that the user has chosen is not changed.
"""

from __future__ import annotations

import os
from typing import Any

from dml.exec.memory.memory_meter import LIBRARY, give_back

OF_DASK = "65536"  # distributed.nanny.pre-spawn-environ, unless it was changed
TRIM, MMAP = -1, -3  # numbers of two parameters of mallopt
KEPT, WHOLE = 64 << 20, 32 << 20  # the maxima to which glibc raises both by default
USUAL_WHOLE = 128 << 10  # bytes from which arrays come from the system, if trimming was set


def keep() -> None:
    """Keep freed memory in this process; may be called again."""
    if _is_dasks():
        _set(KEPT, WHOLE)


def let_go() -> None:
    """Stop keeping freed memory, and return what was kept to the system."""
    if _is_dasks():
        _set(int(OF_DASK), USUAL_WHOLE)
        give_back()


def _is_dasks() -> bool:
    """Return True if Dask, and not the user, has set the trim threshold."""
    own = "MALLOC_MMAP_THRESHOLD_" in os.environ
    return os.environ.get("MALLOC_TRIM_THRESHOLD_") == OF_DASK and not own


def _set(trim: int, whole: int) -> None:
    mallopt: Any = getattr(LIBRARY, "mallopt", None)  # of the GNU C library
    if mallopt is not None:
        mallopt(TRIM, trim)
        mallopt(MMAP, whole)
