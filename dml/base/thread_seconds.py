"""Processor time of a thread, with the time that helper threads have worked for it."""

from __future__ import annotations

import threading
import time

# Seconds by the thread for which others worked.
_worked: dict[int, float] = {}


def thread_seconds() -> float:
    """Return the seconds that this thread, and others for it, were on a processor.

    Only differences between two values are meaningful.
    """
    return time.thread_time() + _worked.get(threading.get_ident(), 0.0)


def work_for(thread: int, seconds: float) -> None:
    """Count ``seconds`` of this thread for the one with the identifier ``thread``, which waits."""
    _worked[thread] = _worked.get(thread, 0.0) + seconds
