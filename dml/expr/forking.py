"""This file ends the copies of a process that users' functions make with ``os.fork``.

A copy whose side of the function returns would go on with the rows, fork again for each of them,
and answer in the place of the process that it is a copy of. It ends where the call returns. What
ends by itself, or replaces itself with another program, is left alone.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _Flag(list[bool]):
    """One flag, which can be referred to weakly."""

    def __init__(self) -> None:
        super().__init__([False])

    def lower(self) -> None:
        """Not forked by a function, or no copy that would go on."""
        self[0] = False


_CALLING = set[int]()  # threads that may be in a user's function
# Whether this process was forked by such a thread since it began; always false in the others.
COPY = _Flag()


def guarded(work: Callable[[], T]) -> T:
    """Do ``work``, which calls users' functions; copies of this process end there."""
    _heed_others()
    thread, copy, process = threading.get_ident(), COPY[0], os.getpid()
    outer = thread in _CALLING
    _CALLING.add(thread)
    COPY[0] = False
    try:
        return work()
    finally:
        if os.getpid() != process:
            end()
        COPY[0] = copy
        if not outer:
            _CALLING.discard(thread)


@functools.cache
def _heed_others() -> None:
    """A process that ``multiprocessing`` forks is none of these: it ends when its work is done."""
    from multiprocessing import util  # noqa: PLC0415 - who runs something has it

    util.register_after_fork(COPY, _Flag.lower)


def end_copy() -> None:
    """End this process if it was forked in the call of a function that has returned."""
    if COPY[0]:
        end()


def end() -> None:
    """End this process at once: what it would clean up is that of the other one."""
    os._exit(0)


def _forked() -> None:
    _CALLING.intersection_update({threading.get_ident()})  # there are no other threads
    COPY[0] |= bool(_CALLING)


os.register_at_fork(after_in_child=_forked)
