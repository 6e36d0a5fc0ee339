"""This file brings what the fleet has learned to the optimizer, and a run's events to the fleet."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

from dml.fleet.calibrate import calibrated
from dml.fleet.collect import Collector, telemetry_root
from dml.fleet.host import host_class
from dml.fleet.learn import Learner
from dml.optimize.estimate import Estimate, estimates
from dml.optimize.guards import guard_costly_parts, guarded, has_choice
from dml.optimize.phases import Optimized
from dml.optimize.work_names import Names, work_names
from dml.plan import Plan
from dml.profile import Profile, Speed
from dml.settings import Settings

# Seconds that explain waits for the figures of runs that have just ended.
FLUSH_S = 1.0

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
    return _LEARNERS.setdefault(str(root), found or Learner(root, host_class()))


def profile_of(settings: Settings) -> Profile:
    """What the fleet has learned, and the speed of this machine, which is measured once."""
    root, machine = telemetry_root(settings.telemetry_dir), host_class()
    known = Profile() if root is None else _learner(root).profile()
    speed = _SPEEDS.get(str(root))
    if speed is None:
        speed = _SPEEDS[str(root)] = calibrated(root, machine)
    return dataclasses.replace(known, host_class=machine, speed=speed)


def by_cost(made: Optimized, settings: Settings, without: frozenset[str]) -> Optimized:
    """The same, its operators run as is expected to cost least; not by rules ``without``."""
    off = not settings.optimize or guard_costly_parts.name in without
    if off or not has_choice(made.plan):
        return made
    plan = guarded(made.plan, profile_of(settings), made.trace)
    return dataclasses.replace(made, plan=plan)


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


def estimates_of(plan: Plan, settings: Settings) -> tuple[Estimate, ...]:
    """What every operator is expected to cost; runs that have just ended are waited for."""
    collector = collector_of(settings)
    if collector is not None:
        collector.flush(FLUSH_S)
    return expected(plan, profile_of(settings), settings)


def expected(plan: Plan, profile: Profile, settings: Settings) -> tuple[Estimate, ...]:
    """The same, of what ``profile`` knows; without history nobody asks for names."""
    names = names_of(plan) if profile.figures else _nameless(plan)
    return estimates(plan, names, profile, compiled=settings.kernels != "numpy")


def _nameless(plan: Plan) -> tuple[Names, ...]:
    nameless: Names = {"cost": "", "fleet": ""}
    return (nameless,) * sum(len(each.operators) for each in plan.all)
