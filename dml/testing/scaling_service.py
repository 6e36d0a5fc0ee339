"""Simulate a service of workers: batch times by curves, with scatter.

Policies are tested on the simulation, without a cluster or clock; all randomness is an argument.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dml.cluster.autoscale.scaling_policy import ScalingPolicy, ScalingWindow

QUEUE = 16  # capacity of the buffer of ready batches
BATCHES = 100  # batches of a window


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """The cost of a batch: ``busy_s`` seconds of workers, and ``step_s`` seconds of the trainer.

    With any number of workers, batches come no faster than one in ``floor_s`` (a shared resource),
    and each batch delays all by ``drag_s``; ``cpu`` is the processor seconds of a busy second.
    """

    busy_s: float
    step_s: float = 1.0
    floor_s: float = 0.0
    drag_s: float = 0.0
    cpu: float = 1.0

    def making_s(self, workers: int) -> float:
        """Return the seconds between two batches that ``workers`` workers make."""
        return max(self.floor_s, self.drag_s + self.busy_s / workers)

    def batch_time_s(self, workers: int) -> float:
        """Return the seconds between two batches that the trainer gets."""
        return max(self.step_s, self.making_s(workers))

    def cost(self, workers: int, trainer: float) -> float:
        """Return the worker seconds for a batch; the trainer counts as ``trainer`` workers."""
        return (workers + trainer) * self.batch_time_s(workers)

    @property
    def ideal(self) -> int:
        """The fewest workers to which no number of workers is faster by more than one percent."""
        n = 1
        while self.batch_time_s(n) > 1.01 * self.batch_time_s(4096):
            n += 1
        return n


class ObservedWindow(NamedTuple):
    """The outcome of one window, and the number of workers requested at its end."""

    workers: int
    asked: int
    batch_time_s: float


def waiting(load: float, room: int) -> float:
    """Return the mean number of ready batches in a buffer of size ``room``.

    ``load`` is the rate of production divided by that of consumption. Source: tf.data, equation 1.
    """
    if abs(load - 1) < 1e-6:
        return room / 2
    if load > 10:
        return float(room)
    power = load ** (room + 1)
    return load / (1 - load) - (room + 1) * power / (1 - power)


def observed(curve: Curve, workers: int, noise: float, rng: np.random.Generator) -> ScalingWindow:
    """Return a window of ``curve``, with scatter in trainer's step, making and busy seconds."""
    scatter = np.exp(rng.normal(0.0, noise, 3) - noise**2 / 2)
    step_s, making_s = curve.step_s * scatter[0], curve.making_s(workers) * scatter[1]
    batch_time_s = max(step_s, making_s)
    # a worker that waits for a shared resource is busy, though its processor is not
    contended_s = workers * curve.making_s(workers) if curve.floor_s else curve.busy_s
    busy_s = max(curve.busy_s + workers * curve.drag_s, contended_s) * scatter[2]
    return ScalingWindow(
        workers,
        float(batch_time_s),
        float(step_s),
        float(busy_s),
        waiting(float(step_s / making_s), QUEUE),
        min(1.0, float(curve.cpu * curve.busy_s / (workers * batch_time_s))),
    )


def served(
    policy: ScalingPolicy,
    load: Callable[[int], Curve],
    windows: int,
    noise: float,
    rng: np.random.Generator,
    *,
    workers: int = 1,
) -> list[ObservedWindow]:
    """Simulate ``windows`` windows under ``policy``; window number i has the curve ``load(i)``.

    A window begins when a change is done: clients pause their metrics until then.
    """
    seen: list[ObservedWindow] = []
    for number in range(windows):
        window = observed(load(number), workers, noise, rng)
        asked = policy.step(window).workers
        seen.append(ObservedWindow(workers, asked, window.batch_time_s))
        workers = asked
    return seen


def changes(seen: list[ObservedWindow]) -> int:
    """Return how often the number of workers changed in ``seen``."""
    return sum(each.asked != each.workers for each in seen)


def settled_workers(seen: list[ObservedWindow], last: int = 20) -> int:
    """Return the median number of workers in the ``last`` windows."""
    counts = sorted(each.workers for each in seen[-last:])
    return counts[len(counts) // 2]


# Three models in three modes as in Cachew's figures 6 and 10: where the number of workers settles,
# and where processor use misleads. The rest of each curve is an assumption.
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
    """Return the random generator of the simulation with ``seed``."""
    return np.random.Generator(np.random.Philox(seed))


def within(count: int, ideal: float, share: float = 0.1) -> bool:
    """Return True if ``count`` is the ideal number, give or take the share ``share`` of it."""
    return abs(count - ideal) <= share * ideal + 1e-9
