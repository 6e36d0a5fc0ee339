"""Recommend settings: those that make a run faster by the forecast, and those that a run found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dml.api.session import arrangement
from dml.api.what_if import RunForecaster, WhatIfSettings
from dml.base.display import Displayed, Grid
from dml.events import Event
from dml.expr.node import Node
from dml.optimize.search.arrangement import locks
from dml.settings import AUTOTUNE, Settings
from dml.verify.simulate.answer import Basis

# A setting is recommended if a run with it takes at most this share of the time.
GAIN = 0.95
# Multiples of the present workers that are tried; the fewest within ALIKE of the best are named.
MORE_WORKERS, ALIKE = (2, 4, 8, 16), 1.02
# What a run has found is worth fixing from so many times the number of cores on: less may be noise.
LEAST = 2


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """A change of a pipeline or of its settings, as code, and the reason.

    ``times`` is the expected time of a run as a multiple of the present one; 1.0 if the change only
    fixes what a run has found by itself.
    """

    code: str
    times: float
    why: str


class Recommendations(Displayed, tuple[Recommendation, ...]):
    """Recommendations, the one that saves most first; ``str()`` is for people."""

    basis: Basis

    @staticmethod
    def of(found: Sequence[Recommendation], basis: Basis) -> Recommendations:
        """Return ``found`` in order; ``basis`` says where the costs of operators come from."""
        made = Recommendations(sorted(found, key=lambda each: each.times))
        made.basis = basis
        return made

    def _parts(self) -> Iterator[str | Grid]:
        if self:
            rows = [[each.code, each.why] for each in self]
            yield Grid(rows, texts={0, 1}, heads=0)
        else:
            yield f"no setting is expected to save {1 - GAIN:.0%}"
        yield from self.basis.lines


def recommend(node: Node, settings: Settings, events: Sequence[Event]) -> Recommendations:
    """Return the settings that are worth fixing; ``events`` are those of the last run, or none."""
    forecaster = RunForecaster(node, settings, WhatIfSettings(), events)
    now = forecaster.seconds_with({})
    found = list(_found(forecaster))
    if 0 < now < math.inf:
        found += _faster(forecaster, now)
    decision = arrangement(node, settings).decision
    if decision is not None and decision.cache is not None:
        cache, whole = decision.cache, decision.chosen.seconds
        times = cache.priced.seconds / whole
        why = f"{_less(times)} of {cache.passes}: rows are computed once"
        found.append(Recommendation(f".cache() above {cache.above}", times, why))
    return Recommendations.of(found, forecaster.basis())


def _found(forecaster: RunForecaster) -> Iterator[Recommendation]:
    """Yield what the last run found by itself: how many slices at once pay, beyond the cores."""
    at_once = forecaster.last.at_once if forecaster.settings.tunes else {}
    stage = max(at_once, key=lambda name: at_once[name], default="")
    if stage and at_once[stage] >= LEAST * (forecaster.usual or 1):
        code = _code({"num_workers": at_once[stage]})
        yield Recommendation(code, 1.0, f"found by the last run, for {stage}")


def _faster(forecaster: RunForecaster, now: float) -> Iterator[Recommendation]:
    """Yield the changes of settings with which a run takes less than ``now`` seconds."""
    for options, why in _candidates(forecaster):
        times = forecaster.seconds_with(options) / now
        if times <= GAIN:
            yield Recommendation(_code(options), times, f"{_less(times)}: {why}")
    yield from _workers(forecaster, now)


def _candidates(forecaster: RunForecaster) -> Iterator[tuple[Mapping[str, Any], str]]:
    settings, called = forecaster.settings, any(map(locks, forecaster.plan.operators))
    if called and settings.executor in (AUTOTUNE, "threads"):
        yield {"executor": "processes"}, "functions run on all cores"
    if settings.executor == "processes":
        yield {"executor": "threads"}, "rows need not be sent to processes"
    if settings.prefetch == 0:
        yield {"prefetch": AUTOTUNE}, "batches are made while the training loop runs"
    elif settings.prefetch != AUTOTUNE:
        yield {"prefetch": AUTOTUNE}, "more batches are made ahead, so that slow ones delay no step"


def _workers(forecaster: RunForecaster, now: float) -> Iterator[Recommendation]:
    """Yield the fewest workers that are nearly as fast as any number; none if a run finds them."""
    settings, usual = forecaster.settings, forecaster.usual
    called = any(node.calls is not None and node.inputs for node in forecaster.plan.operators)
    fixed = settings.executor in ("sync", "distributed") or forecaster.last.at_once
    if usual is None or fixed or not called:
        return
    tried = {
        usual * more: forecaster.seconds_with({"num_workers": usual * more})
        for more in MORE_WORKERS
    }
    best = min(tried.values())
    workers = next(count for count, seconds in tried.items() if seconds <= ALIKE * best)
    times = tried[workers] / now
    if times <= GAIN:
        why = f"{_less(times)}: functions wait, and more of them wait at once"
        yield Recommendation(_code({"num_workers": workers}), times, why)


def _code(options: Mapping[str, Any]) -> str:
    return f".with_options({', '.join(f'{name}={value!r}' for name, value in options.items())})"


def _less(times: float) -> str:
    return f"{round(100 * (times - 1)):+d}% expected"
