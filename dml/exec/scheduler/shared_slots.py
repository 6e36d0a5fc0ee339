"""The cores of one run share its slots and its memory limit through a ledger.

A pipeline has a core for each part of it that works in parallel: a source that is read, functions
over a flow. They are one scheduler for scarce resources: a slot or a byte that one core uses is
missing for the other cores, and a core that frees some lets the other cores look again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class SharingCore(Protocol):
    """A scheduling core among those that share slots and bytes."""

    closed: bool
    state: Any
    ledger: Any

    @property
    def head_bytes(self) -> int:
        """Bytes that the next task in line still needs."""

    @property
    def plenty(self) -> bool:
        """True if more is ready than is consumed."""

    @property
    def waits(self) -> bool:
        """True if tasks wait for slots or bytes."""


class Ledger:
    """The slots and bytes shared by the cores of a run; all of them are stepped under ``lock``.

    Parameters
    ----------
    slots : True if slots are shared, too, and not only bytes
    around : the ledger of an enclosing run, which has its own bytes and the same slots

    ``limit_bytes`` bounds the bytes of all cores together.
    """

    def __init__(self, *, slots: bool = True, around: Ledger | None = None) -> None:
        self.lock: threading.Lock = threading.Lock() if around is None else around.lock
        self.shares_slots = slots
        self.limit_bytes = 0
        self.total: dict[str, float] = {} if around is None else around.total
        self.free: dict[str, float] = {} if around is None else around.free
        self._members: list[tuple[SharingCore, Callable[[], None]]] = []
        if around is not None:
            self._members = around._members  # noqa: SLF001 (of its own kind)

    def taken(self, slots: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """All slots and the free slots, for a core that declares ``slots``."""
        if not self.shares_slots:
            return dict(slots), dict(slots)
        for name, amount in slots.items():
            if name not in self.total:
                self.total[name] = self.free[name] = amount
        return self.total, self.free

    def join(self, core: SharingCore, look: Callable[[], None]) -> None:
        """Add a core; ``look`` starts its tasks that can start, and is called under ``lock``."""
        self._members[:] = [each for each in self._members if not each[0].closed]
        self._members.append((core, look))

    def beside(self, core: SharingCore) -> tuple[int, int]:
        """Bytes that the other cores use, and those that the heads of their lines still need."""
        used = needed = 0
        for other, _ in self._members:
            if other is not core and other.ledger is self and not other.closed:
                used += other.state.own_bytes
                needed += other.head_bytes
        return used, needed

    def yields(self, core: SharingCore) -> bool:
        """True if ``core`` has enough ready, and leaves its slots to cores that have too little.

        So read-ahead never takes workers from the functions that it serves. Two cores with plenty
        do not wait for each other: slots would stay free.
        """
        if not (self.shares_slots and core.plenty):
            return False
        lacking = (other for other, _ in self._members if other is not core and not other.plenty)
        return any(other.waits and not other.closed for other in lacking)

    def changed(self, core: SharingCore) -> None:
        """Have the other cores look again, after a step of ``core``."""
        for other, look in self._members:
            if other is not core and not other.closed and other.waits:
                look()
