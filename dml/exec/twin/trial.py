"""This file tries a model on the virtual cluster, by the real scheduling core and its policy.

Of many tasks only the first are run, half of them and all: what the other half takes is what as
many further ones take. Where there are many slots, some of them stand for all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from dml.exec.baselines import policy_of
from dml.exec.policy import Seq
from dml.exec.twin.model import Model, Place
from dml.exec.virtual import Cluster, Trace, Truth

# Slices that are run in one trial, and if there are so few tasks for each slot, so many times more:
# tasks come in waves. Slots that may stand for more.
SLICES, TASKS_PER_SLOT, MORE, MOST_SLOTS = 600, 8, 3, 32


class Tried(NamedTuple):
    """What a run took, and for how long what there is was busy."""

    seconds: float
    busy_s: Mapping[str, float]
    storage_s: float
    peak_bytes: int


class _Virtual(Cluster):
    """The virtual cluster, whose storage gives what is read to one slice after the other."""

    def __init__(self, model: Model, place: Place) -> None:
        self.storage_free_at, self.storage_s = 0.0, 0.0
        self.read_s = model.read_bytes / place.storage_bytes_s
        self.reading = model.steps[0].truth
        truth = [step.truth for step in model.steps]
        super().__init__(
            [step.demand for step in model.steps],
            [self.read if self.read_s else truth[0], *truth[1:]],
            place.slots,
            model.limit_bytes,
            policy_of(place.policy),
            consume_s=model.consume_s,
            watched=False,
        )

    def read(self, _seq: Seq) -> Truth:
        """What a slice of the first stage takes that starts now."""
        begins = max(self.now, self.storage_free_at)
        self.storage_free_at = begins + self.read_s
        self.storage_s += self.read_s
        waits = self.storage_free_at - self.now
        return dataclasses.replace(self.reading, seconds=self.reading.seconds + waits)


def tried(model: Model, place: Place) -> Tried:
    """A run of all tasks of ``model``, its begin and end included."""
    times = _times(model, place)
    if times > 1:
        model, place = _bundled(model, place, times)
    found = _all_tasks(model, place)
    busy = {name: seconds * times for name, seconds in found.busy_s.items()}
    return Tried(found.seconds + model.besides_s, busy, found.storage_s, found.peak_bytes * times)


def _all_tasks(model: Model, place: Place) -> Tried:
    slots = min(model.tasks, max(step.demand.parallel(place.slots) for step in model.steps))
    each = sum(model.slices(i) for i in range(len(model.steps))) / model.tasks
    usual = max(int(SLICES / each), TASKS_PER_SLOT)
    most = max(usual, min(int(TASKS_PER_SLOT * slots), MORE * usual))
    if model.tasks <= 2 * most:
        return _run(model, place, model.tasks)
    half, full = _run(model, place, most // 2), _run(model, place, most)
    more = (model.tasks - most) / (most - most // 2)
    grows = more * (full.peak_bytes - half.peak_bytes)
    busy = {
        name: seconds + more * (seconds - half.busy_s.get(name, 0.0))
        for name, seconds in full.busy_s.items()
    }
    return Tried(
        full.seconds + more * (full.seconds - half.seconds),
        busy,
        full.storage_s + more * (full.storage_s - half.storage_s),
        int(max(full.peak_bytes, min(model.limit_bytes, full.peak_bytes + grows))),
    )


def _run(model: Model, place: Place, tasks: int) -> Tried:
    cluster = _Virtual(model, place)
    trace: Trace = cluster.run(tasks)
    return Tried(trace.seconds, trace.busy_s, cluster.storage_s, trace.peak_bytes)


def _times(model: Model, place: Place) -> int:
    """For how many slots one may stand: every stage, and what it holds, must stay divisible."""
    widths = [step.demand.parallel(place.slots) for step in model.steps]
    slots = [n for n in (*widths, *place.slots.values()) if 0 < n < math.inf]
    least = min(slots, default=0.0)
    held = sum(step.demand.output_bytes + step.demand.open_bytes for step in model.steps)
    parts = (
        int(least / MOST_SLOTS),
        model.tasks // (TASKS_PER_SLOT * MOST_SLOTS),
        model.limit_bytes // max(1, held * MOST_SLOTS),
    )
    return max(1, min(parts))


def _bundled(model: Model, place: Place, times: int) -> tuple[Model, Place]:
    """One part of so many that are alike; what there is once has as many times the work."""
    steps = []
    for step in model.steps:
        most = step.demand.max_parallel
        few = None if most is None else max(1, most // times)
        steps.append(
            dataclasses.replace(step, demand=dataclasses.replace(step.demand, max_parallel=few))
        )
    part = dataclasses.replace(
        model,
        steps=tuple(steps),
        tasks=math.ceil(model.tasks / times),
        limit_bytes=model.limit_bytes // times,
        consume_s=model.consume_s * times,
        read_bytes=model.read_bytes * times,
    )
    slots = {name: amount / times for name, amount in place.slots.items()}
    return part, dataclasses.replace(place, slots=slots)
