"""Driver, stages and partition size of a run are chosen from costs and resources."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING

from dml.api.resources import RunResources
from dml.api.run_telemetry import learned, named_as, profile_of
from dml.exec.memory.memory_shares import KEPT_SHARE
from dml.expr.node import Node
from dml.optimize.phases import Optimized, optimize
from dml.physical.plan import Plan
from dml.settings import AUTOTUNE, Settings

if TYPE_CHECKING:
    from dml.optimize.search.arrangement import ArrangementDecision
    from dml.optimize.search.arrangement_space import MachineLimits

# Executors that leave no choice: one thread, or a cluster of yet unknown size.
GIVEN = ("sync", "distributed")
USUAL = "threads"
# The clock for the time that planning takes.
CLOCK = time.perf_counter


@dataclasses.dataclass(frozen=True, eq=False)
class Arrangement:
    """A compiled pipeline with its stages, and settings in which every "auto" is decided.

    ``stations`` are the results of the compilation phases; ``decision`` is None without a choice.
    """

    stations: Optimized
    settings: Settings
    decision: ArrangementDecision | None = None


def planned(root: Node, settings: Settings, without: frozenset[str]) -> Optimized:
    """Return the plan of least expected cost, without the rules ``without``.

    Costs are only looked at if a choice depends on them: the order of a filter's parts, or which
    rules have cost more than they saved in earlier runs.
    """
    started, clock, rewriting = CLOCK(), time.perf_counter, settings.optimize
    made = optimize(root, settings.seed, rewriting=rewriting, without=without, clock=clock)
    took = CLOCK() - started
    if not rewriting or not (made.plan.has_orders or learned(settings).costs):
        return made
    from dml.api.cost_profile import improved

    return improved(made, settings, took)


def arranged(made: Optimized, settings: Settings, without: frozenset[str]) -> Arrangement:
    """Return the arrangement of ``made``: the default, unless another one is clearly faster."""
    plain = Arrangement(made, settings)
    if not settings.optimize or settings.executor in GIVEN:
        return plain
    from dml.optimize.search.arrangement_space import allowed, cut

    machine = _machine(made.plan, settings)
    if not allowed(made.plan, machine, without).any:
        return plain
    started = time.perf_counter()
    decision = _decided(made.plan, settings, machine, without)
    if decision is None:
        return plain
    from dml.optimize.explain.arrangement_text import note

    given = made.trace
    trace = dataclasses.replace(given, applied=[*given.applied], too_costly=[*given.too_costly])
    note(trace, decision, started)
    way = decision.chosen.way
    plan = cut(made.plan, way.cuts)
    named_as(plan, made.plan)
    if way != decision.usual.way:
        settings = dataclasses.replace(settings, target_partition_bytes=way.size)
        if way.driver.name != USUAL:  # threads chosen by default may still become processes
            settings = dataclasses.replace(settings, executor=way.driver.name)
    return Arrangement(dataclasses.replace(made, plan=plan, trace=trace), settings, decision)


def explain_arrangement(
    made: Optimized, settings: Settings, without: frozenset[str], run: Arrangement
) -> str:
    """Return as text the arrangement ``run`` of ``made``, the next best one, and the reason.

    If ``run`` was not chosen among several arrangements, search for the best one now.
    """
    from dml.optimize.explain.arrangement_text import decision_text

    decision, fixed = run.decision, ""
    if not settings.optimize:
        fixed = "optimize=False is set"
    elif run.settings.executor in GIVEN:
        fixed = f"executor={run.settings.executor!r} is set"
    elif decision is None:
        decision = _decided(made.plan, settings, _machine(made.plan, settings), without)
    return decision_text(decision, fixed)


def _decided(
    plan: Plan, settings: Settings, machine: MachineLimits, without: frozenset[str]
) -> ArrangementDecision | None:
    from dml.api.cost_profile import expected
    from dml.optimize.search.arrangement import decide
    from dml.optimize.search.arrangement_space import allowed

    profile = profile_of(settings)  # reading it is a one-off cost, not planning time
    started = time.perf_counter()
    machine = dataclasses.replace(machine, speed=profile.speed)
    may, found = allowed(plan, machine, without), expected(plan, profile, settings)
    return decide(plan, found, machine, may, partial(_since, started))


def _since(started: float) -> float:
    """Return the seconds of planning since ``started``."""
    return time.perf_counter() - started


def _machine(plan: Plan, settings: Settings) -> MachineLimits:
    """Return the executors, workers and memory among which a run may be arranged."""
    from dml.exec.drivers.promotion import movable
    from dml.optimize.search.arrangement_space import MachineLimits

    resources = RunResources.of(settings, plan)
    free = settings.executor == AUTOTUNE
    moves = free and resources.workers > 1 and not plan.links and movable(plan.stage)
    return MachineLimits(
        resources.workers,
        (USUAL, "processes") if moves else (USUAL if free else settings.executor,),
        partial(_size_of, settings),
        sized=settings.target_partition_bytes != AUTOTUNE,
        whole_bytes=resources.budget.whole_bytes,
        kept_bytes=resources.budget.limit_bytes * KEPT_SHARE,
    )


def _size_of(settings: Settings, plan: Plan) -> int:
    return RunResources.of(settings, plan).budget.target_bytes
