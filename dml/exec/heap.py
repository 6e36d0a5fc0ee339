"""This file has a worker of Dask keep some freed memory while it works for a run.

Dask starts its workers with ``MALLOC_TRIM_THRESHOLD_=65536``, so that what they show as their size
is what they hold. The C library then asks the system for every large array anew, page by page, and
hands it back at once: of a pipeline that makes megabytes at a time that is most of the system time,
and more than sending them takes (benchmarks/results/lending.md). While a run has a seat on a worker
freed memory is kept as far as the library itself would keep it by default; afterwards all is as it
was. Where somebody has chosen another number, that stays.
"""

from __future__ import annotations

import os
from typing import Any

from dml.exec.memory import LIBRARY, give_back

OF_DASK = "65536"  # distributed.nanny.pre-spawn-environ, unless somebody has changed it
TRIM, MMAP = -1, -3  # what mallopt calls them
KEPT, WHOLE = 64 << 20, 32 << 20  # the most that glibc raises both to when left alone
USUAL_WHOLE = 128 << 10  # arrays of more come from the system, where trimming was set


def keep() -> None:
    """Keep memory that is freed; may be called again."""
    if _is_dasks():
        _set(KEPT, WHOLE)


def let_go() -> None:
    """Keep none any more, as before ``keep``."""
    if _is_dasks():
        _set(int(OF_DASK), USUAL_WHOLE)
        give_back()


def _is_dasks() -> bool:
    """True where Dask, and nobody else, has decided about freed memory."""
    own = "MALLOC_MMAP_THRESHOLD_" in os.environ
    return os.environ.get("MALLOC_TRIM_THRESHOLD_") == OF_DASK and not own


def _set(trim: int, whole: int) -> None:
    mallopt: Any = getattr(LIBRARY, "mallopt", None)  # of the GNU C library
    if mallopt is not None:
        mallopt(TRIM, trim)
        mallopt(MMAP, whole)
