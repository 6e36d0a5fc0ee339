"""Pass learned costs to the optimizer, and the events of runs to telemetry."""

from __future__ import annotations

import dataclasses
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from dml.base.fingerprint import Domain
from dml.base.host import host_class
from dml.errors import DmlError
from dml.events import Event, OperatorTotals, RunStarted
from dml.expr.node import Node
from dml.fleet.calibration import calibrated
from dml.fleet.collector import Collector, telemetry_root
from dml.fleet.learning import Learner
from dml.io.source import Source
from dml.optimize.cost.estimate import Estimate, estimates
from dml.optimize.cost.rule_gains import LEAST_S, RuleGain, gains, regretted
from dml.optimize.engine import Refused
from dml.optimize.fingerprints import fingerprint_of
from dml.optimize.phases import Optimized, optimize
from dml.optimize.rule import NamedRule
from dml.optimize.search.filter_order import guard_costly_parts, guarded, has_choice
from dml.optimize.work_names import Names, result_names, work_names
from dml.physical.plan import Plan
from dml.profile import Learned, Profile, Speed
from dml.settings import AUTOTUNE, Settings

# Seconds that explain waits for the figures of runs that have just ended.
FLUSH_S = 1.0
# Most bytes that are read for a result's fingerprint if only telemetry needs it: some 10 ms.
NAMED_BYTES = 32 << 20
# Most rules switched off in one plan; most rewrites for which that is tried, or gains are shown.
MOST_OFF, MOST_TRIED, MOST_SHOWN = 4, 200, 2_000
# Largest share of a run's time for planning it again without each of its rules; the clock for it.
TRYING, CLOCK = 0.02, time.perf_counter

_COLLECTORS: dict[str, Collector] = {}
_LEARNERS: dict[str, Learner] = {}
_SPEEDS: dict[str, Speed] = {}
_NAMES: weakref.WeakKeyDictionary[Plan, tuple[Names, ...]] = weakref.WeakKeyDictionary()


def collector_of(settings: Settings) -> Collector | None:
    """Return the process's writer into the telemetry store; None when telemetry is off."""
    root = telemetry_root(settings.telemetry_dir)
    if root is None:
        return None
    found = _COLLECTORS.get(str(root))
    if found is None:
        made = Collector(root, learn=_learner(root).take)
        found = _COLLECTORS.setdefault(str(root), made)
    return found


def _learner(root: Path) -> Learner:
    found = _LEARNERS.get(str(root))
    return _LEARNERS.setdefault(str(root), found or Learner(root, _machine()))


def identified(stations: Optimized, settings: Settings, events: list[Event]) -> list[Event]:
    """Return the events of a finished run with fingerprints of its output and operators' rows.

    No fingerprint is added if a function has none, or if computing them would read over 32 MiB.
    """
    names, named = iter(_results(stations, settings)), list[Event]()
    for each in events:
        if isinstance(each, RunStarted | OperatorTotals) and (name := next(names, "")):
            names_too = {**each.fingerprints, "result": name}
            each = dataclasses.replace(each, fingerprints=names_too)  # noqa: PLW2901
        named.append(each)
    return named


def _results(stations: Optimized, settings: Settings) -> list[str]:
    """Return the fingerprints of a run's output and each operator's rows; [] if unavailable."""
    nodes = list(stations.normalized.walk())
    nameless = any(fn.reason for node in nodes if (fn := node.calls) is not None)
    if nameless or sum(n.identity_bytes() for n in nodes if isinstance(n, Source)) > NAMED_BYTES:
        return []
    try:
        name = fingerprint_of(stations.normalized, Domain.RESULT, settings.seed)
        return [name, *result_names(stations.plan, settings.seed)]
    except (DmlError, RuntimeError):  # files changed, or Python is exiting
        return []


@cache
def _machine() -> str:
    """Return the class of this machine; cached, since the system call is slow."""
    return host_class()


def _learned(settings: Settings) -> Profile:
    """Return the profile learned from telemetry; an empty one if telemetry is off."""
    root = telemetry_root(settings.telemetry_dir)
    return Profile() if root is None else _learner(root).profile()


def parallels_of(settings: Settings) -> Mapping[str, Learned]:
    """Return the numbers that earlier runs tuned, by name; none if this run may tune none."""
    return _learned(settings).parallels if settings.tune == AUTOTUNE else {}


def profile_of(settings: Settings) -> Profile:
    """Return the learned profile with the speed of this machine, which is measured once."""
    return dataclasses.replace(
        _learned(settings), host_class=_machine(), speed=_machine_speed(settings)
    )


def capability_of(settings: Settings) -> float | None:
    """Return a core's speed as a multiple of the default costs' speed; None without telemetry."""
    if telemetry_root(settings.telemetry_dir) is None:
        return None
    return 1 / _machine_speed(settings).work


def _machine_speed(settings: Settings) -> Speed:
    """Return the speed of this machine, measured once and stored in the telemetry folder."""
    root = telemetry_root(settings.telemetry_dir)
    speed = _SPEEDS.get(str(root))
    if speed is None:
        speed = _SPEEDS[str(root)] = calibrated(root, _machine())
    return speed


def planned(root: Node, settings: Settings, without: frozenset[str]) -> Optimized:
    """Return the plan of least expected cost, without using the rules ``without``.

    Rules that have cost more than they saved in several runs are not used either, and the trace
    records this. Fingerprints and saved positions do not depend on which rules are used.
    """
    started = CLOCK()
    made = _by_cost(root, settings, without)
    took = CLOCK() - started
    if not settings.optimize or not _learned(settings).costs:
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
        made = _by_cost(root, settings, made.without | {worst.rule.name})
    made.trace.too_costly += off
    return made


def _by_cost(root: Node, settings: Settings, without: frozenset[str]) -> Optimized:
    """Optimize by rules, then order the parts of filters by expected cost."""
    clock = time.perf_counter
    made = optimize(root, settings.seed, rewriting=settings.optimize, without=without, clock=clock)
    off = not settings.optimize or guard_costly_parts.name in without
    if off or not has_choice(made.plan):
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


def names_of(plan: Plan) -> tuple[Names, ...]:
    """Return the telemetry names of a plan's operators; cached, since every run needs them."""
    found = _NAMES.get(plan)
    if found is None:
        found = _NAMES[plan] = work_names(plan)
    return found


def named_as(plan: Plan, other: Plan) -> None:
    """Copy the telemetry names of ``other``, which has the same operators, to ``plan``."""
    if other in _NAMES:
        _NAMES[plan] = _NAMES[other]


def rows_named(plan: Plan, rows: Mapping[int, str]) -> None:
    """Set the telemetry names of the operators' output rows, by the operators' numbers."""
    _NAMES[plan] = tuple(
        {**names, "rows": rows.get(number, "")} for number, names in enumerate(names_of(plan))
    )


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
