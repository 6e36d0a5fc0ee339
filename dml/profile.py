"""This file holds what a fleet has learned about costs: a value handed to the optimizer.

Costs are seconds per row, kept as an exponentially decayed mean and variance of their logarithm
(OPTIMIZER 3), so that one slow run moves a mean by a factor and not by a sum. Pure: the time of
an observation comes in as an argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

HALF_LIFE_S: Final = 14 * 86_400.0
NOISE: Final = math.log(1.2) ** 2
"""Variance of the log of one observation that repetition alone explains."""


class CostKey(NamedTuple):
    """What a cost depends on: the operator, the machine, and powers of two of the block's shape."""

    fingerprint: str
    host_class: str
    rows_log2: int
    row_bytes_log2: int

    @classmethod
    def of(cls, fingerprint: str, host_class: str, rows: float, row_bytes: float) -> CostKey:
        """Key of blocks with ``rows`` rows of ``row_bytes`` bytes each."""
        return cls(fingerprint, host_class, _log2(rows), _log2(row_bytes))


def _log2(figure: float) -> int:
    return max(0, round(math.log2(figure))) if figure > 0 else 0


@dataclass(frozen=True, slots=True)
class Learned:
    """Decayed mean and spread of log(seconds per row), as of ``at`` seconds since 1970."""

    weight: float
    mean: float
    spread: float
    at: float

    @classmethod
    def once(cls, seconds_per_row: float, at: float, weight: float = 1.0) -> Learned:
        """One observation; raises ValueError unless both figures are positive and finite."""
        if not (0 < seconds_per_row < math.inf and 0 < weight < math.inf):
            raise ValueError(f"a cost is positive, got {seconds_per_row!r} s/row x {weight!r}")
        return cls(weight, math.log(seconds_per_row), 0.0, at)

    @property
    def seconds_per_row(self) -> float:
        """The geometric mean of the observations."""
        return math.exp(self.mean)

    @property
    def sigma(self) -> float:
        """How far log costs may be off: their own spread, plus noise that shrinks with weight."""
        return math.sqrt((self.spread + NOISE) / self.weight) if self.weight else math.inf

    def as_of(self, at: float) -> Learned:
        """The same knowledge, with the weight it still has at a later moment."""
        if at <= self.at:
            return self
        kept = 0.5 ** ((at - self.at) / HALF_LIFE_S)
        return Learned(self.weight * kept, self.mean, self.spread * kept, at)

    def merge(self, other: Learned) -> Learned:
        """Both together, at the later of their moments, in any order (Chan et al. 1979)."""
        at = max(self.at, other.at)
        one, two = self.as_of(at), other.as_of(at)
        weight = one.weight + two.weight
        if weight == 0:
            return one
        step = two.mean - one.mean
        between = step * step * one.weight * two.weight / weight
        mean = (one.mean * one.weight + two.mean * two.weight) / weight
        return Learned(weight, mean, one.spread + two.spread + between, at)


@dataclass(frozen=True, slots=True)
class Profile:
    """Learned costs by key; an empty profile is what a fleet knows on its first day."""

    costs: Mapping[CostKey, Learned] = field(default_factory=dict)

    def merge(self, other: Profile) -> Profile:
        """What both know; commutative, and associative up to rounding."""
        costs = dict(self.costs)
        for key, learned in other.costs.items():
            mine = costs.get(key)
            costs[key] = learned if mine is None else mine.merge(learned)
        return Profile(costs)

    def lookup(self, key: CostKey) -> Learned | None:
        """Knowledge for ``key``, else for the nearest shape of block; never another machine's."""
        found = self.costs.get(key)
        if found is not None:
            return found
        near = [each for each in self.costs if each[:2] == key[:2]]
        if not near:
            return None
        return self.costs[min(near, key=lambda each: (_apart(each, key), each))]


def _apart(one: CostKey, two: CostKey) -> int:
    return abs(one.rows_log2 - two.rows_log2) + abs(one.row_bytes_log2 - two.row_bytes_log2)
