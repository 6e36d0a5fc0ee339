"""Events of runs are passed to telemetry, and what was learned from them is read here."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dml.base.fingerprint import Domain, digest
from dml.base.host import host_class
from dml.errors import DmlError
from dml.events import Event, OperatorTotals, RunStarted
from dml.exec.delivery.account import tell_progress
from dml.fleet.collector import Collector, telemetry_root
from dml.io.source import Source
from dml.optimize.fingerprints import fingerprint_of
from dml.optimize.phases import Optimized
from dml.optimize.work_names import Names, result_names, work_names
from dml.physical.plan import Plan
from dml.profile import Learned, Profile, Speed
from dml.settings import AUTOTUNE, Settings

if TYPE_CHECKING:
    from dml.fleet.learning import Learner
    from dml.fleet.policy import CachePolicy

# Most bytes that are read for a result's fingerprint if only telemetry needs it: some 10 ms.
NAMED_BYTES = 32 << 20

_COLLECTORS: dict[str, Collector] = {}
_LEARNERS: dict[str, Learner] = {}
_SPEEDS: dict[str, Speed] = {}
_NAMES: weakref.WeakKeyDictionary[Plan, tuple[Names, ...]] = weakref.WeakKeyDictionary()
_PREFIXES: weakref.WeakKeyDictionary[Plan, Names] = weakref.WeakKeyDictionary()


def collector_of(settings: Settings) -> Collector | None:
    """Return the process's writer into the telemetry store; None when telemetry is off."""
    root = telemetry_root(settings.telemetry_dir)
    if root is None:
        return None
    found = _COLLECTORS.get(str(root))
    if found is None:
        made = Collector(root, learn=_learner(root).take, ask=tell_progress)
        found = _COLLECTORS.setdefault(str(root), made)
    return found


def _learner(root: Path) -> Learner:
    from dml.fleet.learning import Learner

    found = _LEARNERS.get(str(root))
    return _LEARNERS.setdefault(str(root), found or Learner(root, _machine()))


def identified(stations: Optimized, settings: Settings, events: list[Event]) -> list[Event]:
    """Return the events of a finished run with fingerprints of its output and operators' rows.

    No fingerprint is added if a function has none, or if computing them would read over 32 MiB.
    """
    names, named = iter(_results(stations, settings)), list[Event]()
    for each in events:
        if isinstance(each, RunStarted | OperatorTotals) and (found := next(names, None)):
            names_too = {**each.fingerprints, **found}
            each = dataclasses.replace(each, fingerprints=names_too)  # noqa: PLW2901
        named.append(each)
    return named


def _results(stations: Optimized, settings: Settings) -> list[Names]:
    """Return the fingerprints of a run's output and data, then of each operator's rows.

    The list is empty if they are not available.
    """
    nodes = list(stations.normalized.walk())
    nameless = any(fn.reason for node in nodes if (fn := node.calls) is not None)
    sources = [node for node in nodes if isinstance(node, Source)]
    if nameless or sum(node.identity_bytes() for node in sources) > NAMED_BYTES:
        return []
    try:
        name = fingerprint_of(stations.normalized, Domain.RESULT, settings.seed)
        data = digest("data", *(node.identity() for node in sources)).hex()
        operators = result_names(stations.plan, settings.seed)
        return [{"result": name, "data": data}, *({"result": each} for each in operators)]
    except (DmlError, RuntimeError):  # files changed, or Python is exiting
        return []


def prefixes_of(stations: Optimized) -> Names:
    """Return the names of the pipeline's prefixes; cached, since every run needs them."""
    found = _PREFIXES.get(stations.plan)
    if found is None:
        try:
            from dml.optimize.shared_prefixes import prefix_names

            found = prefix_names(stations.normalized, stations.plan)
        except (DmlError, ImportError, RuntimeError):  # Python is exiting
            return {}
        _PREFIXES[stations.plan] = found
    return found


@cache
def _machine() -> str:
    """Return the class of this machine; cached, since the system call is slow."""
    return host_class()


def learned(settings: Settings) -> Profile:
    """Return the profile learned from telemetry; an empty one if telemetry is off."""
    root = telemetry_root(settings.telemetry_dir)
    return Profile() if root is None else _learner(root).profile()


def parallels_of(settings: Settings) -> Mapping[str, Learned]:
    """Return the numbers that earlier runs tuned, by name; none if this run may tune none."""
    return learned(settings).parallels if settings.tune == AUTOTUNE else {}


def policy_of(settings: Settings) -> CachePolicy:
    """Return the policy of the telemetry folder; an empty one if telemetry is off."""
    from dml.fleet.policy import read_policy

    return read_policy(telemetry_root(settings.telemetry_dir))


def profile_of(settings: Settings) -> Profile:
    """Return the learned profile with the speed of this machine, which is measured once."""
    return dataclasses.replace(
        learned(settings), host_class=_machine(), speed=_machine_speed(settings)
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
        from dml.fleet.calibration import calibrated

        speed = _SPEEDS[str(root)] = calibrated(root, _machine())
    return speed


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
