"""This file lets the cores of one run share its slots and its memory number.

A pipeline has a core for each part of it that works in parallel: a source that is read, functions
over a flow. They are one scheduler in all that is scarce: a slot or a byte that one of them has is
lacking to the others, and whoever frees some has the others look again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dml.exec.core import Core


class Ledger:
    """What the cores of a run have together; all of them are stepped under ``lock``.

    Parameters
    ----------
    slots : True if slots are shared, too, and not only bytes
    around : the ledger of a run around this one, which has its own bytes and the same slots

    ``limit_bytes`` is what all of them may have together.
    """

    def __init__(self, *, slots: bool = True, around: Ledger | None = None) -> None:
        self.lock: threading.Lock = threading.Lock() if around is None else around.lock
        self.shares_slots = slots
        self.limit_bytes = 0
        self.total: dict[str, float] = {} if around is None else around.total
        self.free: dict[str, float] = {} if around is None else around.free
        self._members: list[tuple[Core, Callable[[], None]]] = []
        if around is not None:
            self._members = around._members  # noqa: SLF001 (of its own kind)

    def taken(self, slots: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """All slots and those that are free, for a core that was given so many."""
        if not self.shares_slots:
            return dict(slots), dict(slots)
        for name, amount in slots.items():
            if name not in self.total:
                self.total[name] = self.free[name] = amount
        return self.total, self.free

    def join(self, core: Core, look: Callable[[], None]) -> None:
        """One core more; ``look`` has it start what can start, and is called under ``lock``."""
        self._members[:] = [each for each in self._members if not each[0].closed]
        self._members.append((core, look))

    def beside(self, core: Core) -> tuple[int, int]:
        """Bytes that the others have, and those that the heads of their lines still need."""
        used = needed = 0
        for other, _ in self._members:
            if other is not core and other.ledger is self and not other.closed:
                used += other.state.own_bytes
                needed += other.head_bytes
        return used, needed

    def yields(self, core: Core) -> bool:
        """True if ``core`` has plenty ready, and leaves its slots to tasks of others that lack it.

        So what is read ahead never takes workers from the functions that it is read for. Two that
        both have plenty do not wait for each other: slots would stay free.
        """
        if not (self.shares_slots and core.plenty):
            return False
        lacking = (other for other, _ in self._members if other is not core and not other.plenty)
        return any(other.waits and not other.closed for other in lacking)

    def changed(self, core: Core) -> None:
        """Have the others look again, after a step of ``core``."""
        for other, look in self._members:
            if other is not core and not other.closed and other.waits:
                look()
