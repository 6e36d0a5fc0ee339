"""Decide which task runs next within the memory limit, by pure functions of a state."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from dml.errors import PlanError

RECENT_PEAKS = 16  # recent slices, the largest peak of which is expected of the next slice
# Peaks of smaller inputs are not scaled up: most of that memory does not grow with the input.
LEAST_BYTES = 1 << 20


class Peaks:
    """Recent peaks of the temporary memory of one stage's slices, each with its bytes of input."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=RECENT_PEAKS)
        self._most = 0

    def add(self, given_bytes: int, working_bytes: int) -> None:
        """Record a slice: the bytes of its input, and of its peak temporary memory."""
        self._seen.append((given_bytes, working_bytes))
        self._most = max(each for _, each in self._seen)

    def expected(self, given_bytes: int = 0) -> int:
        """Return the largest recent peak in bytes, scaled up to a larger input; 0 before any."""
        if not self._most or given_bytes <= LEAST_BYTES:
            return self._most
        return max(_scaled(given_bytes, *seen) for seen in self._seen)


def _scaled(given_bytes: int, seen_bytes: int, working_bytes: int) -> int:
    least = max(seen_bytes, LEAST_BYTES)
    return working_bytes * given_bytes // least if given_bytes > least else working_bytes


Seq = tuple[int, ...]
"""Place in delivery order: (unit, slice of stage 0, slice of stage 1, ...)."""

Fault = Literal["", "drop", "lose"]
"""Deliberate fault of a slice: drop its parked generator first, or lose its result afterwards."""

DOWNSTREAM_SHARE = (
    0.7  # of the limit, kept for stages below; tuned on tests/exec/scheduler/test_policy.py
)
AMPLE = 3  # ready tasks per slot of the stages below; more only while memory is not scarce
SCARCE_SHARE = 0.5  # of the limit; only above it, tasks leave room for the rest of earlier tasks
REST_SHARE = 0.5  # of the expected output of unfinished tasks; tuned on tests/exec/test_random.py
RECENT = 64  # recent outputs, the largest of which is the estimate of the next one
TRUSTED = 4  # measured slices from which on estimates may be below the declared sizes
SMOOTHING = 0.3  # weight of the newest duration
EPSILON = 1e-9  # a sum of fractions of a slot may differ from one by so much, by rounding
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Demand:
    """Resource needs of one task of a stage; sizes and seconds are estimates until measured.

    Parameters
    ----------
    name : the stage, for messages
    resources : (resource, amount) pairs that a running slice occupies; a parked one occupies none
    output_bytes : expected bytes of one partition (the target partition size bounds it)
    open_bytes : expected bytes that a started task holds between slices (decoded inputs)
    seconds : expected seconds of one slice
    max_parallel : bound on slices of this stage that run at once, e.g. a pool of stateful workers
    bounded : True promises that no task exceeds the declared sizes and always reserves them, which
        keeps the limit hard; False reserves the largest recent size, which a larger task may exceed
    once : label of the operator that forbids to repeat any work of a task; "" if there is none
    may_wait : True if more slices than ``resources`` allow may run at once where measurements show
        that slices wait (``concurrency.py``); False for functions with declared needs
    divides : True if a slice takes a smaller part of ``output_bytes`` when more slices run at once
    """

    name: str = "read"
    resources: tuple[tuple[str, float], ...] = (("cpu", 1.0),)
    output_bytes: int = 16 * MIB
    open_bytes: int = 0
    seconds: float = 1.0
    max_parallel: int | None = None
    bounded: bool = False
    once: str = ""
    may_wait: bool = False
    divides: bool = False

    def parallel(self, slots: Mapping[str, float]) -> float:
        """Return how many slices ``slots`` could run at once if no other stage used them."""
        asked = [slots.get(name, 0.0) / amount for name, amount in self.resources if amount > 0]
        return min([*asked, math.inf if self.max_parallel is None else self.max_parallel])


def require(demands: Sequence[Demand], slots: Mapping[str, float]) -> None:
    """Raise PlanError if a stage needs a resource that ``slots`` does not have."""
    for demand in demands:
        for name, amount in demand.resources:
            if slots.get(name, 0.0) < amount - EPSILON:
                more = "num_workers=" if name == "cpu" else f'resources={{"{name}": {amount:g}}}'
                have = ", ".join(f"{key}={value:g}" for key, value in sorted(slots.items()))
                raise PlanError(
                    f"stage {demand.name!r} needs {name}={amount:g}, which no slot offers",
                    why=f"the run has {have or 'no slots'}",
                    try_=f"fewer {name} for the stage, or more of it: with_options({more})",
                )


@dataclass(slots=True)
class Load:
    """Current figures of a stage: counts, bytes, and measured sizes and seconds.

    ``parallel`` slices fit on all slots. Open tasks have begun. ``made`` counts partitions of
    the tasks that have ended, ``longest`` those of the longest; ``ready_bytes`` are inputs of new
    tasks, ``out_bytes`` stored outputs; ``sizes`` and ``opens`` are bytes of recent partitions and
    parked generators.
    """

    demand: Demand
    parallel: float
    running: int = 0
    ready_tasks: int = 0
    open_tasks: int = 0
    done_tasks: int = 0
    made: int = 0
    longest: int = 0
    ready_bytes: int = 0
    out_bytes: int = 0
    samples: int = 0
    seconds: float = 0.0
    output_bytes: int = 0
    open_bytes: int = 0
    held_bytes: int = 0  # peak of the stage's stored partitions
    sizes: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    opens: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    ready: list[Seq] = field(default_factory=list)  # tasks that could begin, lowest first
    parked: list[Seq] = field(default_factory=list)  # tasks between two slices
    peaks: Peaks = field(default_factory=Peaks)  # memory of slices while they ran
    asked: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.asked = dict(self.demand.resources)
        self.seconds = self.demand.seconds
        self.output_bytes, self.open_bytes = self.demand.output_bytes, self.demand.open_bytes

    def declare(self, demand: Demand, slots: Mapping[str, float]) -> None:
        """Replace the needs of a slice; running slices keep what they have."""
        self.demand, self.asked = demand, dict(demand.resources)
        self.parallel = demand.parallel(slots)

    @property
    def slice_bytes(self) -> int:
        """Upper estimate of the bytes of a task's first slice, with the inputs that it holds."""
        return self.need_bytes(0, begins=True)

    def need_bytes(self, given_bytes: int, *, begins: bool) -> int:
        """Return an upper estimate of a slice's bytes; ``begins`` adds inputs that it holds."""
        opened = self.open_bytes if begins else 0
        return self.output_bytes + opened + self.peaks.expected(given_bytes)

    @property
    def mean(self) -> float:
        """Mean number of partitions of a task that has ended; 1 before any task has."""
        return self.made / self.done_tasks if self.done_tasks else 1.0

    def arrived(self, nbytes: int) -> None:
        """Count a new input partition of ``nbytes`` bytes."""
        self.ready_bytes += nbytes
        self.ready_tasks += 1

    def ended(self, made: int) -> None:
        """Count the end of a task that has made ``made`` partitions."""
        self.open_tasks -= 1
        self.done_tasks += 1
        self.made += made
        self.longest = max(self.longest, made)

    def rest_bytes(self, k: int, *, kept: bool) -> int:
        """Return the expected remaining output, in bytes, of a task that has made ``k`` partitions.

        Beyond the mean, a task is expected to make as many as the longest one. Any other task is
        expected to reach the mean if its partitions are ``kept`` until earlier ones are consumed.
        Otherwise the result is 0, since a later stage takes some before the rest are made.
        """
        left = self.longest - k if k > self.mean else (self.mean - k) * kept
        return int(max(0.0, left) * sum(self.sizes) / max(1, len(self.sizes)))

    def occupied(self, name: str) -> float:
        """Return the amount of resource ``name`` that the stage's running slices occupy."""
        return self.running * self.asked.get(name, 0.0)

    def measure(self, seconds: float, nbytes: int | None, parked_bytes: int) -> None:
        """Update the estimates with a finished slice; ``nbytes`` is None if it had no output."""
        self.samples += 1
        self.seconds += max(SMOOTHING, 1.0 / self.samples) * (seconds - self.seconds)
        if nbytes is None:
            return
        self.sizes.append(nbytes)
        self.opens.append(parked_bytes)
        self.held_bytes = max(self.held_bytes, self.out_bytes + nbytes)
        self.output_bytes, self.open_bytes = max(self.sizes), max(self.opens)
        if self.samples < TRUSTED or self.demand.bounded:
            self.output_bytes = max(self.output_bytes, self.demand.output_bytes)
            self.open_bytes = max(self.open_bytes, self.demand.open_bytes)


@dataclass(slots=True)
class State:
    """All inputs of a scheduling decision; bytes are accounted, not measured.

    ``stored_bytes`` are partitions that are not consumed; ``offered_bytes`` is the part of them
    that the consumer was offered and has not released. ``parked_bytes`` is the memory of suspended
    generators, ``reserved_bytes`` the expected memory of running slices, and
    ``head_reserved_bytes`` that of the head, the task whose output is delivered next. ``now`` is
    the driver's clock, in seconds. Other cores of the run use ``beside_bytes``, and their heads
    still need ``beside_room``. Where memory is scarce, ``begun`` lists the unfinished tasks behind
    the head, in order, and ``begun_bytes`` the running total of their expected remaining output.
    """

    loads: list[Load]
    limit_bytes: int
    stored_bytes: int = 0
    offered_bytes: int = 0
    parked_bytes: int = 0
    reserved_bytes: int = 0
    head_reserved_bytes: int = 0
    ordered: bool = True
    now: float = 0.0
    beside_bytes: int = 0
    beside_room: int = 0
    begun: list[Seq] = field(default_factory=list)
    begun_bytes: list[int] = field(default_factory=list)

    @property
    def own_bytes(self) -> int:
        """Bytes that tasks of this core hold or have reserved."""
        return self.stored_bytes + self.parked_bytes + self.reserved_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that all cores hold or reserve; above the limit only for a forced head task."""
        return self.own_bytes + self.beside_bytes

    @property
    def scarce(self) -> bool:
        """Whether more than ``SCARCE_SHARE`` of the memory limit is used."""
        return self.used_bytes > SCARCE_SHARE * self.limit_bytes

    def rest_before(self, seq: Seq) -> int:
        """Return the bytes that ``seq`` must leave free for the remaining output of earlier tasks.

        Only tasks that have begun count. Earlier tasks get memory first. Otherwise memory would be
        full of half-done tasks when the first of them becomes the head, and the other tasks would
        wait.
        """
        place = bisect_left(self.begun, seq)
        return int(REST_SHARE * self.begun_bytes[place - 1]) if place else 0


class Candidate(NamedTuple):
    """A slice that could start now, since enough slots are free.

    ``fresh`` says that its task has not begun, ``head`` that the output of this task is delivered
    next; ``need_bytes`` is the memory that the slice is expected to take.
    """

    stage: int
    seq: Seq
    fresh: bool
    head: bool
    need_bytes: int


class Policy(Protocol):
    """The scheduling decisions of a run; with ``wide``, ``choose`` gets all startable tasks."""

    @property
    def wide(self) -> bool: ...

    def shape(
        self, slots: Mapping[str, float], limit_bytes: int
    ) -> tuple[Mapping[str, float], int]: ...

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None: ...

    def fault(self, seq: Seq, k: int, failures: int) -> Fault: ...

    def retry(self, failures: int, *, lost: bool) -> bool: ...


def head_room(state: State) -> int:
    """Return the bytes that the head task is expected to need on its way through all stages."""
    return sum(load.slice_bytes for load in state.loads)


def downstream_room(state: State, stage: int) -> int:
    """Return the bytes that ``stage`` must leave free for the stages after it.

    Each later stage owns a part of ``DOWNSTREAM_SHARE`` of the limit, in proportion to the memory
    of slices on all its slots. The parts together are at least one slice of each of these stages,
    so that one partition can always reach the consumer. Source: the streaming batch model, section
    4.3, here with a hard limit.
    """
    below = state.loads[stage + 1 :]
    if not below:
        return 0
    busy = [load.parallel for load in below]
    busy[0] = min(busy[0], below[0].ready_tasks + below[0].open_tasks + 1)
    want = [n * load.slice_bytes for n, load in zip(busy, below, strict=True)]
    scale = min(1.0, DOWNSTREAM_SHARE * state.limit_bytes / max(sum(want), 1.0))
    room = 0.0
    for share, load in zip(want, below, strict=True):
        taken = load.out_bytes + load.running * load.output_bytes
        taken += load.open_tasks * load.open_bytes
        room += max(0.0, scale * share - taken)
    return max(int(room), sum(load.slice_bytes for load in below))


def ample(state: State, stage: int) -> bool:
    """Return whether the next stage has so many ready tasks that more would only take memory."""
    below = state.loads[stage + 1 :]
    if not below:
        return False
    return below[0].ready_tasks >= AMPLE * max(load.parallel for load in below)


def admits(state: State, task: Candidate) -> bool:
    """Return whether ``task`` fits under the limit and leaves the bytes other tasks need to finish.

    The head task only has to fit. Every other task also leaves the bytes that the head needs in all
    stages, less those that are offered to the consumer or already reserved for the head.
    """
    need = state.used_bytes + task.need_bytes
    if need > state.limit_bytes:
        return False
    if task.head:
        return True
    need += state.beside_room
    if state.scarce and task.fresh and ample(state, task.stage):
        return False
    if need + downstream_room(state, task.stage) > state.limit_bytes:
        return False
    if not state.ordered:
        return True
    need += state.rest_before(task.seq)
    leaving = state.offered_bytes + state.head_reserved_bytes
    return need - leaving + head_room(state) <= state.limit_bytes


def backlog_s(state: State, stage: int) -> float:
    """Return the seconds that the next stage needs for stored and expected output of ``stage``."""
    if stage + 1 == len(state.loads):
        return 0.0
    load, below = state.loads[stage], state.loads[stage + 1]
    items = below.ready_bytes + load.running * load.output_bytes
    return items / max(load.output_bytes, 1) * below.seconds / max(below.parallel, 1e-9)


@dataclass(frozen=True, slots=True)
class StreamingPolicy:
    """The default policy: first the head, then the task with the least work waiting after it.

    Ties go to the stage nearest the sink, then to the first task in order.

    Parameters
    ----------
    retries : times that a slice that raised is run again before its error is delivered
    lost_retries : times that a slice whose worker was lost is run again
    """

    retries: int = 0
    lost_retries: int = 3
    wide: bool = False

    def shape(
        self, slots: Mapping[str, float], limit_bytes: int
    ) -> tuple[Mapping[str, float], int]:
        """Return both arguments unchanged, for the core to run with."""
        return slots, limit_bytes

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the candidate to start now among those that fit in memory, or None."""
        fitting = [task for task in candidates if admits(state, task)]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        return min(
            fitting,
            key=lambda task: (not task.head, backlog_s(state, task.stage), -task.stage, task.seq),
        )

    def fault(self, seq: Seq, k: int, failures: int) -> Fault:
        """Return "": this policy never makes a slice fail on purpose."""
        return ""

    def retry(self, failures: int, *, lost: bool) -> bool:
        """Return whether to rerun a slice that has failed ``failures`` times.

        ``lost`` is True if it failed because its worker was lost.
        """
        return failures <= (self.lost_retries if lost else self.retries)
