"""This file says what is believed of a cost, and how beliefs of several sources become one.

A belief is a log-normal: costs are off by factors. Sources are a prior (a table, scaled to the
machine), a sample, and history; each counts by its precision, so that a table is overruled by one
run, and a run that was slow for once by those that were not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dml.profile import Learned

SIGMA_PRIOR: Final = math.log(3)
SIGMA_SAMPLE: Final = math.log(1.5)
# How much less is known of blocks twice or half as large.
SIGMA_APART: Final = math.log(1.2)
# Standard deviations from the mean to the 80th percentile.
Z80: Final = 0.8416212335729143
# A plan must be cheaper than the usual one by more than this to be taken instead of it.
MARGIN: Final = 0.05
LEAST: Final = 1e-12

PRIOR, SAMPLE, HISTORY = "p", "s", "h"


@dataclass(frozen=True, slots=True)
class Belief:
    """Normal in the log of a figure; ``source`` is the letter of what it mostly rests on."""

    mean: float
    sigma: float
    source: str

    @classmethod
    def prior(cls, figure: float) -> Belief:
        """What a table says: right within a factor of three, two times in three."""
        return cls(math.log(max(figure, LEAST)), SIGMA_PRIOR, PRIOR)

    @classmethod
    def sampled(cls, figure: float) -> Belief:
        """What a short sample run shows."""
        return cls(math.log(max(figure, LEAST)), SIGMA_SAMPLE, SAMPLE)

    @classmethod
    def learned(cls, found: Learned, apart: int = 0) -> Belief:
        """What runs of the fleet have shown: their own spread, and noise that more runs reduce.

        ``apart`` powers of two lie between the blocks that it was seen on and those asked about.
        """
        return cls(found.mean, math.hypot(found.sigma, SIGMA_APART * apart), HISTORY)

    @property
    def typical(self) -> float:
        """The middle: as likely more as less."""
        return math.exp(self.mean)

    def at(self, z: float) -> float:
        """The figure ``z`` standard deviations from the middle."""
        return math.exp(self.mean + z * self.sigma)

    def times(self, factor: float) -> Belief:
        """The same of ``factor`` (positive) as much."""
        return Belief(self.mean + math.log(factor), self.sigma, self.source)

    def spread(self) -> str:
        """How far off it may be: ``+-8%``, and from a factor of two on ``x/3``."""
        factor = math.exp(min(self.sigma, 100.0))
        if factor < 2:
            return f"+-{100 * (factor - 1):.0f}%"
        return f"x/{factor:.1f}".removesuffix(".0")


def combined(beliefs: Sequence[Belief]) -> Belief:
    """One belief of at least one, each weighted by its precision; their order cannot be seen."""
    weights = [each.sigma**-2 if each.sigma else math.inf for each in beliefs]
    best = min(beliefs, key=lambda each: (each.sigma, each.mean, each.source))
    whole = math.fsum(weights)
    if not 0 < whole < math.inf:
        return best
    terms = (weight * each.mean for weight, each in zip(weights, beliefs, strict=True))
    return Belief(math.fsum(terms) / whole, whole**-0.5, best.source)


def total(beliefs: Sequence[Belief]) -> Belief:
    """The sum of independent figures; what it mostly rests on is that of the largest."""
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
    """True if ``other`` may be done instead of what is done when nothing is known.

    It must be cheaper by more than 5 % in the middle, and no dearer at the 80th percentile: a guess
    is never worth leaving a plan whose cost is known.
    """
    wins = other.typical < usual.typical * (1 - MARGIN)
    return wins and other.at(Z80) <= usual.at(Z80)
