"""Cache placement decides which rows of a fleet's pipelines, merged into a tree, are cached.

A point of the tree is a place where rows could be cached. A run reads rows from the nearest cached
point below (or the source) and computes the rest. The first run that reaches a point to be cached
computes its rows from the nearest cached point below it, and writes them. For a fixed nearest
point, the part above costs the same whatever else is cached. So the best choice at a price per byte
is found exactly, in time proportional to the number of points times their depth.

The limit of bytes is met by a price per byte (Everett, 1963): points are cached whose savings
exceed the price of their bytes. Entries are cached part by part. So at the price at which the
choices begin to exceed the limit, some parts are placed by the smaller choice, and the others by
the larger one. Up to the size of a part, that is never worse than any choice of whole entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SOURCE = -1
"""The parent of rows that are computed from the source."""
STEPS = 64  # most steps of the search for a price; each finds a cheaper mixture, or is the last


@dataclass(frozen=True, slots=True)
class Point:
    """A place where rows could be cached; parents come before their children.

    ``parent`` is the index of the point below, ``seconds`` the time to compute this point's rows
    from the parent's rows. ``runs`` is how often pipelines that end here will read the rows from
    now on. In a cache, the rows take ``nbytes``, are written once in ``write_s`` and read in
    ``read_s``. A point that is not ``keepable`` is never cached; a ``kept`` point already is.
    """

    parent: int
    seconds: float
    nbytes: float
    read_s: float
    write_s: float
    runs: float = 0.0
    keepable: bool = True
    kept: bool = False


Kept = frozenset[int]


@dataclass(frozen=True, slots=True)
class PlacementShare:
    """A choice of points, ``kept``, that are cached in the fraction ``part`` of all parts."""

    part: float
    kept: Kept


def gain(
    times: float, compute_s: float, read_s: float, write_s: float, hold_s: float = 0.0
) -> float:
    """Return the seconds that caching saves over ``times`` reads; the first computes the rows.

    ``hold_s`` are the seconds that the same bytes could save for other entries meanwhile.
    """
    return max(times - 1, 0.0) * (compute_s - read_s) - write_s - hold_s


def spent(points: Sequence[Point], kept: Kept) -> float:
    """Return the seconds of all runs if ``kept`` is cached by the first run that needs the rows."""
    asked = [each.runs for each in points]
    whole = 0.0
    for place in range(len(points) - 1, -1, -1):
        each, times = points[place], asked[place]
        if each.kept:
            whole += times * each.read_s
            continue
        if place in kept and times > 0:
            first = min(1.0, times)
            whole += (times - first) * each.read_s + first * each.write_s
            times = first
        whole += times * each.seconds
        if each.parent != SOURCE:
            asked[each.parent] += times
    return whole


def cached_bytes(points: Sequence[Point], kept: Kept) -> float:
    """Return the bytes of the newly cached points ``kept``."""
    return math.fsum(points[place].nbytes for place in kept)


def best(points: Sequence[Point], price: float = 0.0) -> Kept:
    """Return the points to cache at ``price`` seconds per byte, with the least total cost."""
    return _Search(points, price).cached_points()


class _Search:
    """The exact choice at one price: least costs by point and nearest cached point below it."""

    def __init__(self, points: Sequence[Point], price: float) -> None:
        self.points, self.price = points, price
        self.children: list[list[int]] = [[] for _ in points]
        self.roots: list[int] = []
        for place, each in enumerate(points):
            (self.roots if each.parent == SOURCE else self.children[each.parent]).append(place)
        self.reads = self._count_reads()
        self.costs = self._costs()

    def _count_reads(self) -> list[float]:
        """Return how often each point is read if no point above it is newly cached."""
        asked = [each.runs for each in self.points]
        for place in range(len(self.points) - 1, -1, -1):
            each = self.points[place]
            if each.parent != SOURCE and not each.kept:
                asked[each.parent] += asked[place]
        return asked

    def cached_points(self) -> Kept:
        """Return the points that the cheapest choice newly caches."""
        found: list[int] = []
        stack = [(root, SOURCE) for root in self.roots]
        while stack:
            place, below = stack.pop()
            keeps = self.points[place].kept or self.costs[place, below][1]
            if keeps and not self.points[place].kept:
                found.append(place)
            stack += [(child, place if keeps else below) for child in self.children[place]]
        return frozenset(found)

    def _costs(self) -> dict[tuple[int, int], tuple[float, bool]]:
        """Return (least seconds, is cached) by (point, possible nearest cached point below)."""
        costs: dict[tuple[int, int], tuple[float, bool]] = {}
        for place in range(len(self.points) - 1, -1, -1):
            for below, path_s in self._below(place):
                costs[place, below] = self._cost(place, below, path_s, costs)
        return costs

    def _below(self, place: int) -> list[tuple[int, float]]:
        """Return the possible nearest cached points, each with the seconds to compute from it."""
        found: list[tuple[int, float]] = []
        seconds, each = 0.0, place
        while True:
            seconds += self.points[each].seconds
            each = self.points[each].parent
            if each == SOURCE:
                return [*found, (SOURCE, seconds)]
            found.append((each, seconds + self.points[each].read_s))
            if self.points[each].kept:
                return found

    def _cost(
        self,
        place: int,
        below: int,
        path_s: float,
        costs: dict[tuple[int, int], tuple[float, bool]],
    ) -> tuple[float, bool]:
        point, children = self.points[place], self.children[place]
        reading = point.runs * point.read_s + math.fsum(costs[c, place][0] for c in children)
        if point.kept:
            return reading, True
        passing = point.runs * path_s + math.fsum(costs[c, below][0] for c in children)
        if not point.keepable or self.reads[place] <= 1:
            return passing, False
        # the run that computes the rows does not read them
        made = path_s + point.write_s - point.read_s + self.price * point.nbytes
        keeping = made + reading
        return (keeping, True) if keeping < passing else (passing, False)


def within(points: Sequence[Point], room: float, parts: int = 1) -> tuple[PlacementShare, ...]:
    """Return the points to cache in ``room`` bytes, for entries of ``parts`` equal parts.

    The result is one choice for all parts, or two choices with the share of parts that each applies
    to; their total size is at most ``room``.
    """
    dear: Kept = frozenset()
    cheap = best(points)
    if cached_bytes(points, cheap) <= room:
        return (PlacementShare(1.0, cheap),)
    for _ in range(STEPS):
        price = _between(points, dear, cheap)
        found = best(points, price)
        if found in (dear, cheap) or _same(points, found, dear, price):
            break
        dear, cheap = (found, cheap) if cached_bytes(points, found) <= room else (dear, found)
    low, high = cached_bytes(points, dear), cached_bytes(points, cheap)
    share = math.floor((room - low) / (high - low) * parts) / parts
    return tuple(
        each
        for each in (PlacementShare(share, cheap), PlacementShare(1 - share, dear))
        if each.part > 0
    )


def _between(points: Sequence[Point], dear: Kept, cheap: Kept) -> float:
    """Return the price per byte at which the choices ``dear`` and ``cheap`` cost the same."""
    saved = spent(points, dear) - spent(points, cheap)
    return max(0.0, saved / (cached_bytes(points, cheap) - cached_bytes(points, dear)))


def _same(points: Sequence[Point], found: Kept, dear: Kept, price: float) -> bool:
    """Return True if ``found`` costs no less at ``price`` than ``dear`` does."""
    known = spent(points, dear) + price * cached_bytes(points, dear)
    return spent(points, found) + price * cached_bytes(points, found) >= known - 1e-12 * abs(known)
