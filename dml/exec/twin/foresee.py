"""This file foresees a run: how long its model takes, what holds it up, what none could beat."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from dml.errors import PlanError
from dml.exec.policy import EPSILON
from dml.exec.twin.model import Model, Place, Step
from dml.exec.twin.solver import Operator, Problem, solve
from dml.exec.twin.trial import Tried, tried

# Problems that are solved: tasks, states looked at, ticks of the shortest task, how much longer
# the longest may be.
SOLVED_TASKS, SOLVED_STATES, FINENESS, MOST_APART = 120, 1_500, 4, 100
CALLER = "caller"
# Rounding durations down to ticks may lose so much of an optimum that is still called one.
EXACT = 0.03
# Where nothing is busier, something else than work holds the run up.
IDLE_SHARE = 0.7
LEAST_S = 1e-9
MEMORY_GAIN = 0.05


class Share(NamedTuple):
    """How busy something is: the part of the run, and of what; ``kind`` is what more of may help.

    ``title`` is the operator that takes most of it.
    """

    kind: str
    title: str
    share: float
    of: str


@dataclasses.dataclass(frozen=True)
class Foreseen:
    """What a run is expected to be.

    ``shares`` are how busy everything is, the busiest first. No schedule takes less than
    ``bound_s``; ``optimal`` says that some schedule takes no more.
    """

    seconds: float
    peak_bytes: int
    shares: tuple[Share, ...]
    bound_s: float
    optimal: bool = False

    @property
    def narrow(self) -> Share:
        """What holds the run up."""
        return self.shares[0]


def foresee(models: Sequence[Model], place: Place, *, bounded: bool = True) -> Foreseen:
    """What ``models``, which run side by side, take at ``place``; the first has the training loop.

    ``bounded`` False leaves out what no schedule can beat.
    """
    each = [_one(model, place) for model in models]
    main = each[0]
    cpu_s, locked_s = _computing(models)
    floors = {"cores": cpu_s / place.cores, "python": locked_s if place.shares_lock else 0.0}
    whole = max([LEAST_S, *(one.seconds for one in each), *floors.values()])
    longest = max(each, key=lambda one: one.seconds)
    shares = [
        share._replace(share=share.share * longest.seconds / whole) for share in longest.shares
    ]
    titles = _busiest(models)
    if floors["python"]:
        shares.append(Share("python", titles[1], locked_s / whole, "Python's lock"))
    if cpu_s:
        shares.append(Share("cores", titles[0], floors["cores"] / whole, f"{place.cores:g} cores"))
    shares.sort(key=lambda share: -share.share)
    bound, optimal = _bound(models[0], place) if bounded else (0.0, False)
    floor = max(bound, *(one.bound_s for one in each), *floors.values())
    return Foreseen(
        whole + place.start_s,
        sum(one.peak_bytes for one in each),
        tuple(_explained(shares, models[0], place, main.seconds)),
        floor + place.start_s,
        optimal and floor == bound,
    )


def _computing(models: Sequence[Model]) -> tuple[float, float]:
    """Seconds on cores, and in Python, of everything."""
    works = [work for model in models for step in model.steps for work in step.works]
    works += [work for model in models for work in model.over]
    return math.fsum(each.cpu_s for each in works), math.fsum(each.locked_s for each in works)


def _busiest(models: Sequence[Model]) -> tuple[str, str]:
    """The operators that take most of the cores, and of Python."""
    works = [work for model in models for step in model.steps for work in step.works]
    works += [work for model in models for work in model.over]
    return (
        max(works, key=lambda each: each.cpu_s).title,
        max(works, key=lambda each: each.locked_s).title,
    )


def _one(model: Model, place: Place) -> Foreseen:
    """One plan, without what it shares with others."""
    if place.in_turn:
        work = math.fsum(model.slices(i) * s.truth.seconds for i, s in enumerate(model.steps))
        seconds = work + model.partitions * model.consume_s + model.after_s
        ran = Tried(seconds, {"cpu": work}, 0.0, model.limit_bytes)
    else:
        ran = tried(model, place)
    least = _least(model, place)
    ran = ran._replace(seconds=max(ran.seconds, least))  # what is left out of a trial may be odd
    return Foreseen(ran.seconds, ran.peak_bytes, _shares(model, place, ran), least)


def _shares(model: Model, place: Place, ran: Tried) -> tuple[Share, ...]:
    """How busy every resource is, every pool, storage, the caller's thread and training."""
    whole = max(ran.seconds, 1e-12)
    found = [
        Share(name, _title(model, name), ran.busy_s.get(name, 0.0) / n / whole, f"{n:g} {name}")
        for name, n in place.slots.items()
        if n > 0 and name in ran.busy_s
    ]
    for number, step in enumerate(model.steps):
        most = step.demand.max_parallel
        if most is not None:
            share = model.slices(number) * step.truth.seconds / most / whole
            found.append(Share("pool", step.title, share, f"the {most} that may run at once"))
    if place.storage_bytes_s < math.inf:
        gbps = f"{place.storage_bytes_s * 8e-9:g} Gbit/s"
        found.append(Share("storage", "reading", ran.storage_s / whole, gbps))
    return (*found, *_caller(model, whole))


def _caller(model: Model, whole: float) -> list[Share]:
    """How busy the caller's thread is with operators, and with the training loop."""
    spent = model.partitions * model.consume_s + model.after_s
    over = math.fsum(work.seconds for work in model.over)
    own = spent - model.stepping_s if not model.ahead else over
    found = []
    if model.over and own > 0:
        title = max(model.over, key=lambda each: each.seconds).title
        found.append(Share("caller", title, own / whole, "the caller's thread"))
    if model.stepping_s:
        found.append(Share("training", "the training step", model.stepping_s / whole, "its time"))
    return found


def _title(model: Model, resource: str) -> str:
    """The operator that holds most of a resource."""
    held = [
        (work.seconds * amount, work.title)
        for step in model.steps
        for work in step.works
        for name, amount in step.demand.resources
        if name == resource
    ]
    return max(held)[1]


def _explained(
    shares: Sequence[Share], model: Model, place: Place, seconds: float
) -> Sequence[Share]:
    """``shares``, before them what else holds a run up in which nothing is busy."""
    if place.in_turn or shares[0].share >= IDLE_SHARE:
        return shares
    roomy = dataclasses.replace(model, limit_bytes=model.limit_bytes << 10)
    free = tried(roomy, place).seconds
    if free < seconds * (1 - MEMORY_GAIN):
        first = Share("memory", "waiting for memory", 1 - free / seconds, "the run's time")
        return [first, *shares]
    few = min(model.steps, key=lambda step: _waves(model, step, place))
    if model.slices(model.steps.index(few)) < few.demand.parallel(place.slots):
        number = model.slices(model.steps.index(few))
        return [Share("tasks", few.title, 1.0, f"so few tasks ({number})"), *shares]
    return shares


def _waves(model: Model, step: Step, place: Place) -> float:
    return model.slices(model.steps.index(step)) / max(step.demand.parallel(place.slots), 1e-9)


# What no schedule can beat


def _least(model: Model, place: Place) -> float:
    """The least of the seconds that resources, pools, storage and the caller allow."""
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


def _bound(model: Model, place: Place) -> tuple[float, bool]:
    """What the solver finds for a small plan, in seconds, and whether it is an optimum."""
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
    except PlanError:  # something takes more than all memory: the core runs it alone
        return 0.0, False
    return found.bound * tick + model.after_s, found.ticks is not None and lost <= EXACT


def _problem(model: Model, place: Place, tick: float) -> Problem:
    """The schedule to find, durations rounded down to ticks.

    Slices of a task count as tasks of their own, which can only make a schedule shorter.
    """
    operators = []
    for number, step in enumerate(model.steps):
        below = model.steps[number + 1 :]
        parts = below[0].truth.slices if below else 1
        operators.append(
            Operator(
                int(step.truth.seconds / tick + EPSILON),
                gives=parts,
                size=step.truth.output_bytes / parts,
                needs=step.demand.resources,
                most=step.demand.max_parallel,
            )
        )
    if model.consume_s:
        ticks = int(model.consume_s / tick + EPSILON)
        operators.append(Operator(ticks, gives=0, needs=((CALLER, 1),)))
    slots = {**place.slots, CALLER: 1.0}
    return Problem(tuple(operators), model.slices(0), slots, model.limit_bytes)
