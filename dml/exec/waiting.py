"""This file keeps the tasks of a stage that wait: for their first slice, or for another one."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from dml.exec.policy import Seq


@dataclass(slots=True)
class Waiting:
    """Heaps of places, lowest first."""

    ready: list[Seq] = field(default_factory=list)
    parked: list[Seq] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ready) + len(self.parked)

    @property
    def first(self) -> Seq | None:
        """The lowest place of all."""
        return min([*self.parked[:1], *self.ready[:1]], default=None)

    def slices(self, each: float) -> float:
        """Slices that wait, where a new task has ``each`` of them, and a parked one another."""
        return len(self.ready) * each + len(self.parked)


def take(heap: list[Seq], seq: Seq) -> None:
    """Take a place out of a heap, wherever it lies."""
    if heap[0] == seq:
        heapq.heappop(heap)
    else:
        heap.remove(seq)
        heapq.heapify(heap)
