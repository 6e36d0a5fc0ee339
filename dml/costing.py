"""This file brings what the fleet has learned to the optimizer, and a run's events to the fleet."""

from __future__ import annotations

import dataclasses
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from dml.errors import DmlError
from dml.events import Event, OperatorTotals, RunStarted
from dml.expr.fingerprint import Domain
from dml.expr.node import Node
from dml.expr.sources.source import Source
from dml.fleet.calibrate import calibrated
from dml.fleet.collect import Collector, telemetry_root
from dml.fleet.host import host_class
from dml.fleet.learn import Learner
from dml.optimize.engine import Refused
from dml.optimize.estimate import Estimate, estimates
from dml.optimize.gains import LEAST_S, Gain, gains, regretted
from dml.optimize.guards import guard_costly_parts, guarded, has_choice
from dml.optimize.names import fingerprint_of
from dml.optimize.phases import Optimized, optimize
from dml.optimize.rule import Named
from dml.optimize.work_names import Names, result_names, work_names
from dml.plan import Plan
from dml.profile import Profile, Speed
from dml.settings import Settings

# Seconds that explain waits for the figures of runs that have just ended.
FLUSH_S = 1.0
# Bytes that may be read for the name of a result, for telemetry alone: some 10 ms.
NAMED_BYTES = 32 << 20
# Rules that may be switched off in one plan; rewritings up to which it is tried, and gains shown.
MOST_OFF, MOST_TRIED, MOST_SHOWN = 4, 200, 2_000
# Part of a run that may go into planning it again without each of its rules; how that is measured.
TRYING, CLOCK = 0.02, time.perf_counter

_COLLECTORS: dict[str, Collector] = {}
_LEARNERS: dict[str, Learner] = {}
_SPEEDS: dict[str, Speed] = {}
_NAMES: weakref.WeakKeyDictionary[Plan, tuple[Names, ...]] = weakref.WeakKeyDictionary()


def collector_of(settings: Settings) -> Collector | None:
    """The process's writer into the telemetry store; None when telemetry is off."""
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
    """The events of a run that came to its end, with the names of its results.

    None where a function has none, or where more than 32 MiB would be read for them.
    """
    names, named = iter(_results(stations, settings)), list[Event]()
    for each in events:
        if isinstance(each, RunStarted | OperatorTotals) and (name := next(names, "")):
            names_too = {**each.fingerprints, "result": name}
            each = dataclasses.replace(each, fingerprints=names_too)  # noqa: PLW2901
        named.append(each)
    return named


def _results(stations: Optimized, settings: Settings) -> list[str]:
    """The name of what a run gives, and of what each of its operators does."""
    nodes = list(stations.normalized.walk())
    nameless = any(fn.reason for node in nodes if (fn := node.calls) is not None)
    if nameless or sum(n.identity_bytes() for n in nodes if isinstance(n, Source)) > NAMED_BYTES:
        return []
    try:
        name = fingerprint_of(stations.normalized, Domain.RESULT, settings.seed)
        return [name, *result_names(stations.plan, settings.seed)]
    except (DmlError, RuntimeError):  # files are others by now; no thread begins: Python ends
        return []


@cache
def _machine() -> str:
    """The class of this machine; asked once, since the system is slow to tell."""
    return host_class()


def _learned(settings: Settings) -> Profile:
    """What the fleet has learned."""
    root = telemetry_root(settings.telemetry_dir)
    return Profile() if root is None else _learner(root).profile()


def profile_of(settings: Settings) -> Profile:
    """What the fleet has learned, and the speed of this machine, which is measured once."""
    return dataclasses.replace(
        _learned(settings), host_class=_machine(), speed=_machine_speed(settings)
    )


def capability_of(settings: Settings) -> float | None:
    """How fast a core of this machine is, beside that of the priors; None without telemetry."""
    if telemetry_root(settings.telemetry_dir) is None:
        return None
    return 1 / _machine_speed(settings).work


def _machine_speed(settings: Settings) -> Speed:
    """The speed of this machine, which is measured once and kept beside the telemetry store."""
    root = telemetry_root(settings.telemetry_dir)
    speed = _SPEEDS.get(str(root))
    if speed is None:
        speed = _SPEEDS[str(root)] = calibrated(root, _machine())
    return speed


def planned(root: Node, settings: Settings, without: frozenset[str]) -> Optimized:
    """The stations of a pipeline, as is expected to cost least; not by rules ``without``.

    Rules that cost more than they save, as several runs have shown, are not used either, and the
    trace says so. Names and saved positions are the same with and without them.
    """
    started = CLOCK()
    made = _by_cost(root, settings, without)
    took = CLOCK() - started
    if not settings.optimize or not _learned(settings).costs:
        return made  # what nobody has seen is not worth the time to measure the machine
    profile = profile_of(settings)
    off: list[Refused] = []
    while len(off) < MOST_OFF:
        used = expected(made.plan, profile, settings)
        seconds = math.fsum(each.seconds.typical for each in used if each.seconds)
        tried = len(set(made.trace.names()))
        if seconds < max(LEAST_S, tried * took / TRYING):
            break
        beside = Used(made.plan.name, _given(made.plan, used))
        others = partial(_other, made, settings, profile, beside)
        found = gains(made.trace, used, others, MOST_TRIED)
        worst = regretted(found)
        if worst is None:
            break
        off.append(worst.off())
        made = _by_cost(root, settings, made.without | {worst.rule.name})
    made.trace.refused += off
    return made


def _by_cost(root: Node, settings: Settings, without: frozenset[str]) -> Optimized:
    """By rules, and the parts of filters tried in the order that is expected to cost least."""
    clock = time.perf_counter
    made = optimize(root, settings.seed, rewriting=settings.optimize, without=without, clock=clock)
    off = not settings.optimize or guard_costly_parts.name in without
    if off or not has_choice(made.plan):
        return made
    plan = guarded(made.plan, profile_of(settings), made.trace)
    return dataclasses.replace(made, plan=plan)


def _other(
    made: Optimized, settings: Settings, profile: Profile, used: Used, rule: Named
) -> tuple[Estimate, ...] | None:
    """Estimates of what ``made`` is without ``rule`` also; None if that has another name."""
    plans: dict[tuple[object, ...], Plan] = made.written.__dict__.setdefault("_without", {})
    off = made.without | {rule.name}
    key = (settings.seed, settings.kernels, off)
    if key not in plans:
        plans[key] = _by_cost(made.written, settings, off).plan
    plan = plans[key]
    if used.name not in (None, plan.name):
        return None
    return _estimated(plan, names_of(plan), profile, settings, used.gives)


def gains_of(made: Optimized, used: Sequence[Estimate], settings: Settings) -> tuple[Gain, ...]:
    """What each rule that made a plan, which is expected to cost ``used``, saves."""
    profile = profile_of(settings)
    others = partial(_other, made, settings, profile, Used(None, _given(made.plan, used)))
    return gains(made.trace, used, others, MOST_SHOWN)


class Used(NamedTuple):
    """A plan as others are held beside it: its name, if theirs must be the same, and its rows."""

    name: str | None
    gives: float


def _given(plan: Plan, found: Sequence[Estimate]) -> float:
    """Rows that a plan gives."""
    return found[len(plan.operators) - 1].rows_out


def names_of(plan: Plan) -> tuple[Names, ...]:
    """What telemetry calls the operators of a plan; made once, since every run asks."""
    found = _NAMES.get(plan)
    if found is None:
        found = _NAMES[plan] = work_names(plan)
    return found


def named_as(plan: Plan, other: Plan) -> None:
    """``plan`` has the operators of ``other``, so that their names need not be made again."""
    if other in _NAMES:
        _NAMES[plan] = _NAMES[other]


def rows_named(plan: Plan, rows: Mapping[int, str]) -> None:
    """Telemetry calls what some operators of a plan give of the data at hand by these names."""
    _NAMES[plan] = tuple(
        {**names, "rows": rows.get(number, "")} for number, names in enumerate(names_of(plan))
    )


def estimates_of(plan: Plan, settings: Settings) -> tuple[Estimate, ...]:
    """What every operator is expected to cost; runs that have just ended are waited for."""
    collector = collector_of(settings)
    if collector is not None:
        collector.flush(FLUSH_S)
    return _estimated(plan, names_of(plan), profile_of(settings), settings)


def expected(
    plan: Plan, profile: Profile, settings: Settings, gives: float | None = None
) -> tuple[Estimate, ...]:
    """The same, of what ``profile`` knows; without history nobody asks for names."""
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
