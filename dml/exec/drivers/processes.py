"""A driver runs tasks in processes of this host, for work that holds the GIL.

The runs of one pipeline share worker processes, so that there are no more than needed: a pipeline
with several inputs has a run for each input. If each run had its own workers, sixteen inputs on two
workers would be thirty-two processes, each with libraries and freed memory.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
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
from dml.expr.node import Node
from dml.udfs.calling.instances import Stateful


class SharedWorker:
    """A worker process that runs share; a thread sends it one order at a time.

    A process that dies is replaced. If a call of a function was abandoned in it, another process
    replaces it for new tasks. The old one only finishes the tasks that it has begun; ``_spent`` are
    such processes. ``place`` is the unit that the last dropped process was reading, or -1.
    ``classes`` are those whose instances are, or will be, in the process. A ``reserved`` worker
    runs only stages that need them: slices of others would delay the use of a GPU.
    """

    _numbers = itertools.count()

    def __init__(self, classes: Set[bytes] = frozenset()) -> None:
        self.name, self.place = f"desk-{next(self._numbers)}", -1
        self.classes, self.reserved = set(classes), False
        self.runs = set[str]()  # the company's lock guards them
        self.waiting = Counter[str]()  # orders by run, each counted under the lock of that run
        self.tasks: queue.SimpleQueue[tuple[_Processes, Run | None] | None] = queue.SimpleQueue()
        self._worker: Worker | None = None
        self._spent: list[Worker] = []
        started(threading.Thread(target=self.work, name=f"dml-{self.name}", daemon=True))

    @property
    def orders(self) -> int:
        """The number of unanswered orders of all runs."""
        return sum([*self.waiting.values()])  # a copy, since other runs join and leave

    def work(self) -> None:
        """Run slices, and let runs leave, until the last one has left."""
        while (task := self.tasks.get()) is not None:
            crew, run = task
            if run is None or crew.closing:
                crew.left(self)
            else:
                crew.serve(run, self)
            del crew, task  # or the thread would keep the run's partitions

    def ask(self, order: SliceOrder, job: Message, unwanted: Callable[[], bool]) -> Answer | None:
        """Return the worker's answer to ``order``; after any error, the worker is replaced."""
        try:
            return self._answer(order, job, unwanted)
        except BaseException:
            self.place = self._gone(self._at_work(order))
            raise
        finally:
            self._end_spent()

    def _at_work(self, order: SliceOrder) -> Worker | None:
        """Return the worker that has begun the task of ``order``, else the one for new tasks."""
        task = order.name, order.run.seq
        return next((each for each in self._spent if task in each.parked), self._worker)

    def _end_spent(self) -> None:
        """Give no new task to a spent worker, and end spent workers without unfinished tasks."""
        if self._worker is not None and self._worker.spent:
            self._spent.append(self._worker)
            self._worker = None
        for worker in [each for each in self._spent if not each.parked]:
            self._spent.remove(worker)
            worker.close()

    def _answer(self, order: SliceOrder, job: Message, unwanted: Callable[[], bool]) -> Answer:
        """Return the answer to ``order``; if a reused worker dies at its first one, use a new one.

        An order that must not be run twice is tried once, by a new worker if there is none yet.
        """
        begun = self._at_work(order)
        if begun is not None and begun.spent:
            return begun.do(order, job, unwanted)
        if self._worker is None:
            # a process with instances is left to the stages that need them
            others = bool(self.classes) or POOL.has(lambda worker: not worker.classes)
            self._worker = POOL.take(fresh=order.once or not others, liked=self._likes)
        self._worker.classes |= self.classes
        past = self._worker.used and not self._worker.jobs
        try:
            return self._worker.do(order, job, unwanted)
        except WorkerLostError:
            if not past or order.once:
                raise
        self._worker = POOL.take(fresh=True)
        self._worker.classes |= self.classes
        return self._worker.do(order, job, unwanted)

    def _likes(self, worker: Worker) -> int:
        """Return how well an idle process suits: best with the instances of ``classes`` alone."""
        return len(worker.classes & self.classes) - len(worker.classes - self.classes)

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
        for each in self._spent:
            each.forget(run)
        self._end_spent()
        worker = self._worker
        # nor is a worker kept whose functions have started processes that still run
        if worker is not None and (
            not worker.forget(run) or (last and children(worker.process.pid))
        ):
            self._gone(worker)
        elif worker is not None and last:
            self._worker = None
            POOL.give_back(worker)


class Company:
    """The workers of one pipeline: as many as its largest run needs."""

    def __init__(self) -> None:
        self._members: list[SharedWorker] = []
        self._lock = threading.Lock()

    def join(
        self, run: str, *, shared: bool = False, classes: Set[bytes] = frozenset()
    ) -> SharedWorker:
        """Return the least busy worker that does not serve ``run`` yet, and assign ``run`` to it.

        With ``shared`` the worker must be idle, since all runs together have no more orders than
        slots. If there is no such worker, add one. A worker with the instances of ``classes``, here
        or in the pool, comes first, also if it is busy: to construct them may take long.
        """
        with self._lock:
            free = [member for member in self._members if run not in member.runs]
            made = [member for member in free if classes and classes <= member.classes]
            free = [member for member in free if classes or not member.reserved]
            if shared:
                free = [member for member in free if not member.orders]
            if made or not free or POOL.has(lambda worker: bool(worker.classes & classes)):
                free = made or [SharedWorker(classes)]
                self._members += [] if made else free
            member = min(free, key=lambda each: (each.orders, len(each.classes), len(each.runs)))
            member.runs.add(run)
            member.classes |= classes
            return member

    def leave(self, run: str, member: SharedWorker) -> None:
        """Remove ``run`` from the worker ``member``, which ends if no other run is left."""
        with self._lock:
            member.runs.remove(run)
            member.waiting.pop(run, None)
            last = not member.runs
            if last:
                self._members.remove(member)
                member.tasks.put(None)
        member.forget(run, last=last)


# Companies by an object that only the runs of one pipeline share: the creator of their spills.
COMPANIES: WeakKeyDictionary[object, Company] = WeakKeyDictionary()
os.register_at_fork(after_in_child=COMPANIES.clear)


def company_of(common: object) -> Company:
    """Return the workers that runs with the same ``common`` share; new ones if it is a class."""
    if isinstance(common, type):
        return Company()
    return COMPANIES.setdefault(common, Company())


class _Processes(RemoteCrew):
    """Runs slices in worker processes, which other runs of the pipeline may use in between.

    ``desks`` are the workers of this run. One is added when a slice finds all of them busy; the
    core hands out no more slices than there are slots. The job and its arrays are in memory once
    for all workers.
    """

    def __init__(self, loop: DriverLoop, job: Job, tallies: Tallies) -> None:
        super().__init__(loop, job, tallies)
        self.message = Message(("job", Surroundings.now(), self.name, *written(job)))
        self.company = company_of(job.at.spill)
        self.shared = self.ledger is not None and self.ledger.shares_slots
        self.desks: dict[str, SharedWorker] = {}
        self.seats: dict[int, list[SharedWorker]] = {}  # of each stage with few workers
        stages = (job.stage.steps, *(link.steps for link in job.links))
        self.classes = [*map(_classes_of, stages)]
        self.gone = threading.Event()  # set while no desk is left

    def hand_out(self, runs: Iterable[Run]) -> None:
        """Give each slice to the worker that began its task, or to the least busy worker."""
        for run in runs:
            self.begun(run)
            home = self.homes.get(run.seq)
            worker = self._least(run.stage) if home is None else self.desks[home]
            worker.waiting[self.name] += 1
            worker.tasks.put((self, run))

    def _busy(self, worker: SharedWorker) -> int:
        """Return how many orders of this run a worker has; of all runs if they share slots."""
        return worker.orders if self.shared else worker.waiting[self.name]

    def _least(self, stage: int) -> SharedWorker:
        """Return the least busy worker at which the stage may run; add one if all are busy.

        A stage with ``max_parallel``, and a class with needs such as a GPU, which may be costly to
        construct, use only as many workers as slices can run at once, those of the run before if
        possible. Other stages use workers without such instances first.
        """
        width, classes = self._width(stage)
        seats = self.seats.setdefault(stage, [])
        if width is not None and len(seats) >= width:
            return min(seats, key=self._busy)
        others = [desk for desk in self.desks.values() if width is None or desk not in seats]
        others = [desk for desk in others if classes or not desk.reserved]
        worker = min(others, key=lambda each: (self._busy(each), len(each.classes)), default=None)
        if worker is None or self._busy(worker) or not classes <= worker.classes:
            worker = self.company.join(self.name, shared=self.shared, classes=classes)
            self.desks[worker.name] = worker
        if width is not None:
            seats.append(worker)
            worker.reserved |= bool(classes) and self.loop.core.demands[stage].max_parallel is None
        return worker

    def _width(self, stage: int) -> tuple[int | None, frozenset[bytes]]:
        """Return the number of workers of a stage, None for any, and the classes that bind it."""
        core, classes = self.loop.core, self.classes[stage]
        demand, few = core.demands[stage], core.demands[stage].max_parallel
        if few is None and classes and any(name != "cpu" for name, _ in demand.resources):
            few = max(1, int(demand.parallel(core.total)))
        return few, frozenset() if few is None else classes

    def leave(self) -> None:
        """Leave all workers, without blocking."""
        for worker in list(self.desks.values()):
            worker.tasks.put((self, None))
        if not self.desks:
            self._release()

    def left(self, worker: SharedWorker) -> None:
        """Leave ``worker``, in its thread, once; after the last one, release the job."""
        if worker.name in self.desks:
            self.company.leave(self.name, worker)
            with self.lock:
                del self.desks[worker.name]
                if not self.desks:
                    self._release()
            self.clean()

    def _release(self) -> None:
        self.message.close()
        self.gone.set()

    def join(self, deadline: float) -> None:
        """Wait until all workers are left, at most until ``deadline`` (``perf_counter``)."""
        self.gone.wait(max(0.0, deadline - time.perf_counter()))

    def serve(self, run: Run, worker: SharedWorker) -> None:
        """Run one slice at ``worker``, in its thread, and handle its answer, failure or loss."""
        try:
            answer = self.request(run, worker)
            if answer is None:  # another attempt was faster before this one began
                self.counts(run, lost=True)
            else:
                self.answered(run, worker.name, answer)
        except WorkerLostError as error:
            self.lost(run, worker.name, error, worker.place)
        except StuckError:
            self.stuck(run, worker.name, worker.place)
        except BaseException as error:  # noqa: BLE001  (or the consumer would wait for ever)
            self.failed(run, worker.name, error)

    def request(self, run: Run, worker: SharedWorker) -> Answer | None:
        """Return the worker's answer to a slice; None if it is no longer needed."""
        unwanted = partial(self.unwanted, run)
        try:
            with self.lock:
                order = None if unwanted() else self.order(run)
            return None if order is None else worker.ask(order, self.message, unwanted)
        finally:
            with self.lock:
                worker.waiting[self.name] -= 1


def _classes_of(steps: Sequence[Node]) -> frozenset[bytes]:
    """Return the keys of the classes used as functions in ``steps``."""
    calls = [step.calls.call for step in steps if step.calls is not None]
    return frozenset(call.key for call in calls if isinstance(call, Stateful))


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
