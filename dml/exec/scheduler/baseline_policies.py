"""Scheduling policies of other systems: baselines that the usual policy is compared with.

No policy changes delivered data, and all obey the memory limit of a run before their own aims. In
those systems a task keeps its slot until its last partition. Here a parked task (suspended between
two slices) occupies no slot, so these policies, except ``Staged``, reserve one for it.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dml.errors import PlanError
from dml.exec.scheduler.policy import (
    EPSILON,
    Candidate,
    Demand,
    Fault,
    Load,
    Policy,
    Seq,
    State,
    StreamingPolicy,
    admits,
    head_room,
)
from dml.physical.plan import Plan

PERIOD_S = 1.0  # seconds between two refills of the budget
LEAST_SLOTS = 1e-3  # for a stage whose slots are all taken, which gets some later


@dataclasses.dataclass
class Baseline(abc.ABC):
    """Common base of these policies; an instance serves one run, whose ``slots`` it records."""

    retries: int = 0
    lost_retries: int = 3
    wide: bool = False
    slots: dict[str, float] = dataclasses.field(default_factory=dict, init=False)

    def shape(
        self, slots: Mapping[str, float], limit_bytes: int
    ) -> tuple[Mapping[str, float], int]:
        """Record ``slots``, and return both arguments unchanged, for the core to run with."""
        self.slots = dict(slots)
        return slots, limit_bytes

    @abc.abstractmethod
    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the candidate to start now, or None to start nothing."""

    def fault(self, seq: Seq, k: int, failures: int) -> Fault:
        """Return "": these policies never make a slice fail on purpose."""
        return ""

    def retry(self, failures: int, *, lost: bool) -> bool:
        """Return whether to rerun a slice that has failed ``failures`` times.

        ``lost`` is True if it failed because its worker was lost.
        """
        return failures <= (self.lost_retries if lost else self.retries)

    def apart(self, state: State, task: Candidate) -> bool:
        """Return True if ``task`` has begun, delivers next, or leaves a slot to each begun task."""
        if task.head or not task.fresh:
            return True
        asked = state.loads[task.stage].demand.resources
        return all(self.left(state.loads, name) >= amount - EPSILON for name, amount in asked)

    def left(self, loads: Sequence[Load], name: str) -> float:
        """Return the amount of resource ``name`` that running and parked tasks leave unreserved."""
        return self.slots.get(name, 0.0) - sum(begun(load) * _each(load, name) for load in loads)


def begun(load: Load) -> int:
    """Return the number of tasks of a stage that have begun and not ended."""
    return load.running + len(load.parked)


def _each(load: Load, name: str) -> float:
    return dict(load.demand.resources).get(name, 0.0)


def _first(tasks: Sequence[Candidate]) -> Candidate | None:
    """Return the task nearest the sink and first in order; None if there are no tasks."""
    return min(tasks, key=lambda task: (-task.stage, task.seq), default=None)


def _going_on(tasks: Sequence[Candidate]) -> Candidate | None:
    """Return the head or begun task that is nearest the sink, the first in order; None if none."""
    return _first([task for task in tasks if task.head or not task.fresh])


def fits(state: State, task: Candidate) -> bool:
    """Return whether ``task`` and the work that must follow it fit under the memory limit.

    The head, whose output is delivered next, only has to fit. Any other task must leave enough free
    for the head in all stages, or in an unordered run, for one partition of a later stage.
    """
    need = state.used_bytes + task.need_bytes
    if task.head or need > state.limit_bytes:
        return need <= state.limit_bytes
    if state.ordered:
        leaving = state.offered_bytes + state.head_reserved_bytes
        return need - leaving + head_room(state) <= state.limit_bytes
    below = state.loads[task.stage + 1 :]
    return need + max((each.output_bytes for each in below), default=0) <= state.limit_bytes


# ---------------------------------------------------- the streaming batch model, Algorithms 1 and 2


class Rate(NamedTuple):
    """Figures of a stage after the source: slots that it may use; seconds and bytes of one task."""

    slots: float
    seconds: float
    input_bytes: float
    output_bytes: float


def source_partition_s(rates: Sequence[Rate]) -> float:
    """Return the seconds in which the stages after the source process one partition of the source.

    Algorithm 2, lines 1 to 13. The source's own seconds are left out, as in the example that the
    paper computes: only the rate at which the later stages consume data matters.
    """
    total, multiple = 0.0, 1.0
    for rate in rates:
        total += rate.seconds / rate.slots * multiple
        multiple *= rate.output_bytes / rate.input_bytes
    return total


@dataclasses.dataclass
class Conservative(Baseline):
    """Starts only tasks whose output has room, from the stage with the least stored output first.

    Algorithm 1 of the streaming batch model without lines 4 to 8, and section 4.3.2 of that paper.
    """

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the head or a parked task, else a task of the stage with least stored output."""
        sure = [each for each in candidates if admits(state, each) and self.apart(state, each)]
        return _going_on(sure) or least_buffered(state, sure)


def least_buffered(state: State, tasks: Sequence[Candidate]) -> Candidate | None:
    """Return the task of the stage with the least stored output (Algorithm 1, line 18), or None."""

    def buffered(task: Candidate) -> tuple[int, int, Seq]:
        return state.loads[task.stage].out_bytes, -task.stage, task.seq

    return min(tasks, key=buffered, default=None)


@dataclasses.dataclass
class Optimistic(Baseline):
    """Starts source tasks first, at the rate at which later stages are expected to consume.

    Algorithms 1 and 2 of the streaming batch model. A new task of the source starts only if its
    expected output is within ``budget``, in bytes. The budget grows by the output that later stages
    are expected to consume in each whole second since ``refilled``, and stays within the unused
    memory. Tasks of later stages start if their output fits in memory. ``most`` is the largest
    number of slices of a unit so far.
    """

    budget: float = dataclasses.field(default=math.inf, init=False)
    refilled: float = dataclasses.field(default=0.0, init=False)
    most: int = dataclasses.field(default=1, init=False)

    def fault(self, seq: Seq, k: int, failures: int) -> Fault:
        """Return "", no fault; update ``most``, the largest number of slices of a unit."""
        if len(seq) == 1:
            self.most = max(self.most, k + 1)
        return ""

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the head or a parked task, else a source task in the budget, else a later one."""
        self.refill(state)
        fitting = [each for each in candidates if fits(state, each) and self.apart(state, each)]
        held = _going_on(fitting)
        if held is not None:
            return held
        size = state.loads[0].output_bytes * self.most
        for task in fitting:
            if task.stage == 0 and self.budget >= size:
                self.budget -= size
                return task
        return least_buffered(state, [task for task in fitting if task.stage])

    def refill(self, state: State) -> None:
        """Add to the budget for every whole second since the last call: Algorithm 2, line 14."""
        if self.budget == math.inf:
            self.budget, self.refilled = state.limit_bytes, state.now
        seconds = (state.now - self.refilled) // PERIOD_S * PERIOD_S
        if seconds > 0:
            self.refilled += seconds
            each = max(source_partition_s(self.rates(state)), EPSILON)
            self.budget += state.loads[0].output_bytes / each * seconds
        self.budget = min(self.budget, float(state.limit_bytes - state.used_bytes))

    def rates(self, state: State) -> list[Rate]:
        """Return the figures of the stages after the source, in order."""
        return [self._rate(state.loads, stage) for stage in range(1, len(state.loads))]

    def _rate(self, loads: Sequence[Load], stage: int) -> Rate:
        load, above = loads[stage], loads[stage - 1]
        others = [each for each in loads if each is not load]
        asked = [(name, amount) for name, amount in load.demand.resources if amount > 0]
        slots = min((self.left(others, name) / amount for name, amount in asked), default=1.0)
        each = slices_each(load, above)
        return Rate(
            max(slots, LEAST_SLOTS), load.seconds * each, max(_mean(above), 1.0), _mean(load) * each
        )


def slices_each(load: Load, above: Load) -> float:
    """Return the mean number of slices of a task that takes output of ``above``; at least 1."""
    tasks = above.samples - len(load.ready)
    return max(1.0, load.samples / tasks) if tasks > 0 else 1.0


def _mean(load: Load) -> float:
    return sum(load.sizes) / len(load.sizes) if load.sizes else float(load.output_bytes)


# ---------------------------------------------------------------------------- ways of other systems


@dataclasses.dataclass
class Staged(Baseline):
    """Completes each stage before the next one starts, as batch systems do.

    Where its output exceeds memory, a stage runs as far as memory allows; then the next stages
    process that output, one after another, before it continues. ``stage`` is the index of the stage
    that runs.
    """

    stage: int = dataclasses.field(default=0, init=False)

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the next task of the stage whose turn it is, or None."""
        fitting = [task for task in candidates if admits(state, task)]
        for _ in state.loads:
            ours = [task for task in fitting if task.stage == self.stage]
            found = _going_on(ours) or _first(ours)
            if found is not None or state.loads[self.stage].running:
                return found
            self.stage = (self.stage + 1) % len(state.loads)
        return None


@dataclasses.dataclass
class Static(Baseline):
    """Gives each stage slots of its own for the whole run, as stream systems do.

    A stage with ``concurrency=`` has that many; the other stages share the rest evenly. ``quotas``
    are the numbers of slots by stage, and empty before the first choice.
    """

    quotas: list[float] = dataclasses.field(default_factory=list, init=False)

    def shape(
        self, slots: Mapping[str, float], limit_bytes: int
    ) -> tuple[Mapping[str, float], int]:
        """Return both arguments unchanged, and clear ``quotas``, which ``choose`` computes anew."""
        self.quotas = []
        return super().shape(slots, limit_bytes)

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the task nearest the sink whose stage has a free slot of its own, or None."""
        self.quotas = self.quotas or shared([load.demand for load in state.loads], self.slots)
        fitting = [each for each in candidates if admits(state, each) and self._has(state, each)]
        return _first(fitting)

    def _has(self, state: State, task: Candidate) -> bool:
        load = state.loads[task.stage]
        taken = begun(load) if task.fresh and not task.head else load.running
        return taken < self.quotas[task.stage]


def shared(demands: Sequence[Demand], slots: Mapping[str, float]) -> list[float]:
    """Return how many slices of each stage may run at once: ``max_parallel``, else an equal share.

    Each stage gets at least one slot, even where there are fewer slots than stages.
    """
    quotas = [float(demand.max_parallel or 0) for demand in demands]
    open_ = [n for n, demand in enumerate(demands) if not demand.max_parallel]
    left = dict(slots)
    for demand in demands:
        _take(demand, demand.max_parallel or 0, left)
    while open_:
        open_ = [n for n in open_ if _room(demands[n], left)]
        for n in open_:
            if _room(demands[n], left):
                _take(demands[n], 1, left)
                quotas[n] += 1
    return [max(quota, 1.0) for quota in quotas]


def _room(demand: Demand, left: Mapping[str, float]) -> bool:
    """Return whether the resources ``left`` suffice for a slice; False if it needs no resource."""
    asked = [(name, amount) for name, amount in demand.resources if amount > 0]
    return bool(asked) and all(left.get(name, 0.0) >= n - EPSILON for name, n in asked)


def _take(demand: Demand, slices: int, left: dict[str, float]) -> None:
    for name, amount in demand.resources:
        left[name] = left.get(name, 0.0) - slices * amount


def as_one(
    plan: Plan, demands: Sequence[Demand], most_bytes: int
) -> tuple[Plan, tuple[Demand, ...]]:
    """Return ``plan`` with all steps in a single stage, and the demand of a task of that stage.

    The demand has the largest amount of each resource that any stage needs, and the sum of their
    memory. Raise PlanError if the stages' declared memory is more than ``most_bytes`` in all.
    """
    asked = sum(link.needs.memory for link in plan.links)
    if asked > most_bytes:
        raise PlanError(
            f"one task of all stages needs memory={asked}",
            at=plan.links[0].steps[0].label(),
            why=f"all stages together may hold {most_bytes} bytes of memory_limit",
            try_='a larger memory_limit=, or scheduler_policy="adaptive"',
        )
    most: dict[str, float] = {}
    for demand in demands:
        for name, amount in demand.resources:
            most[name] = max(amount, most.get(name, 0.0))
    bounds = [demand.max_parallel for demand in demands if demand.max_parallel is not None]
    whole = dataclasses.replace(
        demands[0],
        resources=tuple(most.items()),
        open_bytes=sum(demand.open_bytes for demand in demands),
        max_parallel=min(bounds, default=None),
    )
    stage = dataclasses.replace(plan.stage, steps=plan.on_blocks[1:])
    return dataclasses.replace(plan, stage=stage, links=()), (whole,)


FUSED = "fused"
# By the policy's name in settings: its class, and the sentence about it in ``explain``.
POLICIES: dict[str, tuple[type[Policy], str]] = {
    "adaptive": (
        StreamingPolicy,
        "the stage with the fewest seconds of work waiting below it starts",
    ),
    "conservative": (Conservative, "what is sure of room for its output starts"),
    "optimistic": (Optimistic, "the source starts as fast as data is expected to leave"),
    "staged": (Staged, "each stage is made whole, or as far as memory holds, before the next"),
    "static": (Static, "each stage has slots of its own: concurrency=, or an equal share"),
    FUSED: (StreamingPolicy, "one task runs all stages, and holds the most that any of them needs"),
}


def policy_of(name: str) -> Policy:
    """Return a new policy for a run, by its name in settings."""
    return POLICIES[name][0]()


def policy_text(name: str) -> str:
    """Return what ``explain`` says about policy ``name``; empty for the usual policy."""
    return "" if name == "adaptive" else f"{name}: {POLICIES[name][1]}"
