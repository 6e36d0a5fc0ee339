"""This file brings costs and resources together: how a run of a pipeline is arranged here."""

from __future__ import annotations

import dataclasses
import time
from functools import partial

from dml.costing import expected, named_as, profile_of
from dml.exec.backends.promoting import movable
from dml.exec.budget import KEPT_SHARE
from dml.optimize.allowed import Machine, allowed, cut
from dml.optimize.arrange import Decision, decide
from dml.optimize.arranged import decision_text, note
from dml.optimize.engine import Trace
from dml.optimize.phases import Optimized
from dml.plan import Plan
from dml.resources import Resources
from dml.settings import AUTOTUNE, Settings

# What nothing is asked about: one thread, and workers of others, whose number is not known yet.
GIVEN = ("sync", "distributed")
USUAL = "threads"


@dataclasses.dataclass(frozen=True, eq=False)
class Arrangement:
    """The stations of a pipeline, its plan cut into stages, and settings that leave nothing open.

    ``decision`` is None where there was nothing to choose.
    """

    stations: Optimized
    settings: Settings
    decision: Decision | None = None


def arranged(made: Optimized, settings: Settings, without: frozenset[str]) -> Arrangement:
    """How ``made`` is run by ``settings``: as usual, unless something else is clearly faster."""
    plain = Arrangement(made, settings)
    if not settings.optimize or settings.executor in GIVEN:
        return plain
    machine = _machine(made.plan, settings)
    if not allowed(made.plan, machine, without).any:
        return plain
    started = time.perf_counter()
    decision = _decided(made.plan, settings, machine, without)
    if decision is None:
        return plain
    trace = Trace(time.perf_counter, [*made.trace.applied], [*made.trace.refused])
    note(trace, decision, started)
    way = decision.chosen.way
    plan = cut(made.plan, way.cuts)
    named_as(plan, made.plan)
    if way != decision.usual.way:
        settings = dataclasses.replace(settings, target_partition_bytes=way.size)
        if way.driver.name != USUAL:  # threads that nobody asked for may still move
            settings = dataclasses.replace(settings, executor=way.driver.name)
    return Arrangement(dataclasses.replace(made, plan=plan, trace=trace), settings, decision)


def told(made: Optimized, settings: Settings, without: frozenset[str], run: Arrangement) -> str:
    """What was chosen and why, for people; a cache is looked for even if nothing else is open."""
    decision, fixed = run.decision, ""
    if not settings.optimize:
        fixed = "optimize=False is set"
    elif run.settings.executor in GIVEN:
        fixed = f"executor={run.settings.executor!r} is set"
    elif decision is None:
        decision = _decided(made.plan, settings, _machine(made.plan, settings), without)
    return decision_text(decision, fixed)


def _decided(
    plan: Plan, settings: Settings, machine: Machine, without: frozenset[str]
) -> Decision | None:
    profile = profile_of(settings)  # what is read and measured once is not this plan's time
    started = time.perf_counter()
    machine = dataclasses.replace(machine, speed=profile.speed)
    may, found = allowed(plan, machine, without), expected(plan, profile, settings)
    return decide(plan, found, machine, may, partial(_since, started))


def _since(started: float) -> float:
    """Seconds of planning so far."""
    return time.perf_counter() - started


def _machine(plan: Plan, settings: Settings) -> Machine:
    """What the run may use, as far as the user has not fixed it."""
    resources = Resources.of(settings, plan)
    free = settings.executor == AUTOTUNE
    moves = free and resources.workers > 1 and not plan.links and movable(plan.stage)
    return Machine(
        resources.workers,
        (USUAL, "processes") if moves else (USUAL if free else settings.executor,),
        partial(_size_of, settings),
        sized=settings.target_partition_bytes != AUTOTUNE,
        whole_bytes=resources.budget.whole_bytes,
        kept_bytes=resources.budget.limit_bytes * KEPT_SHARE,
    )


def _size_of(settings: Settings, plan: Plan) -> int:
    return Resources.of(settings, plan).budget.target_bytes
