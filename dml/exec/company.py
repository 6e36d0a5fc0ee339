"""This file lets the runs of one pipeline share worker processes, so that these are no more.

A pipeline with several inputs has a run for each. Were each to have workers of its own, sixteen
inputs on two workers would be thirty-two processes, each with libraries and freed memory.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from dml.errors import WorkerLostError
from dml.exec.channel import Message
from dml.exec.desk import Answer, Order
from dml.exec.pool import POOL, Worker


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """An answer, or what was raised instead; neither if nobody waits any more.

    ``place`` is what a worker was reading that is gone, -1 if that is not known.
    """

    answer: Answer | None = None
    error: BaseException | None = None
    place: int = -1


class Member:
    """One worker process and those who ask it, one order after another; if it dies, another."""

    def __init__(self) -> None:
        self.desks = Counter[str]()  # by run; the company's lock guards them
        self.waiting = Counter[str]()  # orders by run, each counted under the lock of that run
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    @property
    def orders(self) -> int:
        """How many it has, of all runs, that are not answered."""
        return sum([*self.waiting.values()])  # a copy: other runs come and go

    def ask(self, order: Order, job: Message, unwanted: Callable[[], bool]) -> Asked:
        """What the worker makes of an order; after an error there is another worker."""
        with self._lock:
            if unwanted():
                return Asked()
            try:
                return Asked(self._answer(order, job, unwanted))
            except BaseException as error:  # noqa: BLE001  (or the consumer would wait for ever)
                return Asked(error=error, place=self._gone())

    def _answer(self, order: Order, job: Message, unwanted: Callable[[], bool]) -> Answer:
        """The answer of the worker here; one with a past may leave it to a new one, once.

        Not what must not be given twice: that goes to a new one at once.
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
        """Nobody works here any more; the place that the last one was reading."""
        worker, self._worker = self._worker, None
        if worker is None:
            return -1
        worker.close()
        return worker.place

    def forget(self, run: str, *, last: bool) -> None:
        """Let go of a run; of the ``last`` one, the worker goes back to where it came from."""
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
    """The workers of one pipeline: as many as the run that asks for most."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._lock = threading.Lock()

    def join(self, run: str, *, shared: bool = False) -> Member:
        """A desk more for ``run``, at a worker where it has none: the one with least to do.

        With ``shared``, where all runs together have no more orders than there are slots, it is one
        that has nothing to do.
        """
        with self._lock:
            free = [member for member in self._members if not member.desks[run]]
            if shared:
                free = [member for member in free if not member.orders]
            if not free:
                free = [Member()]
                self._members += free
            member = min(free, key=lambda each: (each.orders, each.desks.total()))
            member.desks[run] += 1
            return member

    def leave(self, run: str, member: Member) -> None:
        """A desk less; may wait until the worker has done what it is at."""
        with self._lock:
            del member.desks[run]
            member.waiting.pop(run, None)
            last = not member.desks.total()
            if last:
                self._members.remove(member)
        member.forget(run, last=last)


# By what the runs of a pipeline have in common and no others have: what makes their spills.
COMPANIES: WeakKeyDictionary[object, Company] = WeakKeyDictionary()
os.register_at_fork(after_in_child=COMPANIES.clear)


def company_of(common: object) -> Company:
    """The company of all runs that have ``common``; a class is common to too many."""
    if isinstance(common, type):
        return Company()
    return COMPANIES.setdefault(common, Company())
