"""Child processes that a user's function forks are ended when the function returns in them.

A forked child that returns from the function would go on with the rows, fork again for each of
them, and reply in place of its parent. A child that exits by itself, or replaces itself with
another program, is left alone.
"""

from __future__ import annotations

import functools
import os
import threading


class _Flag(list[bool]):
    """A mutable flag that supports weak references."""

    def __init__(self) -> None:
        super().__init__([False])

    def lower(self) -> None:
        """Clear the flag: this process was not forked by a user's function."""
        self[0] = False


_CALLING = set[int]()  # threads that may be in a user's function
# True if this process was forked by such a thread since its work began.
COPY = _Flag()


class ForkGuard:
    """A ``with`` block that calls users' functions; it ends child processes that they fork."""

    __slots__ = ("_copy", "_outer", "_process", "_thread")

    def __enter__(self) -> None:
        _heed_others()
        thread, self._copy, self._process = threading.get_ident(), COPY[0], os.getpid()
        self._thread, self._outer = thread, thread in _CALLING
        _CALLING.add(thread)
        COPY[0] = False

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:
            end()
        COPY[0] = self._copy
        if not self._outer:
            _CALLING.discard(self._thread)


@functools.cache
def _heed_others() -> None:
    """Exempt processes that ``multiprocessing`` forks, which end by themselves."""
    from multiprocessing import util  # noqa: PLC0415 - any process that runs a pipeline has it

    util.register_after_fork(COPY, _Flag.lower)


def end_copy() -> None:
    """End this process if it was forked in a call of a user's function that has returned."""
    if COPY[0]:
        end()


def end() -> None:
    """End this process at once, without cleanup: open resources belong to the parent."""
    os._exit(0)


def _forked() -> None:
    _CALLING.intersection_update({threading.get_ident()})  # there are no other threads
    COPY[0] |= bool(_CALLING)


os.register_at_fork(after_in_child=_forked)
