"""This file keeps what runs teach: the store that they write to, and what is learned from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dml.fleet.calibrate import calibrated
from dml.fleet.collect import Collector, telemetry_root
from dml.fleet.host import host_class
from dml.fleet.learn import Learner
from dml.profile import Profile, Speed
from dml.settings import Settings

_COLLECTORS: dict[str, Collector] = {}
_LEARNERS: dict[str, Learner] = {}
_SPEEDS: dict[str, Speed] = {}


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
