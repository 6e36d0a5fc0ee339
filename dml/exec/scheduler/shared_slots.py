"""The scheduler cores of one run share its slots and its memory limit through a ledger.

A run has one core, a scheduler and not a CPU core, for each part of the pipeline that works in
parallel: the reading of a source, and the functions applied to a flow. A slot or byte that one core
uses is missing for the others, and a core that frees some makes the others try to start tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class SharingCore(Protocol):
    """A scheduling core that shares slots and bytes with others."""

    closed: bool
    state: Any
    ledger: Any

    @property
    def head_bytes(self) -> int:
        """Bytes that the head task of the core still needs."""

    @property
    def plenty(self) -> bool:
        """Whether more partitions are offered to the consumer than the last stage has slots."""

    @property
    def lead(self) -> float:
        """Bytes that are made or in progress and not consumed, by those that were consumed."""

    @property
    def waits(self) -> bool:
        """Whether tasks wait for slots or bytes."""


class Ledger:
    """The slots and bytes shared by the cores of a run; every core is stepped under ``lock``.

    Parameters
    ----------
    slots : True if slots are shared, too, and not only bytes
    around : the ledger of an enclosing run, whose slots and lock are used; its bytes are not shared

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

    def declare(self, slots: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """Add resources that are new, and return all amounts and the free amounts, by resource.

        If slots are not shared, return ``slots`` as both.
        """
        if not self.shares_slots:
            return dict(slots), dict(slots)
        for name, amount in slots.items():
            if name not in self.total:
                self.total[name] = self.free[name] = amount
        return self.total, self.free

    def join(self, core: SharingCore, look: Callable[[], None]) -> None:
        """Add a core; ``look``, called under ``lock``, lets it start the tasks that fit."""
        self._members[:] = [each for each in self._members if not each[0].closed]
        self._members.append((core, look))

    def beside(self, core: SharingCore) -> tuple[int, int]:
        """Return the bytes that other cores use, and those that their head tasks still need."""
        used = needed = 0
        for other, _ in self._members:
            if other is not core and other.ledger is self and not other.closed:
                used += other.state.own_bytes
                needed += other.head_bytes
        return used, needed

    def yields(self, core: SharingCore) -> bool:
        """Return whether ``core``, with plenty of output, must leave slots to a core that waits.

        It must if the other core lacks output, so read-ahead never takes workers from the functions
        that it serves. Of cores with plenty, those must whose lead is larger: inputs whose rows are
        taken together are made at the rate at which each is consumed, whatever their costs.
        """
        if not (self.shares_slots and core.plenty):
            return False
        waiting = (other for other, _ in self._members if other.waits and not other.closed)
        return any(not other.plenty or other.lead < core.lead for other in waiting)

    def changed(self, core: SharingCore) -> None:
        """Let the other cores with waiting tasks start some, after a step of ``core``."""
        for other, look in self._members:
            if other is not core and not other.closed and other.waits:
                look()
