"""The runs of one pipeline share worker processes here, so that there are no more than needed.

A pipeline with several inputs has a run for each. If each had its own workers, sixteen inputs on
two workers would be thirty-two processes, each with libraries and freed memory.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from dml.errors import WorkerLostError
from dml.exec.process.channel import Message
from dml.exec.process.task_runner import Answer, SliceOrder
from dml.exec.process.worker_pool import POOL, Worker


@dataclasses.dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer, or the error raised instead; neither if the answer is no longer needed.

    ``place`` is the unit that a lost worker was reading, -1 if that is not known.
    """

    answer: Answer | None = None
    error: BaseException | None = None
    place: int = -1


class SharedWorker:
    """A shared worker process, which takes orders one after another; replaced if it dies."""

    def __init__(self) -> None:
        self.desks = Counter[str]()  # by run; the company's lock guards them
        self.waiting = Counter[str]()  # orders by run, each counted under the lock of that run
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    @property
    def orders(self) -> int:
        """The number of unanswered orders, of all runs."""
        return sum([*self.waiting.values()])  # a copy, since other runs join and leave

    def ask(self, order: SliceOrder, job: Message, unwanted: Callable[[], bool]) -> PendingAnswer:
        """Return the worker's answer to an order; after an error the worker is replaced."""
        with self._lock:
            if unwanted():
                return PendingAnswer()
            try:
                return PendingAnswer(self._answer(order, job, unwanted))
            except BaseException as error:  # noqa: BLE001  (or the consumer would wait for ever)
                return PendingAnswer(error=error, place=self._gone())

    def _answer(self, order: SliceOrder, job: Message, unwanted: Callable[[], bool]) -> Answer:
        """Return the answer; if a worker used before dies, a new one tries once more.

        An order that must not be given twice goes to a new worker at once.
        """
        self._worker = self._worker or POOL.take(fresh=order.once)
        past = self._worker.used and not self._worker.jobs
        try:
            return self._worker.do(order, job, unwanted)
        except WorkerLostError:
            if not past or order.once:
                raise
        self._worker = POOL.take(fresh=True)
        return self._worker.do(order, job, unwanted)

    def _gone(self) -> int:
        """Drop the worker; returns the place that it was reading."""
        worker, self._worker = self._worker, None
        if worker is None:
            return -1
        worker.close()
        return worker.place

    def forget(self, run: str, *, last: bool) -> None:
        """Release a run; after the ``last`` one, the worker returns to the pool."""
        with self._lock:
            worker = self._worker
            if worker is None:
                return
            if not worker.forget(run) or (last and not worker.alone()):
                self._gone()
            elif last:
                self._worker = None
                POOL.give_back(worker)


class Company:
    """The workers of one pipeline: as many as its largest run needs."""

    def __init__(self) -> None:
        self._members: list[SharedWorker] = []
        self._lock = threading.Lock()

    def join(self, run: str, *, shared: bool = False) -> SharedWorker:
        """Add a desk for ``run`` at the least busy worker where it has none.

        With ``shared``, where all runs together have no more orders than there are slots, the
        worker must be idle.
        """
        with self._lock:
            free = [member for member in self._members if not member.desks[run]]
            if shared:
                free = [member for member in free if not member.orders]
            if not free:
                free = [SharedWorker()]
                self._members += free
            member = min(free, key=lambda each: (each.orders, each.desks.total()))
            member.desks[run] += 1
            return member

    def leave(self, run: str, member: SharedWorker) -> None:
        """Remove a desk; may wait until the worker has finished its order."""
        with self._lock:
            del member.desks[run]
            member.waiting.pop(run, None)
            last = not member.desks.total()
            if last:
                self._members.remove(member)
        member.forget(run, last=last)


# By an object that only the runs of one pipeline share: the maker of their spills.
COMPANIES: WeakKeyDictionary[object, Company] = WeakKeyDictionary()
os.register_at_fork(after_in_child=COMPANIES.clear)


def company_of(common: object) -> Company:
    """Return the company of all runs with the same ``common``; a class is too widely shared."""
    if isinstance(common, type):
        return Company()
    return COMPANIES.setdefault(common, Company())
