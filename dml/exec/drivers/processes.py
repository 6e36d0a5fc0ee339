"""A driver runs tasks in processes of this host, for work that holds the GIL.

The runs of one pipeline share worker processes, so that there are no more than needed: a pipeline
with several inputs has a run for each input. If each run had its own workers, sixteen inputs on two
workers would be thirty-two processes, each with libraries and freed memory.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Unpack
from weakref import WeakKeyDictionary

from dml.errors import WorkerLostError
from dml.exec.delivery.meter import Tallies
from dml.exec.drivers.crew import CrewFeed
from dml.exec.drivers.remote import RemoteCrew
from dml.exec.memory.memory_meter import children
from dml.exec.process.channel import Message
from dml.exec.process.environment import Surroundings
from dml.exec.process.task_runner import Answer, SliceOrder, written
from dml.exec.process.worker_pool import POOL, StuckError, Worker
from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.speculation import repeatable
from dml.exec.tasks.error_row import started
from dml.exec.tasks.job import Job
from dml.exec.tasks.slices import WATCHDOG_S, DriverLoop, Options, Tasks


class FailedOrderError(Exception):
    """Raised from the error of an order; a lost worker was reading the unit at ``place``, or -1."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class SharedWorker:
    """A worker process shared by runs, which runs one order at a time; replaced if it dies.

    If a call of a function was given up there, another worker takes its place, and it only finishes
    the tasks that it has begun: ``_spent`` are such workers.
    """

    def __init__(self) -> None:
        self.desks = Counter[str]()  # by run; the company's lock guards them
        self.waiting = Counter[str]()  # orders by run, each counted under the lock of that run
        self._worker: Worker | None = None
        self._spent: list[Worker] = []
        self._lock = threading.Lock()

    @property
    def orders(self) -> int:
        """The number of unanswered orders of all runs."""
        return sum([*self.waiting.values()])  # a copy, since other runs join and leave

    def ask(self, order: SliceOrder, job: Message, unwanted: Callable[[], bool]) -> Answer | None:
        """Return the worker's answer to ``order``, or None if ``unwanted``.

        Raise FailedOrderError from any error, after which the worker is replaced.
        """
        with self._lock:
            if unwanted():
                return None
            try:
                return self._answer(order, job, unwanted)
            except BaseException as error:
                raise FailedOrderError(self._gone(self._at_work(order))) from error
            finally:
                self._end_spent()

    def _at_work(self, order: SliceOrder) -> Worker | None:
        """Return the worker that has begun the task of ``order``, else the one for new tasks."""
        task = order.name, order.run.seq
        return next((each for each in self._spent if task in each.parked), self._worker)

    def _end_spent(self) -> None:
        """Let no new task begin in a spent worker, and end those that have finished all others."""
        if self._worker is not None and self._worker.spent:
            self._spent.append(self._worker)
            self._worker = None
        for worker in [each for each in self._spent if not each.parked]:
            self._spent.remove(worker)
            worker.close()

    def _answer(self, order: SliceOrder, job: Message, unwanted: Callable[[], bool]) -> Answer:
        """Return the answer to ``order``; if a reused worker dies at its first one, ask a new one.

        An order that must not be run twice is tried once, by a new worker if there is none yet.
        """
        begun = self._at_work(order)
        if begun is not None and begun.spent:
            return begun.do(order, job, unwanted)
        self._worker = self._worker or POOL.take(fresh=order.once)
        past = self._worker.used and not self._worker.jobs
        try:
            return self._worker.do(order, job, unwanted)
        except WorkerLostError:
            if not past or order.once:
                raise
        self._worker = POOL.take(fresh=True)
        return self._worker.do(order, job, unwanted)

    def _gone(self, worker: Worker | None) -> int:
        """Drop ``worker``, and return the place that it was reading, or -1."""
        if worker is None:
            return -1
        if worker is self._worker:
            self._worker = None
        else:
            self._spent.remove(worker)
        worker.close()
        return worker.place

    def forget(self, run: str, *, last: bool) -> None:
        """Release ``run``; with ``last`` (no other run is left), return the worker to the pool."""
        with self._lock:
            for each in self._spent:
                each.forget(run)
            self._end_spent()
            worker = self._worker
            if worker is None:
                return
            # nor is a worker kept whose functions have started processes that still run
            if not worker.forget(run) or (last and children(worker.process.pid)):
                self._gone(worker)
            elif last:
                self._worker = None
                POOL.give_back(worker)


class Company:
    """The workers of one pipeline: as many as its largest run needs."""

    def __init__(self) -> None:
        self._members: list[SharedWorker] = []
        self._lock = threading.Lock()

    def join(self, run: str, *, shared: bool = False) -> SharedWorker:
        """Return the least busy worker that does not serve ``run`` yet, and assign ``run`` to it.

        With ``shared`` the worker must be idle, since all runs together have no more orders than
        slots. If there is no such worker, add one.
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
        """Remove ``run`` from the worker ``member``; may wait for an order in progress."""
        with self._lock:
            del member.desks[run]
            member.waiting.pop(run, None)
            last = not member.desks.total()
            if last:
                self._members.remove(member)
        member.forget(run, last=last)


# Companies by an object that only the runs of one pipeline share: the creator of their spills.
COMPANIES: WeakKeyDictionary[object, Company] = WeakKeyDictionary()
os.register_at_fork(after_in_child=COMPANIES.clear)


def company_of(common: object) -> Company:
    """Return the workers of all runs with the same ``common``; new ones if it is a class."""
    if isinstance(common, type):
        return Company()
    return COMPANIES.setdefault(common, Company())


class _Processes(RemoteCrew):
    """Runs slices in worker processes; a thread per process sends orders and waits for answers.

    A desk is this run's queue of slices at one worker, with its thread. It is added when a slice
    finds all desks busy; the core hands out no more slices than there are slots. A worker may also
    serve other runs of the pipeline. The job and its arrays are in memory once for all workers.
    """

    def __init__(self, loop: DriverLoop, job: Job, tallies: Tallies) -> None:
        super().__init__(loop, job, tallies)
        self.message = Message(("job", Surroundings.now(), self.name, *written(job)))
        self.company = company_of(job.at.spill)
        self.desks: dict[str, _Desk] = {}
        self.seats: dict[int, list[_Desk]] = {}  # of each stage with ``max_parallel``
        self.at_work = 0

    def hand_out(self, runs: Iterable[Run]) -> None:
        """Give each slice to the desk that began its task, or to the least busy desk."""
        for run in runs:
            self.begun(run)
            home = self.homes.get(run.seq)
            desk = self._least(run.stage) if home is None else self.desks[home]
            desk.take(run)

    def _least(self, stage: int) -> _Desk:
        """Return the least busy desk at which the stage may run; add one if all are busy.

        A stage with ``max_parallel``, e.g. a class costly to construct, stays at so many desks.
        """
        width = self.loop.core.demands[stage].max_parallel
        seats = self.seats.setdefault(stage, [])
        if width is not None and len(seats) >= width:
            return min(seats, key=attrgetter("busy"))
        others = [desk for desk in self.desks.values() if width is None or desk not in seats]
        desk = min(others, key=attrgetter("busy"), default=None)
        if desk is None or desk.busy:
            name = f"desk-{len(self.desks)}"
            desk = self.desks[name] = _Desk(self, name)
        if width is not None:
            seats.append(desk)
        return desk

    def leave(self) -> None:
        """Ask all workers to stop, without blocking."""
        if not self.at_work:
            self.message.close()
        for desk in list(self.desks.values()):
            desk.tasks.put(None)

    def left(self) -> None:
        """Record that a desk has stopped; the last one releases the job."""
        with self.lock:
            self.at_work -= 1
            if not self.at_work:
                self.message.close()
        self.clean()


class _Desk:
    """This run's queue of slices at one worker, which may serve other runs in between."""

    def __init__(self, crew: _Processes, name: str) -> None:
        self.crew, self.name = crew, name
        self.tasks: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self.shared = crew.ledger is not None and crew.ledger.shares_slots
        self.member = crew.company.join(crew.name, shared=self.shared)
        thread = threading.Thread(target=self.work, name=f"dml-{name}", daemon=True)
        crew.at_work += 1
        try:
            started(thread)
        except WorkerLostError:
            crew.at_work -= 1
            crew.company.leave(crew.name, self.member)
            raise
        crew.threads.append(thread)

    @property
    def busy(self) -> int:
        """Number of unanswered orders of this run at its worker; of all if slots are shared."""
        return self.member.orders if self.shared else self.member.waiting[self.crew.name]

    def take(self, run: Run) -> None:
        """Add a slice to the queue; the caller holds the lock."""
        self.member.waiting[self.crew.name] += 1
        self.tasks.put(run)

    def work(self) -> None:
        """Serve slices until the crew is closing."""
        crew = self.crew
        try:
            while (run := self.tasks.get()) is not None and not crew.closing:
                self.serve(run)
        finally:
            crew.company.leave(crew.name, self.member)
            crew.left()

    def serve(self, run: Run) -> None:
        """Run one slice, and pass its answer, its failure or the loss of the worker to the crew."""
        crew = self.crew
        try:
            answer = self.request(run)
            if answer is None:  # another attempt was faster before this one began
                crew.counts(run, lost=True)
            else:
                crew.answered(run, self.name, answer)
        except FailedOrderError as found:
            cause = found.__cause__ or found
            if isinstance(cause, WorkerLostError):
                crew.lost(run, self.name, cause, found.place)
            elif isinstance(cause, StuckError):
                crew.stuck(run, self.name, found.place)
            else:
                crew.failed(run, self.name, cause)
        except BaseException as error:  # noqa: BLE001  (or the consumer would wait for ever)
            crew.failed(run, self.name, error)

    def request(self, run: Run) -> Answer | None:
        """Return the worker's answer to a slice; None if it is no longer needed."""
        crew, unwanted = self.crew, partial(self.crew.unwanted, run)
        try:
            with crew.lock:
                order = None if unwanted() else crew.order(run)
            return None if order is None else self.member.ask(order, crew.message, unwanted)
        finally:
            with crew.lock:
                self.member.waiting[crew.name] -= 1


class Processes:
    """Driver of ``executor="processes"``: worker processes on this host, no cluster."""

    def open(
        self, tasks: Tasks, job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> CrewFeed:
        """Begin the tasks of ``job``, and return their feed; see ``Options`` for ``options``."""
        loop = DriverLoop.over(tasks, (), options, slots=2)
        crew = _Processes(loop, job, tallies)
        crew.race.repeatable = repeatable(job, options.get("speculative", False))
        return CrewFeed(crew, options.get("watchdog_s", WATCHDOG_S), options.get("on_event"))
