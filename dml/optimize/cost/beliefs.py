"""A belief is the estimate of a cost with its uncertainty; beliefs of several sources are combined.

A belief is a log-normal distribution, since estimates are wrong by a factor. Sources are a prior (a
table, scaled to the machine), a sample, and history; each is weighted by its precision. One run
therefore outweighs the table, and several normal runs outweigh one slow run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dml.profile import Learned

SIGMA_PRIOR: Final = math.log(3)
SIGMA_SAMPLE: Final = math.log(1.5)
# The added uncertainty for blocks twice or half as large.
SIGMA_APART: Final = math.log(1.2)
# Standard deviations from the mean to the 80th percentile.
Z80: Final = 0.8416212335729143
# A plan must be cheaper than the usual plan by more than this to be chosen instead.
MARGIN: Final = 0.05
LEAST: Final = 1e-12

PRIOR, SAMPLE, HISTORY = "p", "s", "h"


@dataclass(frozen=True, slots=True)
class Belief:
    """A figure with log-normal uncertainty; ``source``: "p" prior, "s" sample, "h" history."""

    mean: float
    sigma: float
    source: str

    @classmethod
    def prior(cls, figure: float) -> Belief:
        """Return a belief from the table: its error is below a factor of 3 with probability 2/3."""
        return cls(math.log(max(figure, LEAST)), SIGMA_PRIOR, PRIOR)

    @classmethod
    def sampled(cls, figure: float) -> Belief:
        """Return a belief from a short sample run."""
        return cls(math.log(max(figure, LEAST)), SIGMA_SAMPLE, SAMPLE)

    @classmethod
    def learned(cls, found: Learned, apart: int = 0) -> Belief:
        """Return a belief with the mean and the spread that runs of the fleet have shown.

        ``apart`` is how often the block size of those runs is doubled or halved to get the block
        size of the estimate; each time adds to the uncertainty.
        """
        return cls(found.mean, math.hypot(found.sigma, SIGMA_APART * apart), HISTORY)

    @property
    def typical(self) -> float:
        """The median of the figure, in its unit."""
        return math.exp(self.mean)

    def at(self, z: float) -> float:
        """Return the figure that is ``z`` standard deviations (of its log) from the median."""
        return math.exp(self.mean + z * self.sigma)

    def times(self, factor: float) -> Belief:
        """Return the belief about ``factor`` (positive) times the figure."""
        return Belief(self.mean + math.log(factor), self.sigma, self.source)

    def spread(self) -> str:
        """Return the uncertainty as text: ``+-8%``, or ``x/3`` for factors of two or more."""
        factor = math.exp(min(self.sigma, 100.0))
        if factor < 2:
            return f"+-{100 * (factor - 1):.0f}%"
        return f"x/{factor:.1f}".removesuffix(".0")


def combined(beliefs: Sequence[Belief]) -> Belief:
    """Combine at least one belief, weighted by precision, in any order."""
    weights = [each.sigma**-2 if each.sigma else math.inf for each in beliefs]
    best = min(beliefs, key=lambda each: (each.sigma, each.mean, each.source))
    whole = math.fsum(weights)
    if not 0 < whole < math.inf:
        return best
    terms = (weight * each.mean for weight, each in zip(weights, beliefs, strict=True))
    return Belief(math.fsum(terms) / whole, whole**-0.5, best.source)


def total(beliefs: Sequence[Belief]) -> Belief:
    """Return the belief about the sum of independent figures, with the source of the largest."""
    if not beliefs:
        return Belief(math.log(LEAST), 0.0, PRIOR)
    figures = [each.typical for each in beliefs]
    whole = math.fsum(figures)
    parts = (
        figure * (math.exp(min(each.sigma, 20.0)) - 1)
        for figure, each in zip(figures, beliefs, strict=True)
    )
    off = math.hypot(*parts) / whole
    largest = max(beliefs, key=lambda each: each.mean)
    return Belief(math.log(whole), math.log1p(off), largest.source)


def no_regret(usual: Belief, other: Belief) -> bool:
    """Return True if ``other`` may replace ``usual``, the choice that is made without estimates.

    ``other`` must be cheaper by more than 5 % in the median, and no dearer at the 80th percentile:
    an uncertain estimate does not justify leaving a plan of known cost.
    """
    wins = other.typical < usual.typical * (1 - MARGIN)
    return wins and other.at(Z80) <= usual.at(Z80)
