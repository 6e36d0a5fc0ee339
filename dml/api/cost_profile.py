"""Plans are improved by expected costs, which are learned from earlier runs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from dml.api.run_telemetry import collector_of, learned, names_of, profile_of
from dml.expr.node import Node
from dml.optimize.cost.estimate import Estimate, estimates
from dml.optimize.cost.rule_gains import LEAST_S, RuleGain, gains, regretted
from dml.optimize.engine import Refused
from dml.optimize.phases import Optimized, optimize
from dml.optimize.rule import NamedRule
from dml.optimize.search.filter_order import guard_costly_parts, guarded
from dml.optimize.work_names import Names
from dml.physical.plan import Plan
from dml.profile import Profile
from dml.settings import Settings

# Seconds that explain waits for the figures of runs that have just ended.
FLUSH_S = 1.0
# Most rules switched off in one plan; most rewrites for which that is tried, or gains are shown.
MOST_OFF, MOST_TRIED, MOST_SHOWN = 4, 200, 2_000
# Largest share of a run's time for planning it again without each of its rules.
TRYING = 0.02


def improved(made: Optimized, settings: Settings, took: float) -> Optimized:
    """Return the plan of least expected cost; ``took`` are the seconds in which ``made`` was made.

    Rules that have cost more than they saved in several runs are not used, and the trace records
    this. Fingerprints and saved positions do not depend on which rules are used.
    """
    made = _ordered(made, settings)
    if not learned(settings).costs:
        return made  # without history, measuring the machine is not worth the time
    profile = profile_of(settings)
    off: list[Refused] = []
    while len(off) < MOST_OFF:
        used = expected(made.plan, profile, settings)
        seconds = math.fsum(each.seconds.typical for each in used if each.seconds)
        tried = len(set(made.trace.names()))
        if seconds < max(LEAST_S, tried * took / TRYING):
            break
        beside = Used(made.plan.name, _output_rows(made.plan, used))
        others = partial(_other, made, settings, profile, beside)
        found = gains(made.trace, used, others, MOST_TRIED)
        worst = regretted(found)
        if worst is None:
            break
        off.append(worst.off())
        made = _by_cost(made.written, settings, made.without | {worst.rule.name})
    made.trace.too_costly += off
    return made


def _by_cost(root: Node, settings: Settings, without: frozenset[str]) -> Optimized:
    """Optimize by rules, then order the parts of filters by expected cost."""
    rewriting, clock = settings.optimize, time.perf_counter
    made = optimize(root, settings.seed, rewriting=rewriting, without=without, clock=clock)
    return _ordered(made, settings)


def _ordered(made: Optimized, settings: Settings) -> Optimized:
    """Return ``made`` with the parts of filters in the order of least expected cost."""
    off = not settings.optimize or guard_costly_parts.name in made.without
    if off or not made.plan.has_orders:
        return made
    plan = guarded(made.plan, profile_of(settings), made.trace)
    return dataclasses.replace(made, plan=plan)


def _other(
    made: Optimized, settings: Settings, profile: Profile, used: Used, rule: NamedRule
) -> tuple[Estimate, ...] | None:
    """Return the estimates of the plan without ``rule``; None if its name differs from ``used``."""
    plans: dict[tuple[object, ...], Plan] = made.written.memo.setdefault("without", {})
    off = made.without | {rule.name}
    key = (settings.seed, settings.kernels, off)
    if key not in plans:
        plans[key] = _by_cost(made.written, settings, off).plan
    plan = plans[key]
    if used.name not in (None, plan.name):
        return None
    return _estimated(plan, names_of(plan), profile, settings, used.gives)


def gains_of(made: Optimized, used: Sequence[Estimate], settings: Settings) -> tuple[RuleGain, ...]:
    """Return the seconds that each applied rule saves; ``used`` are the plan's estimates."""
    profile = profile_of(settings)
    others = partial(_other, made, settings, profile, Used(None, _output_rows(made.plan, used)))
    return gains(made.trace, used, others, MOST_SHOWN)


class Used(NamedTuple):
    """The current plan, which is compared with plans that are made without a rule.

    ``name`` is the name that those plans must have (None: any); the plan outputs ``gives`` rows.
    """

    name: str | None
    gives: float


def _output_rows(plan: Plan, found: Sequence[Estimate]) -> float:
    """Return the number of rows that a plan outputs, according to its estimates ``found``."""
    return found[len(plan.operators) - 1].rows_out


def estimates_of(plan: Plan, settings: Settings) -> tuple[Estimate, ...]:
    """Estimate every operator's cost, after processing the events of runs that have ended."""
    collector = collector_of(settings)
    if collector is not None:
        collector.flush(FLUSH_S)
    return _estimated(plan, names_of(plan), profile_of(settings), settings)


def expected(
    plan: Plan, profile: Profile, settings: Settings, gives: float | None = None
) -> tuple[Estimate, ...]:
    """Estimate every operator's cost from ``profile``, scaled to ``gives`` output rows if not None.

    If the profile is empty, operators are not looked up in it by name, which saves computing names.
    """
    names = names_of(plan) if profile.figures else _nameless(plan)
    return _estimated(plan, names, profile, settings, gives)


def _estimated(
    plan: Plan,
    names: tuple[Names, ...],
    profile: Profile,
    settings: Settings,
    gives: float | None = None,
) -> tuple[Estimate, ...]:
    return estimates(plan, names, profile, compiled=settings.kernels != "numpy", gives=gives)


def _nameless(plan: Plan) -> tuple[Names, ...]:
    nameless: Names = {"cost": "", "fleet": ""}
    return (nameless,) * sum(len(each.operators) for each in plan.all)
