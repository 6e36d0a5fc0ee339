"""Delivery order is tracked here: the place to offer next, and the task that it waits for."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field

from dml.exec.scheduler.policy import Seq


@dataclass(slots=True)
class QueuedTask:
    """A started unit or partition: ``k`` is the next slice, and the number already made."""

    seq: Seq
    stage: int
    k: int = 0
    failures: int = 0
    reserved_bytes: int = 0
    parked_bytes: int = 0
    started: float = 0.0
    done: bool = False
    failed: bool = False


@dataclass(slots=True)
class Line:
    """Traverses the tree of tasks in the order in which partitions are offered, depth first.

    ``cursor`` is the place to be offered next, ``head`` the task that it waits for. Tasks that the
    cursor has passed are removed.
    """

    stages: int
    tasks: MutableMapping[Seq, QueuedTask]
    cursor: Seq = field(default=())
    head: Seq = (0,)

    def __post_init__(self) -> None:
        self.cursor = (0,) * (self.stages + 1)

    def advance(self, offer: Callable[[Seq], None], fail: Callable[[Seq], None]) -> None:
        """Offer all partitions that are next in order; the first error stops with ``fail``."""
        level = 0
        while True:
            seq = self.cursor[: level + 1]
            task = self.tasks.get(seq)
            k = self.cursor[level + 1]
            if task is None or (k >= task.k and not task.done):
                self.head = seq
                return
            if k < task.k:
                level = self._down(seq, k, level, offer)
            elif task.failed:
                fail((*seq, task.k))
                return
            else:
                del self.tasks[seq]
                rest = (0,) * (self.stages - level)
                self.cursor = (*seq[:-1], seq[-1] + 1, *rest)
                level = max(level - 1, 0)

    def _down(self, seq: Seq, k: int, level: int, offer: Callable[[Seq], None]) -> int:
        """Go to partition ``k`` of a task: offer it, or descend to the task that reads it."""
        if level + 1 < self.stages:
            return level + 1
        offer(self.cursor)
        self.cursor = (*seq, k + 1)
        return level
