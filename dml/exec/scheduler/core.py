"""Turn scheduling events into actions: a pure state machine without clock, threads or files."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dml.errors import InternalError
from dml.exec.scheduler.concurrency import Tuning
from dml.exec.scheduler.fair_share import FairTurns
from dml.exec.scheduler.messages import (
    Action,
    Arrive,
    Close,
    Consumed,
    Event,
    Free,
    Offer,
    Resources,
    Run,
    Settled,
    SliceDone,
    TaskFailed,
    Tick,
    Unordered,
)
from dml.exec.scheduler.policy import (
    EPSILON,
    Candidate,
    Demand,
    Load,
    Policy,
    Seq,
    State,
    StreamingPolicy,
    admits,
    require,
)
from dml.exec.scheduler.ready_queue import Waiting, take
from dml.exec.scheduler.shared_slots import Ledger

OPEN_PER_SLOT = 2  # started tasks of a stage for each of its slots


@dataclass(slots=True)
class QueuedTask:
    """A started task; ``k`` is its next slice, and the number of partitions that it has made.

    ``reserved_bytes`` is the memory set aside for its running slice, ``took`` the resources that it
    occupies, ``parked_bytes`` the memory of its suspended generator. ``started`` is the time in
    seconds at which the last slice began.
    """

    seq: Seq
    stage: int
    k: int = 0
    failures: int = 0
    reserved_bytes: int = 0
    parked_bytes: int = 0
    took: tuple[tuple[str, float], ...] = ()
    started: float = 0.0
    done: bool = False
    failed: bool = False


@dataclass(slots=True)
class Line:
    """Traverses the tree of tasks in delivery order, depth first.

    ``cursor`` is the place of the next partition to offer, ``head`` the task that has to run for it
    next. Tasks that the cursor has passed are removed from ``tasks``.
    """

    stages: int
    tasks: MutableMapping[Seq, QueuedTask]
    cursor: Seq = field(default=())
    head: Seq = (0,)

    def __post_init__(self) -> None:
        self.cursor = (0,) * (self.stages + 1)

    def advance(self, offer: Callable[[Seq], None], fail: Callable[[Seq], None]) -> None:
        """Call ``offer`` with each place that is next in order, or ``fail`` at a failed task."""
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
        """Offer partition ``k`` of ``seq`` if the last stage made it; return the stage to visit."""
        if level + 1 < self.stages:
            return level + 1
        offer(self.cursor)
        self.cursor = (*seq, k + 1)
        return level


class Core:
    """The scheduling state of one run: a chain of stages, from units to partitions in order.

    ``step(event, now)`` is the whole interface. Invariants: a slice starts only when its slots are
    free and stored + parked + reserved bytes stay at most ``limit_bytes``; when nothing runs and
    nothing is offered, the head (the task whose output is next) starts whatever its size
    (``forced`` counts the slices that exceeded the limit); partitions are offered in order of their
    places unless ``ordered`` is False; slices of one task run one after another. Lack of slots or
    memory never loses or repeats a partition.

    Parameters
    ----------
    stages : one Demand per stage; stage i feeds stage i + 1, and the last one feeds the consumer
    slots : resource -> amount; an integer means that many "cpu"
    limit_bytes : upper bound on bytes stored, parked and reserved at once
    policy : picks one of the tasks that could start
    settling : True to run only the head, with nothing stored or running, until the event Settled
    ahead : bound on partitions made or in progress and not yet consumed; None: bound by memory only
    ledger : slots and bytes shared with other cores; None for a core that shares nothing
    tuning : lets more slices run at once where they wait; None for a driver with a worker per slot

    Raises
    ------
    PlanError : a stage needs a resource that ``slots`` does not have
    """

    def __init__(
        self,
        stages: Sequence[Demand],
        slots: Mapping[str, float] | int,
        limit_bytes: int,
        policy: Policy | None = None,
        *,
        ordered: bool = True,
        settling: bool = False,
        ahead: int | None = None,
        ledger: Ledger | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self.policy: Policy = StreamingPolicy() if policy is None else policy
        given = {"cpu": float(slots)} if isinstance(slots, int) else slots
        shaped, limit_bytes = self.policy.shape(given, limit_bytes)
        self.ledger, self.awaited = ledger, ledger is None
        self.total, self.free = (
            (dict(shaped), dict(shaped)) if ledger is None else ledger.declare(shaped)
        )
        require(stages, self.total)
        self.tuning = tuning or Tuning()
        self.demands = self.tuning.begin(stages, self.total)
        loads = [Load(demand, demand.parallel(self.total)) for demand in self.demands]
        self.state = State(loads, limit_bytes, ordered=ordered or settling)
        self.ordered, self.settling, self.ahead = ordered, settling, ahead
        self.closed, self.forced, self.peak_bytes = False, 0, 0
        self.units, self.last, self.live, self.consumed_bytes = 0, False, 0, 0
        self.width: int | None = None  # bound on the slices of a stage at once, set during the run
        self._queues = [Waiting(load.ready, load.parked) for load in loads]
        self._tasks: dict[Seq, QueuedTask] = {}
        self.active: dict[Seq, QueuedTask] = {}
        self._parts: dict[Seq, int] = {}
        self._offered: set[Seq] = set()
        self._waiting = 0  # partitions of the last stage that are made and not yet consumed
        self._line = Line(len(self.demands), self._tasks)
        self._turns = FairTurns(self.state.loads, self._queues)
        self._stop: Seq | None = None  # place of the first error: no later task starts
        self._ended = False  # the error is offered: nothing at all starts
        self._on = self._handlers()

    def step(self, event: Event, now: float) -> list[Action]:
        """Process one event at ``now`` seconds, and return the actions for the driver, in order."""
        actions: list[Action] = []
        if self.closed:
            return actions
        self._on[type(event)](event, now, actions)
        if self.state.ordered:
            offer, fail = (partial(each, actions=actions) for each in (self._offer, self._fail))
            self._line.advance(offer, fail)
        self._launch(now, actions)
        self.peak_bytes = max(self.peak_bytes, self.state.used_bytes)
        return actions

    @property
    def finished(self) -> bool:
        """Whether no more partitions will be offered."""
        if self.closed or self._ended or not self.last:
            return self.closed or self._ended
        return self._line.cursor[0] >= self.units if self.state.ordered else self.live == 0

    @property
    def waits(self) -> bool:
        """Whether any task, new or parked, waits for a slot or for memory."""
        return any(map(len, self._queues))

    @property
    def plenty(self) -> bool:
        """Whether more partitions are offered to the consumer than the last stage has slots."""
        return len(self._offered) > self.state.loads[-1].parallel

    @property
    def lead(self) -> float:
        """Bytes that are made or in progress and not consumed, by those that were consumed."""
        ahead = sum(each.out_bytes + each.running * each.output_bytes for each in self.state.loads)
        return ahead / max(1, self.consumed_bytes)

    @property
    def head_bytes(self) -> int:
        """Bytes that the head task needs; 0 if it runs, an offer is pending, or no task waits."""
        head = self._line.head
        if head in self.active or self._offered or not self.waits:
            return 0
        return sum(load.slice_bytes for load in self.state.loads)

    def running(self) -> Iterator[tuple[Run, float]]:
        """Yield the slices that run now, each with its start time in seconds."""
        for task in self.active.values():
            yield Run(task.seq, task.stage, task.k, ""), task.started

    # Events

    def _handlers(self) -> dict[type[Any], Callable[[Any, float, list[Action]], None]]:
        return {
            Arrive: self._arrive,
            SliceDone: self._slice_done,
            TaskFailed: self._task_failed,
            Consumed: self._consumed,
            Resources: self._resources,
            Settled: self._settled,
            Unordered: self._unordered,
            Close: self._close,
            Tick: lambda _event, _now, _actions: None,
        }

    def _arrive(self, event: Arrive, _now: float, _actions: list[Action]) -> None:
        ready = self._queues[0].ready
        new = range(self.units, self.units + event.units)
        ready.extend((unit,) for unit in new)  # ascending, so still a heap
        self.units += event.units
        self.live += event.units
        self.last = event.last

    def _slice_done(self, event: SliceDone, _now: float, actions: list[Action]) -> None:
        task = self._stopped(event.seq)
        load, state = self.state.loads[task.stage], self.state
        parked_bytes = event.parked_bytes if event.more else 0
        load.measure(event.seconds, event.nbytes, parked_bytes)
        load.peaks.add(self._parts.get(task.seq, 0), event.working_bytes)
        if (demand := self.tuning.measured(task.stage, load, event)) is not None:
            self._declare(task.stage, demand)
        state.parked_bytes += parked_bytes - task.parked_bytes
        task.parked_bytes, task.failures = parked_bytes, 0
        if event.nbytes is not None:
            self._store((*task.seq, task.k), task.stage, event.nbytes, actions)
            task.k += 1
        if event.more:
            heapq.heappush(self._queues[task.stage].parked, task.seq)
        else:
            self._retire(task, actions)

    def _store(self, seq: Seq, stage: int, nbytes: int, actions: list[Action]) -> None:
        """Account for a new partition: input of the next stage, or output for the consumer."""
        self._parts[seq] = nbytes
        self.state.stored_bytes += nbytes
        self.state.loads[stage].out_bytes += nbytes
        if stage + 1 < len(self.demands):
            heapq.heappush(self._queues[stage + 1].ready, seq)
            self.state.loads[stage + 1].arrived(nbytes)
            self.live += 1
            return
        self._waiting += 1
        if not self.state.ordered:
            self._offer(seq, actions)

    def _retire(self, task: QueuedTask, actions: list[Action]) -> None:
        """End a task that has made its last partition, and free its input."""
        task.done = True
        self.live -= 1
        self.state.loads[task.stage].ended(task.k)
        if task.stage > 0:
            self._release(task.seq, task.stage - 1)
            actions.append(Free(task.seq))
        if not self.state.ordered:
            del self._tasks[task.seq]

    def _task_failed(self, event: TaskFailed, _now: float, actions: list[Action]) -> None:
        task = self._stopped(event.seq)
        task.failures += 1
        self.state.parked_bytes -= task.parked_bytes
        task.parked_bytes = 0
        if self.policy.retry(task.failures, lost=event.lost):
            heapq.heappush(self._queues[task.stage].parked, task.seq)
            return
        task.failed = task.done = True
        place = (*task.seq, task.k)
        if not self.state.ordered:
            self._stop = place
            self._parts[place] = 0
            self._offer(place, actions, failed=True)
        elif self._stop is None or place < self._stop:
            self._stop = place

    def _stopped(self, seq: Seq) -> QueuedTask:
        """Release the slots and reserved bytes of the slice that ended, and return its task."""
        task = self.active.pop(seq, None)
        if task is None:
            raise InternalError(f"slice of task {seq} ended, but it was not running")
        self._give_back(task)
        self.state.loads[task.stage].running -= 1
        self.state.reserved_bytes -= task.reserved_bytes
        task.reserved_bytes = 0
        return task

    def _give_back(self, task: QueuedTask) -> None:
        for name, amount in task.took:
            self.free[name] = self.free.get(name, 0.0) + amount

    def _declare(self, stage: int, demand: Demand) -> None:
        """Replace the needs of a slice of ``stage``; running slices keep what they have."""
        self.demands = (*self.demands[:stage], demand, *self.demands[stage + 1 :])
        self.state.loads[stage].declare(demand, self.total)
        self._turns.compare()

    def _consumed(self, event: Consumed, _now: float, actions: list[Action]) -> None:
        self._offered.remove(event.seq)
        self.state.offered_bytes -= self._parts[event.seq]
        self.consumed_bytes += self._parts[event.seq]
        self._waiting -= event.seq != self._stop
        self._release(event.seq, len(self.demands) - 1)
        actions.append(Free(event.seq))

    def _release(self, seq: Seq, stage: int) -> None:
        nbytes = self._parts.pop(seq)
        self.state.stored_bytes -= nbytes
        self.state.loads[stage].out_bytes -= nbytes

    def _resources(self, event: Resources, _now: float, _actions: list[Action]) -> None:
        slots, self.state.limit_bytes = self.policy.shape(event.slots, event.limit_bytes)
        for name in {*self.total, *slots}:
            change = slots.get(name, 0.0) - self.total.get(name, 0.0)
            self.free[name] = self.free.get(name, 0.0) + change
        self.total = dict(slots)
        for load in self.state.loads:
            load.parallel = load.demand.parallel(self.total)

    def _settled(self, event: Settled, now: float, actions: list[Action]) -> None:
        self.settling = False
        if not self.ordered:
            self._unordered(event, now, actions)

    def _unordered(self, _event: Any, _now: float, actions: list[Action]) -> None:
        """Stop ordering: offer all finished partitions now, then the first error, if any."""
        if not self.state.ordered:
            return
        self.ordered = self.state.ordered = False
        for seq in [seq for seq, task in self._tasks.items() if task.done]:
            del self._tasks[seq]
        for seq in sorted(self._parts):
            if len(seq) > len(self.demands) and seq not in self._offered:
                self._offer(seq, actions)
        if self._stop is not None:
            self._fail(self._stop, actions)

    def _close(self, _event: Close, _now: float, actions: list[Action]) -> None:
        self.closed = True
        for task in self.active.values():  # ends of slices are ignored; other cores may share slots
            self._give_back(task)
        self.active.clear()
        actions.extend(Free(seq) for seq in self._parts)
        self._parts.clear()

    # Order

    def _offer(self, seq: Seq, actions: list[Action], *, failed: bool = False) -> None:
        self._offered.add(seq)
        self._ended |= failed
        self.state.offered_bytes += self._parts[seq]
        actions.append(Offer(seq, failed))

    def _fail(self, place: Seq, actions: list[Action]) -> None:
        """Offer the error at ``place``, unless an error was offered before."""
        if not self._ended:
            self._parts[place] = 0
            self._offer(place, actions, failed=True)

    # Launch

    def _launch(self, now: float, actions: list[Action]) -> None:
        state, self.state.now = self.state, now
        if self.ledger is not None:
            state.beside_bytes, state.beside_room = self.ledger.beside(self)
            if self.ledger.yields(self):
                return
        while not (self.closed or self._ended):
            if state.ordered:
                self._look_at_line()
            able = self._able()
            self._turns.review(able, self.total, now)
            options = self.startable(wide=self.policy.wide)
            choice = self.policy.choose(state, options) if options else None
            if choice is None:
                if able and self._turns.idle(able, self.total, self.free):
                    continue
                choice = self._forced()
            if choice is None:
                return
            actions.append(self._start(choice, now))

    def _look_at_line(self) -> None:
        """Update ``state``: bytes reserved for the oldest task, expected output of later tasks."""
        state, line = self.state, self._line.head
        head = self.active.get(line)
        state.head_reserved_bytes = head.reserved_bytes if head else 0
        state.begun, state.begun_bytes, before = [], [], 0
        if not state.scarce or all(load.longest < 2 for load in state.loads):
            return
        parked = [self._tasks[seq] for queue in self._queues for seq in queue.parked]
        tasks = sorted((*self.active.values(), *parked), key=lambda task: task.seq)
        for task in tasks:
            if task.seq != line:
                k, last = task.k + (task.seq in self.active), task.stage + 1 == len(self.demands)
                before += state.loads[task.stage].rest_bytes(k, kept=last)
                state.begun.append(task.seq)
                state.begun_bytes.append(before)

    def startable(self, *, wide: bool) -> list[Candidate]:
        """Return the tasks that could start now; all with ``wide``, else at most two per stage.

        The resources that another stage needs for its turn (``fair_share.py``) count as taken.
        """
        found = list[Candidate]()
        for stage, queue in reversed(list(enumerate(self._queues))):
            if not (queue.parked or queue.ready) or self._lacking(stage):
                continue
            left = self._turns.left(stage, self.total)
            if all(n <= left.get(name, n) + EPSILON for name, n in self.demands[stage].resources):
                seqs = [*queue.parked, *queue.ready] if wide else self._next(stage)
                found += [self._candidate(stage, seq) for seq in seqs]
        return [task for task in found if not self._held_back(task)]

    def _able(self) -> dict[int, set[str]]:
        """Return, by stage, the resources that are missing for the stage's next task.

        Only stages are included that need more of a resource than another stage does, and have a
        task that fits in memory.
        """
        found = {}
        for stage in self._turns.large:
            if len(self._queues[stage]):
                tasks = [self._candidate(stage, seq) for seq in self._next(stage)]
                if any(admits(self.state, task) and not self._held_back(task) for task in tasks):
                    found[stage] = self._lacking(stage) - {""}
        return found

    def _next(self, stage: int) -> list[Seq]:
        """Return the first parked task, and a new one if it is the head or few tasks are open."""
        queue, load = self._queues[stage], self.state.loads[stage]
        seqs = queue.parked[:1]
        open_tasks = len(queue.parked) + load.running
        few = open_tasks < OPEN_PER_SLOT * load.parallel or not seqs
        if queue.ready and (few or queue.ready[0] == self._line.head):
            seqs.append(queue.ready[0])
        return seqs

    def _candidate(self, stage: int, seq: Seq) -> Candidate:
        load, task = self.state.loads[stage], self._tasks.get(seq)
        fresh, begins = task is None, task is None or task.failures > 0
        head = self.state.ordered and seq == self._line.head
        need = load.need_bytes(self._parts.get(seq, 0), begins=begins)
        return Candidate(stage, seq, fresh, head, need)

    def _lacking(self, stage: int) -> set[str]:
        """Return the resources missing for a slice; {""} if ``stage`` runs as many as it may."""
        demand, running = self.demands[stage], self.state.loads[stage].running
        for most in (demand.max_parallel, self.width):
            if most is not None and running >= most:
                return {""}
        return {name for name, n in demand.resources if self.free.get(name, 0.0) < n - EPSILON}

    def _held_back(self, task: Candidate) -> bool:
        """Return whether an earlier error, settling or ``ahead`` forbids to start ``task`` now."""
        if (
            self._stop is not None
            and (*task.seq, 0 if task.fresh else self._tasks[task.seq].k) >= self._stop
        ):
            return True
        if self.settling and (not task.head or self.active or self._offered):
            return True
        return self.ahead is not None and self._waiting + len(self.active) >= self.ahead

    def _forced(self) -> Candidate | None:
        """Return the task to start at any size, since the run would stall without it; or None."""
        if self.active or self._offered or not self.awaited:
            return None
        found = None
        for stage in reversed(range(len(self.demands))):
            queue = self._queues[stage]
            seq = queue.first
            if seq is None or self._lacking(stage):
                continue
            task = self._candidate(stage, seq)
            if self.state.ordered and not task.head:
                continue
            if self.state.used_bytes + task.need_bytes <= self.state.limit_bytes:
                return task
            found = found or task
        return found

    def _start(self, choice: Candidate, now: float) -> Run:
        stage, seq = choice.stage, choice.seq
        queue, load, state = self._queues[stage], self.state.loads[stage], self.state
        task = self._tasks.get(seq)
        if task is None:
            task = self._tasks[seq] = QueuedTask(seq, stage)
            load.open_tasks += 1
            load.ready_tasks -= 1 if stage else 0
            take(queue.ready, seq)
            load.ready_bytes -= self._parts[seq] if stage else 0
        else:
            take(queue.parked, seq)
        task.started, task.reserved_bytes = now, choice.need_bytes
        self.active[seq] = task
        load.running += 1
        self._turns.started()
        state.reserved_bytes += choice.need_bytes
        self.forced += state.used_bytes > state.limit_bytes
        task.took = self.demands[stage].resources
        for name, amount in task.took:
            self.free[name] -= amount
        return Run(seq, stage, task.k, self.policy.fault(seq, task.k, task.failures))
