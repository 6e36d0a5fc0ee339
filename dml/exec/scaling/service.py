"""This file is a service of workers that does not exist: batch times by curves, and scatter.

Policies are tried on it, with no cluster and no clock; all randomness is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dml.exec.scaling.window import Policy, Window

QUEUE = 16  # batches that may be ready
BATCHES = 100  # of a window


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """What a batch costs: ``busy_s`` worker seconds, ``step_s`` of the trainer.

    However many work, batches come no faster than one in ``floor_s`` (something all workers share),
    and each holds up all by ``drag_s``; ``cpu`` is the processor seconds of a busy second.
    """

    busy_s: float
    step_s: float = 1.0
    floor_s: float = 0.0
    drag_s: float = 0.0
    cpu: float = 1.0

    def making_s(self, workers: int) -> float:
        """Seconds between two batches that so many workers make."""
        return max(self.floor_s, self.drag_s + self.busy_s / workers)

    def batch_time_s(self, workers: int) -> float:
        """Seconds between two batches that the trainer gets."""
        return max(self.step_s, self.making_s(workers))

    def cost(self, workers: int, trainer: float) -> float:
        """Worker seconds for a batch, where the trainer costs as much as so many of them."""
        return (workers + trainer) * self.batch_time_s(workers)

    @property
    def ideal(self) -> int:
        """The fewest workers with which no more would make it one percent faster."""
        n = 1
        while self.batch_time_s(n) > 1.01 * self.batch_time_s(4096):
            n += 1
        return n


class Seen(NamedTuple):
    """What happened in one window, and how many workers were asked for at its end."""

    workers: int
    asked: int
    batch_time_s: float


def waiting(load: float, room: int) -> float:
    """Mean batches that are ready, by production over consumption; source: tf.data, equation 1."""
    if abs(load - 1) < 1e-6:
        return room / 2
    if load > 10:
        return float(room)
    power = load ** (room + 1)
    return load / (1 - load) - (room + 1) * power / (1 - power)


def observed(curve: Curve, workers: int, noise: float, rng: np.random.Generator) -> Window:
    """A window of ``curve``: the trainer's step, the making and the busy seconds scatter each."""
    scatter = np.exp(rng.normal(0.0, noise, 3) - noise**2 / 2)
    step_s, making_s = curve.step_s * scatter[0], curve.making_s(workers) * scatter[1]
    batch_time_s = max(step_s, making_s)
    # a worker that waits for what all share is busy, though its processor is not
    contended_s = workers * curve.making_s(workers) if curve.floor_s else curve.busy_s
    busy_s = max(curve.busy_s + workers * curve.drag_s, contended_s) * scatter[2]
    return Window(
        workers,
        float(batch_time_s),
        float(step_s),
        float(busy_s),
        waiting(float(step_s / making_s), QUEUE),
        min(1.0, float(curve.cpu * curve.busy_s / (workers * batch_time_s))),
    )


def served(
    policy: Policy,
    load: Callable[[int], Curve],
    windows: int,
    noise: float,
    rng: np.random.Generator,
    *,
    workers: int = 1,
) -> list[Seen]:
    """So many windows under ``policy``; window number i is of the curve ``load(i)``.

    A window begins when a change is done: clients pause their metrics until then.
    """
    seen: list[Seen] = []
    for number in range(windows):
        window = observed(load(number), workers, noise, rng)
        asked = policy.step(window).workers
        seen.append(Seen(workers, asked, window.batch_time_s))
        workers = asked
    return seen


def changes(seen: list[Seen]) -> int:
    """How often the number of workers was changed."""
    return sum(each.asked != each.workers for each in seen)


def found(seen: list[Seen], last: int = 20) -> int:
    """The number at which it stayed: the middle of the last windows."""
    counts = sorted(each.workers for each in seen[-last:])
    return counts[len(counts) // 2]


# What Cachew's figures 6 and 10 show of three models in three modes: where it settles, and where
# processors mislead. The rest of each curve is ours.
CURVES = {
    "ResNet50, compute": Curve(4.0, cpu=0.5),
    "ResNet50, source cache": Curve(3.0, cpu=0.7),
    "ResNet50, full cache": Curve(2.0, cpu=0.4),
    "RetinaNet, compute": Curve(5.0, cpu=0.95),
    "RetinaNet, source cache": Curve(4.0, cpu=0.95),
    "RetinaNet, full cache": Curve(8.0, floor_s=2.0, cpu=0.35),
    "SimCLR, compute": Curve(16.0, cpu=1.2),
    "SimCLR, source cache": Curve(13.0, cpu=1.2),
    "SimCLR, full cache": Curve(10.0, drag_s=0.3, cpu=0.6),
}


def keyed(seed: int) -> np.random.Generator:
    """Randomness of one simulation."""
    return np.random.Generator(np.random.Philox(seed))


def within(count: int, ideal: float, share: float = 0.1) -> bool:
    """True if a count is the ideal one, give or take a tenth of it."""
    return abs(count - ideal) <= share * ideal + 1e-9
