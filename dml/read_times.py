"""This file says how long a tier takes for some bytes: a curve through what was measured.

Cachew (Graur et al., ATC 2022, section 4.4) calls it g. Between sizes that were measured seconds
are taken to grow by a power of the bytes, so that a latency and a bandwidth are one curve.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median

LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Seconds by bytes, at ``knots`` of rising bytes and seconds; at least one of them.

    Below the first knot nothing takes less, above the last its bandwidth holds.
    """

    knots: tuple[tuple[float, float], ...]

    @classmethod
    def measured(cls, samples: Iterable[tuple[float, float]]) -> ReadTimes:
        """Of (bytes, seconds) in any order, several of each size: their median, never falling."""
        knots: list[tuple[float, float]] = []
        ordered = sorted((max(1.0, size), seconds) for size, seconds in samples)
        for size, group in groupby(ordered, key=lambda each: each[0]):
            least = knots[-1][1] if knots else LEAST_S
            knots.append((size, max(least, median(seconds for _, seconds in group))))
        if not knots:
            raise ValueError("a curve needs at least one measured point")
        return cls(tuple(knots))

    @classmethod
    def linear(cls, latency_s: float, bytes_per_s: float) -> ReadTimes:
        """Of a latency and a bandwidth."""
        sizes = [4.0**power for power in range(18)]
        return cls.measured((size, latency_s + size / bytes_per_s) for size in sizes)

    def __call__(self, nbytes: float) -> float:
        """Seconds for ``nbytes`` read at once."""
        if nbytes <= 0:
            return 0.0
        sizes = [size for size, _ in self.knots]
        place = bisect_left(sizes, nbytes)
        if place == 0:
            return self.knots[0][1]
        if place == len(sizes):
            size, seconds = self.knots[-1]
            return seconds * nbytes / size
        (low, low_s), (high, high_s) = self.knots[place - 1], self.knots[place]
        share = math.log(nbytes / low) / math.log(high / low)
        between = math.exp((1 - share) * math.log(low_s) + share * math.log(high_s))
        return min(max(between, low_s), high_s)

    def rises(self) -> bool:
        """True if more bytes never take less."""
        return all(a[1] <= b[1] and a[0] < b[0] for a, b in pairwise(self.knots))
