"""Forecast a run: the time of its model by simulation, its bottleneck, and a lower bound."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dml.errors import PlanError
from dml.exec.scheduler.baseline_policies import policy_of
from dml.exec.scheduler.policy import EPSILON, Seq
from dml.verify.simulate.run_model import Model, ModelWork, RunPlace
from dml.verify.simulate.schedule_solver import Problem, SolverOperator, solve
from dml.verify.simulate.virtual_cluster import TaskTruth, VirtualCluster

# A trial has about SLICES slices, and TASKS_PER_SLOT tasks for each slot, as tasks come in waves;
# for these it may have MORE times as many. One of MOST_SLOTS slots may stand for several.
SLICES, TASKS_PER_SLOT, MORE, MOST_SLOTS = 600, 8, 3, 32


class TrialResult(NamedTuple):
    """The seconds of a simulated run, the busy seconds of its resources, and its peak memory.

    ``storage_s`` is the time for which storage was busy.
    """

    seconds: float
    busy_s: Mapping[str, float]
    storage_s: float
    peak_bytes: int


class _Virtual(VirtualCluster):
    """The virtual cluster, with storage that serves one slice after another."""

    def __init__(self, model: Model, place: RunPlace) -> None:
        self.storage_free_at, self.storage_s = 0.0, 0.0
        self.read_s = model.read_bytes / place.storage_bytes_s
        self.reading = model.steps[0].truth
        truth = [step.truth for step in model.steps]
        super().__init__(
            [step.demand for step in model.steps],
            [self.read if self.read_s else truth[0], *truth[1:]],
            place.slots,
            model.limit_bytes,
            policy_of(place.policy),
            consume_s=model.consume_s,
            watched=False,
        )

    def read(self, _seq: Seq) -> TaskTruth:
        """Return the cost of a first-stage slice that starts now, with its wait for storage."""
        begins = max(self.now, self.storage_free_at)
        self.storage_free_at = begins + self.read_s
        self.storage_s += self.read_s
        waits = self.storage_free_at - self.now
        return dataclasses.replace(self.reading, seconds=self.reading.seconds + waits)


def tried(model: Model, place: RunPlace) -> TrialResult:
    """Simulate the start, tasks and end of a run; of large models a part, which is extrapolated."""
    times = _times(model, place)
    if times > 1:
        model, place = _bundled(model, place, times)
    found = _all_tasks(model, place)
    busy = {name: seconds * times for name, seconds in found.busy_s.items()}
    return TrialResult(
        found.seconds + model.besides_s, busy, found.storage_s, found.peak_bytes * times
    )


def _all_tasks(model: Model, place: RunPlace) -> TrialResult:
    slots = min(model.tasks, max(step.demand.parallel(place.slots) for step in model.steps))
    each = sum(model.slices(i) for i in range(len(model.steps))) / model.tasks
    usual = max(int(SLICES / each), TASKS_PER_SLOT)
    most = max(usual, min(int(TASKS_PER_SLOT * slots), MORE * usual))
    if model.tasks <= 2 * most:
        return _run(model, place, model.tasks)
    half, full = _run(model, place, most // 2), _run(model, place, most)
    more = (model.tasks - most) / (most - most // 2)
    grows = more * (full.peak_bytes - half.peak_bytes)
    busy = {
        name: seconds + more * (seconds - half.busy_s.get(name, 0.0))
        for name, seconds in full.busy_s.items()
    }
    return TrialResult(
        full.seconds + more * (full.seconds - half.seconds),
        busy,
        full.storage_s + more * (full.storage_s - half.storage_s),
        int(max(full.peak_bytes, min(model.limit_bytes, full.peak_bytes + grows))),
    )


def _run(model: Model, place: RunPlace, tasks: int) -> TrialResult:
    cluster = _Virtual(model, place)
    trace = cluster.run(tasks)
    return TrialResult(trace.seconds, trace.busy_s, cluster.storage_s, trace.peak_bytes)


def _times(model: Model, place: RunPlace) -> int:
    """Return how many slots a simulated slot may stand for: all limits must stay divisible."""
    widths = [step.demand.parallel(place.slots) for step in model.steps]
    slots = [n for n in (*widths, *place.slots.values()) if 0 < n < math.inf]
    least = min(slots, default=0.0)
    held = sum(step.demand.output_bytes + step.demand.open_bytes for step in model.steps)
    parts = (
        int(least / MOST_SLOTS),
        model.tasks // (TASKS_PER_SLOT * MOST_SLOTS),
        model.limit_bytes // max(1, held * MOST_SLOTS),
    )
    return max(1, min(parts))


def _bundled(model: Model, place: RunPlace, times: int) -> tuple[Model, RunPlace]:
    """Return one of ``times`` equal parts of a model, and its share of the slots.

    What all parts share, the caller and storage, does the work of all parts.
    """
    steps = []
    for step in model.steps:
        most = step.demand.max_parallel
        few = None if most is None else max(1, most // times)
        steps.append(
            dataclasses.replace(step, demand=dataclasses.replace(step.demand, max_parallel=few))
        )
    part = dataclasses.replace(
        model,
        steps=tuple(steps),
        tasks=math.ceil(model.tasks / times),
        limit_bytes=model.limit_bytes // times,
        consume_s=model.consume_s * times,
        read_bytes=model.read_bytes * times,
    )
    slots = {name: amount / times for name, amount in place.slots.items()}
    return part, dataclasses.replace(place, slots=slots)


# Limits of the solver: tasks, states, ticks of the shortest task, and how many times longer
# than that task the longest may be.
SOLVED_TASKS, SOLVED_STATES, FINENESS, MOST_APART = 120, 1_500, 4, 100
CALLER = "caller"
# An optimum is still called one if rounding durations down to ticks loses at most this share.
EXACT = 0.03
# If nothing is busier than this, the bottleneck is not work.
IDLE_SHARE = 0.7
LEAST_S = 1e-9
MEMORY_GAIN = 0.05


class BusyShare(NamedTuple):
    """The share of a run, 0 to 1, for which a resource is busy.

    ``kind`` is the resource to add if it is the bottleneck, ``of`` describes the resource for
    people, and ``title`` is the operator that uses most of it.
    """

    kind: str
    title: str
    share: float
    of: str


@dataclasses.dataclass(frozen=True)
class Foreseen:
    """The expected figures of a run; ``shares`` are the loads of its resources, the busiest first.

    No schedule takes less than ``bound_s``; ``optimal`` means that some schedule takes no more.
    """

    seconds: float
    peak_bytes: int
    shares: tuple[BusyShare, ...]
    bound_s: float
    optimal: bool = False

    @property
    def narrow(self) -> BusyShare:
        """The busiest resource, which is the bottleneck of the run."""
        return self.shares[0]


def foresee(models: Sequence[Model], place: RunPlace, *, bounded: bool = True) -> Foreseen:
    """Forecast ``models``, which run side by side, at ``place``; the first has the training loop.

    If ``bounded`` is False, the solver is not asked for a bound, which saves time.
    """
    place = place.wide
    each = [_one(model, place) for model in models]
    works = _works(models)
    cpu_s, locked_s = math.fsum(w.cpu_s for w in works), math.fsum(w.locked_s for w in works)
    floors = {"cores": cpu_s / place.cores, "python": locked_s if place.shares_lock else 0.0}
    whole = max([LEAST_S, *(one.seconds for one in each), *floors.values()])
    longest, model = max(zip(each, models, strict=True), key=lambda pair: pair[0].seconds)
    shares = [
        share._replace(share=share.share * longest.seconds / whole) for share in longest.shares
    ]
    if floors["python"]:
        title = max(works, key=lambda work: work.locked_s).title
        shares.append(BusyShare("python", title, locked_s / whole, "Python's lock"))
    if cpu_s:
        title = max(works, key=lambda work: work.cpu_s).title
        shares.append(BusyShare("cores", title, floors["cores"] / whole, f"{place.cores:g} cores"))
    shares.sort(key=lambda share: -share.share)
    bound, optimal = _bound(models[0], place) if bounded else (0.0, False)
    floor = max(bound, *(one.bound_s for one in each), *floors.values())
    return Foreseen(
        whole + place.start_s,
        sum(one.peak_bytes for one in each),
        tuple(_explained(shares, model, place, longest.seconds)),
        floor + place.start_s,
        optimal and floor == bound,
    )


def _works(models: Sequence[Model]) -> list[ModelWork]:
    """Return the work of every operator of all models."""
    works = [work for model in models for step in model.steps for work in step.works]
    return works + [work for model in models for work in (*model.over, *model.late)]


def _one(model: Model, place: RunPlace) -> Foreseen:
    """Forecast one plan alone, as if no other plan used cores and Python's lock."""
    if place.in_turn:
        work = math.fsum(model.slices(i) * s.truth.seconds for i, s in enumerate(model.steps))
        seconds = work + model.partitions * model.consume_s + model.after_s
        ran = TrialResult(seconds, {"cpu": work}, 0.0, model.limit_bytes)
    else:
        ran = tried(model, place)
    least = _least(model, place)
    ran = ran._replace(seconds=max(ran.seconds, least))  # the rest of a trial may be irregular
    return Foreseen(ran.seconds, ran.peak_bytes, _shares(model, place, ran), least)


def _shares(model: Model, place: RunPlace, ran: TrialResult) -> tuple[BusyShare, ...]:
    """Return the loads of resources, pools (limits on a stage), storage, caller and training."""
    whole = max(ran.seconds, 1e-12)
    found = [
        BusyShare(
            name, _title(model, name), ran.busy_s.get(name, 0.0) / n / whole, _of(name, n, place)
        )
        for name, n in place.slots.items()
        if n > 0 and name in ran.busy_s
    ]
    for number, step in enumerate(model.steps):
        most = step.demand.max_parallel
        if most is not None:
            share = model.slices(number) * step.truth.seconds / most / whole
            found.append(BusyShare("pool", step.title, share, f"the {most} that may run at once"))
    if place.storage_bytes_s < math.inf:
        gbps = f"{place.storage_bytes_s * 8e-9:g} Gbit/s"
        found.append(BusyShare("storage", "reading", ran.storage_s / whole, gbps))
    if model.late:
        title, n = max(model.late, key=lambda each: each.seconds).title, place.slots["cpu"]
        share = math.fsum(work.seconds for work in model.late) / n / whole
        found.append(BusyShare("cpu", title, share, _of("cpu", n, place)))
    return (*found, *_caller(model, whole))


def _of(name: str, amount: float, place: RunPlace) -> str:
    tuned = name == "cpu" and place.at_once
    return f"the {amount:g} that run at once" if tuned else f"{amount:g} {name}"


def _caller(model: Model, whole: float) -> list[BusyShare]:
    """Return the caller's loads in ``whole`` seconds: by operators, and by the training loop."""
    spent = model.partitions * model.consume_s + model.after_s
    over = math.fsum(work.seconds for work in model.over)
    own = over if model.ahead or model.late else spent - model.stepping_s
    found = []
    if model.over and own > 0:
        title = max(model.over, key=lambda each: each.seconds).title
        found.append(BusyShare("caller", title, own / whole, "the caller's thread"))
    if model.stepping_s:
        found.append(
            BusyShare("training", "the training step", model.stepping_s / whole, "its time")
        )
    return found


def _title(model: Model, resource: str) -> str:
    """Return the operator that uses most of a resource."""
    held = [
        (work.seconds * amount, work.title)
        for step in model.steps
        for work in step.works
        for name, amount in step.demand.resources
        if name == resource
    ]
    return max(held)[1]


def _explained(
    shares: Sequence[BusyShare], model: Model, place: RunPlace, seconds: float
) -> Sequence[BusyShare]:
    """Return ``shares``; if no resource is busy, with memory or too few tasks as the first one.

    Memory comes first if more of it would save time, else the stage with too few tasks for its
    slots.
    """
    if place.in_turn or shares[0].share >= IDLE_SHARE:
        return shares
    roomy = dataclasses.replace(model, limit_bytes=model.limit_bytes << 10)
    free = tried(roomy, place).seconds
    if free < seconds * (1 - MEMORY_GAIN):
        first = BusyShare("memory", "waiting for memory", 1 - free / seconds, "the run's time")
        return [first, *shares]
    numbers = range(len(model.steps))
    few = [i for i in numbers if model.slices(i) < model.steps[i].demand.parallel(place.slots)]
    if few:
        longest = max(few, key=lambda i: model.slices(i) * model.steps[i].truth.seconds)
        of = f"so few tasks ({model.slices(longest)})"
        return [BusyShare("tasks", model.steps[longest].title, 1.0, of), *shares]
    return shares


# Lower bounds of all schedules


def _least(model: Model, place: RunPlace) -> float:
    """Return the least seconds that resources, pools, storage and the caller allow."""
    totals = [model.slices(i) * step.truth.seconds for i, step in enumerate(model.steps)]
    caller = model.partitions * model.consume_s + model.after_s
    if place.in_turn:
        return math.fsum(totals) + caller
    found = [caller, model.slices(0) * model.read_bytes / place.storage_bytes_s]
    for name, slots in place.slots.items():
        held = math.fsum(
            seconds * dict(step.demand.resources).get(name, 0.0)
            for seconds, step in zip(totals, model.steps, strict=True)
        )
        found.append(held / slots if slots else 0.0)
    for number, step in enumerate(model.steps):
        wide = min(step.demand.parallel(place.slots), model.slices(number))
        waves = math.ceil(model.slices(number) / max(1, int(wide + EPSILON)))
        found.append(waves * step.truth.seconds)
    through = math.fsum(step.truth.seconds for step in model.steps)
    return max([*found, through + model.consume_s + model.after_s])


def _bound(model: Model, place: RunPlace) -> tuple[float, bool]:
    """Return the solver's bound in seconds, and whether it is reached; 0.0, False if too large."""
    few = sum(model.slices(i) for i in range(len(model.steps))) <= SOLVED_TASKS
    spans = [step.truth.seconds for step in model.steps]
    spans += [model.consume_s] if model.consume_s else []
    alike = 0 < max(spans) <= MOST_APART * min(spans)
    if not (few and alike) or place.in_turn or place.storage_bytes_s < math.inf:
        return 0.0, False
    tick = min(spans) / FINENESS
    lost = max(1 - int(span / tick + EPSILON) * tick / span for span in spans)
    try:
        found = solve(_problem(model, place, tick), most_states=SOLVED_STATES)
    except PlanError:  # a task needs more than all memory: the core runs it alone
        return 0.0, False
    return found.bound * tick + model.after_s, found.ticks is not None and lost <= EXACT


def _problem(model: Model, place: RunPlace, tick: float) -> Problem:
    """Return the scheduling problem of ``model``, with durations rounded down to ticks.

    Slices of a task count as tasks of their own, which can only shorten a schedule.
    """
    operators = []
    for number, step in enumerate(model.steps):
        below = model.steps[number + 1 :]
        parts = below[0].truth.slices if below else 1
        operators.append(
            SolverOperator(
                int(step.truth.seconds / tick + EPSILON),
                gives=parts,
                size=step.truth.output_bytes / parts,
                needs=step.demand.resources,
                most=step.demand.max_parallel,
            )
        )
    if model.consume_s:
        ticks = int(model.consume_s / tick + EPSILON)
        operators.append(SolverOperator(ticks, gives=0, needs=((CALLER, 1),)))
    slots = {**place.slots, CALLER: 1.0}
    return Problem(tuple(operators), model.slices(0), slots, model.limit_bytes)
