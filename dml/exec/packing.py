"""This file says what can stand side by side: how many slices of each stage run at once at most.

Slots hold slices as boxes hold things: one that takes a whole resource shuts out all that take a
part of it, a pool leaves idle what nobody else can use, memory has room for so many at once. So
what there is of one resource says too little. Of all that fits, the least seconds that cover the
work are a linear program with a column for each set of slices that fit (Gilmore and Gomory, 1961);
its dual weighs the slices of each stage so that whatever fits weighs at most one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dml.exec.policy import EPSILON

MOST_NODES = 4_000  # of the search for the heaviest set; what it did not see is bounded
MOST_PIVOTS = 60
PRECISE = 1e-7
ROUNDING = 1e-12


class Sort(NamedTuple):
    """Slices of a stage: what each takes of every resource, and how many there may be at once."""

    takes: tuple[float, ...]
    most: float


@dataclass(frozen=True, slots=True)
class Boxes:
    """What there is of every resource, and the sorts of slices that share it."""

    there_is: tuple[float, ...]
    sorts: tuple[Sort, ...]

    def fits(self, i: int, left: Sequence[float]) -> int:
        """How many of sort ``i`` fit into what is left."""
        most = self.sorts[i].most
        for have, takes in zip(left, self.sorts[i].takes, strict=True):
            if takes > 0:
                most = min(most, math.floor(have / takes + EPSILON))
        return max(0, int(most))

    def weigh(self, work: Sequence[float]) -> tuple[float, ...]:
        """Weights of slices, at most one for any set that fits; of ``work`` as much as can be.

        ``work`` is the seconds of all slices of each sort. Seconds times weights are what no
        schedule is shorter than.
        """
        return _Program(self, tuple(work)).run()


class _Program:
    """The linear program: columns are sets that fit, the rows are sorts that have work."""

    def __init__(self, boxes: Boxes, work: tuple[float, ...]) -> None:
        self.boxes, self.work = boxes, work
        self.rows = [i for i, seconds in enumerate(work) if seconds > 0]
        alone = [max(1, boxes.fits(i, boxes.there_is)) for i in self.rows]
        size = range(len(self.rows))
        self.inverse = [[1.0 / alone[i] if i == j else 0.0 for j in size] for i in size]
        self.seconds = [work[i] / n for i, n in zip(self.rows, alone, strict=True)]

    def run(self) -> tuple[float, ...]:
        """The best weights that were seen: each step's are made true by what they allow."""
        best, found = -1.0, (0.0,) * len(self.work)
        for _ in range(MOST_PIVOTS if self.rows else 0):
            weights = self._weights()
            heaviest = _Heaviest(self.boxes, weights)
            largest = max(heaviest.run(), PRECISE)
            total = sum(w * s for w, s in zip(weights, self.work, strict=True)) / largest
            if total > best:
                best, found = total, tuple(weight / largest for weight in weights)
            if largest <= 1.0 + PRECISE or not self._pivot(heaviest.counts):
                break
        return found

    def _weights(self) -> list[float]:
        weights = [0.0] * len(self.work)
        for j, i in enumerate(self.rows):
            weights[i] = max(0.0, sum(row[j] for row in self.inverse))
        return weights

    def _pivot(self, counts: Sequence[int]) -> bool:
        """Take a set into the basis; False where that changes nothing."""
        entering = [
            sum(row[j] * counts[i] for j, i in enumerate(self.rows)) for row in self.inverse
        ]
        ratios = [(self.seconds[i] / each, i) for i, each in enumerate(entering) if each > PRECISE]
        if not ratios:
            return False
        step, leaves = min(ratios)
        pivot = entering[leaves]
        row = [each / pivot for each in self.inverse[leaves]]
        for i, each in enumerate(entering):
            if i == leaves:
                self.inverse[i], self.seconds[i] = row, step
            else:
                old = self.inverse[i]
                self.inverse[i] = [a - each * b for a, b in zip(old, row, strict=True)]
                self.seconds[i] -= each * step
        return True


class _Heaviest:
    """The heaviest set that fits: branch and bound, from the sort that is worth most."""

    def __init__(self, boxes: Boxes, weights: Sequence[float]) -> None:
        self.boxes, self.weights = boxes, weights
        self.order = sorted(
            (i for i, weight in enumerate(weights) if weight > 0),
            key=lambda i: self._worth(boxes.sorts[i].takes, weights[i]),
            reverse=True,
        )
        self.counts = [0] * len(weights)
        self._now = [0] * len(weights)
        self._best, self._nodes = 0.0, 0

    def _worth(self, takes: Sequence[float], weight: float) -> float:
        shares = [a / b for a, b in zip(takes, self.boxes.there_is, strict=True) if b > 0]
        return weight / max([*shares, PRECISE])

    def run(self) -> float:
        """Its weight, or, if that would take too long, what it is at most."""
        self._try(0, self.boxes.there_is, 0.0)
        if self._nodes <= MOST_NODES:
            return self._best
        return max(self._best, self._at_most(0, self.boxes.there_is))

    def _try(self, depth: int, left: Sequence[float], weight: float) -> None:
        self._nodes += 1
        if weight > self._best:
            self._best, self.counts = weight, list(self._now)
        if depth == len(self.order) or self._nodes > MOST_NODES:
            return
        if weight + self._at_most(depth, left) <= self._best + ROUNDING:
            return
        i = self.order[depth]
        takes = self.boxes.sorts[i].takes
        for n in range(self.boxes.fits(i, left), -1, -1):
            self._now[i] = n
            rest = [have - n * each for have, each in zip(left, takes, strict=True)]
            self._try(depth + 1, rest, weight + n * self.weights[i])

    def _at_most(self, depth: int, left: Sequence[float]) -> float:
        """What the rest could weigh, were it cut into pieces to fill a resource."""
        fits = [(i, self.boxes.fits(i, left)) for i in self.order[depth:]]
        least = sum(n * self.weights[i] for i, n in fits)
        for r, have in enumerate(left):
            least = min(least, self._filled(fits, r, have))
        return least

    def _filled(self, fits: Sequence[tuple[int, int]], r: int, have: float) -> float:
        weight, pieces = 0.0, list[tuple[float, float, int]]()
        for i, n in fits:
            takes = self.boxes.sorts[i].takes[r]
            if takes <= 0:
                weight += n * self.weights[i]
            else:
                pieces.append((self.weights[i] / takes, takes, n))
        have += EPSILON
        for each, takes, n in sorted(pieces, reverse=True):
            part = min(have, takes * n)
            weight += part * each
            have -= part
            if have <= 0:
                break
        return weight
