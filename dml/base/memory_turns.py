"""Rows that need much memory for a moment take turns, so that they need it one after the other.

A large image needs a hundred times the memory of a usual one while it is decoded and resized. The
threads of a process wait for each other there: none waits while it has such memory, so all go on.
"""

from __future__ import annotations

import os
import threading
from typing import Final

# Bytes of a row that take no turn, and most bytes of all rows that do, but for a single larger one.
SMALL_BYTES: Final = 8 << 20
MOST_BYTES: Final = 192 << 20


class MemoryTurns:
    """The bytes that threads use for their rows at the moment, at most ``most`` or one row's."""

    def __init__(self, most: int = MOST_BYTES, small: int = SMALL_BYTES) -> None:
        self.most, self.small = most, small
        self.reset()

    def reset(self) -> None:
        """Forget all turns, as in the child of a fork, which has none of the threads."""
        self._changed = threading.Condition()
        self._used: dict[int, int] = {}  # by thread

    def take(self, count: int) -> None:
        """Wait until the thread may use ``count`` bytes, up to ``give_back``."""
        if count < self.small:
            return
        own, used = threading.get_ident(), self._used
        with self._changed:
            self._changed.wait_for(
                lambda: own in used or not used or sum(used.values()) + count <= self.most
            )
            used[own] = used.get(own, 0) + count

    def give_back(self) -> None:
        """End the turns of the thread."""
        own = threading.get_ident()
        if own in self._used:
            with self._changed:
                del self._used[own]
                self._changed.notify_all()


TURNS: Final = MemoryTurns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TURNS.reset)
