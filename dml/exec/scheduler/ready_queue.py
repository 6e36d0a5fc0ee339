"""Queue the waiting tasks of a stage: new tasks, and tasks parked between two slices."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from dml.exec.scheduler.policy import Seq


@dataclass(slots=True)
class Waiting:
    """Heaps of task places, lowest first: ``ready`` tasks are new, ``parked`` ones have begun."""

    ready: list[Seq] = field(default_factory=list)
    parked: list[Seq] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ready) + len(self.parked)

    @property
    def first(self) -> Seq | None:
        """The lowest place in both heaps; None if no task waits."""
        return min([*self.parked[:1], *self.ready[:1]], default=None)

    def slices(self, each: float) -> float:
        """Return the number of waiting slices: ``each`` for a new task, one for a parked task."""
        return len(self.ready) * each + len(self.parked)


def take(heap: list[Seq], seq: Seq) -> None:
    """Remove place ``seq`` from a heap, wherever it lies."""
    if heap[0] == seq:
        heapq.heappop(heap)
    else:
        heap.remove(seq)
        heapq.heapify(heap)
