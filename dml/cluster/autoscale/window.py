"""The input and output of scaling policies: measurements over some batches, and a decision."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol


class ScalingWindow(NamedTuple):
    """Means over consecutive batches of the trainer, with a constant number of ``workers``.

    ``batch_time_s`` is the time to get a batch and to process it, ``step_s`` the trainer's own part
    of that time; ``busy_s`` is the time that workers were busy for one batch, computing or waiting
    for data; ``result_queue_size`` is the number of ready batches, ``cpu_share`` the used share of
    the workers' processors. Source of batch_time and result_queue_size: Cachew, table 1.
    """

    workers: int
    batch_time_s: float
    step_s: float
    busy_s: float
    result_queue_size: float = 0.0
    cpu_share: float = 1.0


class ScalingDecision(NamedTuple):
    """The number of workers to have now, why, and whether no trial is pending (``settled``)."""

    workers: int
    reason: str
    settled: bool = False


class ScalingPolicy(Protocol):
    """Turns windows into numbers of workers; the result depends only on the windows so far."""

    def step(self, window: ScalingWindow) -> ScalingDecision:
        """Return the decision after one more window."""


class Log:
    """The geometric mean of positive figures with relative scatter, and its standard error.

    ``expected`` is the relative scatter that is assumed until there are enough figures to measure
    it. Only the last ``most`` figures count.
    """

    PRIOR = 4  # weight of the expected scatter, in figures

    def __init__(self, expected: float = 0.05, most: int = 24) -> None:
        self.expected, self.most = expected, most
        self.figures: list[float] = []

    def add(self, figure: float) -> None:
        """Add a figure, which must be positive."""
        self.figures = [*self.figures, math.log(figure)][-self.most :]

    def __len__(self) -> int:
        return len(self.figures)

    @property
    def mean(self) -> float:
        """The geometric mean of the figures."""
        return math.exp(sum(self.figures) / len(self.figures))

    @property
    def error(self) -> float:
        """The standard error of ``mean``, as a share of the mean."""
        middle, n = sum(self.figures) / len(self.figures), len(self.figures)
        spread = sum((each - middle) ** 2 for each in self.figures)
        variance = (self.PRIOR * self.expected**2 + spread) / (self.PRIOR + n - 1)
        return math.sqrt(variance / n)

    def far(self, figure: float, share: float) -> bool:
        """Return True if ``figure`` differs from the mean by more than ``share`` of it."""
        return bool(self.figures) and abs(math.log(figure / self.mean)) > math.log1p(share)
