"""Read times of a storage tier are a curve of seconds over bytes through measured points.

Cachew (Graur et al., ATC 2022, section 4.4) calls the curve g. Between measured sizes, seconds are
assumed to grow by a power of the bytes, so that one curve covers latency and bandwidth.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from statistics import median

LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Seconds as a function of bytes, through one or more ``knots`` of rising bytes and seconds.

    Below the first knot the time is constant; above the last, the bandwidth of the last knot
    applies.
    """

    knots: tuple[tuple[float, float], ...]

    @classmethod
    def measured(cls, samples: Iterable[tuple[float, float]]) -> ReadTimes:
        """Fit (bytes, seconds) samples in any order: the median per size, made non-decreasing."""
        knots: list[tuple[float, float]] = []
        ordered = sorted((max(1.0, size), seconds) for size, seconds in samples)
        for size, group in groupby(ordered, key=lambda each: each[0]):
            least = knots[-1][1] if knots else LEAST_S
            knots.append((size, max(least, median(seconds for _, seconds in group))))
        if not knots:
            raise ValueError("a curve needs at least one measured point")
        return cls(tuple(knots))

    def __call__(self, nbytes: float) -> float:
        """Return the seconds to read ``nbytes`` at once."""
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
