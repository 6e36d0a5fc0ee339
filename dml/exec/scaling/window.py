"""This file holds what is known when the number of workers is decided: figures of some batches."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol


class Window(NamedTuple):
    """Means over batches that the trainer took in a row, while ``workers`` stayed what it was.

    ``batch_time_s`` is the time to get a batch and to process it, ``step_s`` the trainer's own part
    of it; ``busy_s`` are the seconds that workers were busy for one batch, whether they computed or
    waited for data; ``result_queue_size`` are batches that were ready, ``cpu_share`` is how much of
    the workers' processors was in use. Source of batch_time and result_queue_size: Cachew, table 1.
    """

    workers: int
    batch_time_s: float
    step_s: float
    busy_s: float
    result_queue_size: float = 0.0
    cpu_share: float = 1.0


class Decision(NamedTuple):
    """How many workers there should be now, and why; the number that there is leaves all as it is.

    ``settled`` says that nothing is being tried: the policy has found what it wants.
    """

    workers: int
    reason: str
    settled: bool = False


class Policy(Protocol):
    """Windows in, numbers of workers out; nothing but windows may decide."""

    def step(self, window: Window) -> Decision:
        """What follows from one more window."""


class Log:
    """The mean and its error of figures that scatter by some share, in logarithms.

    ``expected`` is the scatter that is assumed until there are figures enough to measure it.
    Only the last ``most`` figures count.
    """

    PRIOR = 4  # figures that what is expected counts for

    def __init__(self, expected: float = 0.05, most: int = 24) -> None:
        self.expected, self.most = expected, most
        self.figures: list[float] = []

    def add(self, figure: float) -> None:
        """One more figure, which must be positive."""
        self.figures = [*self.figures, math.log(figure)][-self.most :]

    def __len__(self) -> int:
        return len(self.figures)

    @property
    def mean(self) -> float:
        """The figure that lies in their middle."""
        return math.exp(sum(self.figures) / len(self.figures))

    @property
    def error(self) -> float:
        """The standard error of ``mean``, as a share of it."""
        middle, n = sum(self.figures) / len(self.figures), len(self.figures)
        spread = sum((each - middle) ** 2 for each in self.figures)
        variance = (self.PRIOR * self.expected**2 + spread) / (self.PRIOR + n - 1)
        return math.sqrt(variance / n)

    def far(self, figure: float, share: float) -> bool:
        """True if ``figure`` is so far from the mean that something has changed."""
        return bool(self.figures) and abs(math.log(figure / self.mean)) > math.log1p(share)
