"""This file says what is worth keeping of several pipelines, in a store with room for so much."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dml.autocaching import Choosing, Place, looking
from dml.expr.amounts import bytes_text, seconds_text
from dml.expr.node import Node
from dml.expr.text import as_html
from dml.optimize.autocached import Site
from dml.optimize.placement import SOURCE, Point, best, spent, within
from dml.session import optimized
from dml.settings import Settings

LEAST_PARTS = 16  # of an entry, that may be kept apart from each other


@dataclasses.dataclass(frozen=True)
class Worth:
    """One place where rows could be kept: the ``part`` of its ``nbytes`` that is worth it.

    So many ``pipelines`` pass it, ``fingerprint`` is the name of its entry; ``there`` is true if
    all of it is there already.
    """

    operator: str
    fingerprint: str
    pipelines: int
    nbytes: int
    part: float
    there: bool

    def __str__(self) -> str:
        kept = "is there" if self.there else f"keep {self.part:.0%}" if self.part else "leave"
        shared = f"{self.pipelines} pipeline{'s' if self.pipelines != 1 else ''}"
        size, name = bytes_text(self.nbytes), self.fingerprint[:8]
        return f"{kept:9} of {size:>9}  {name}  {shared}  {self.operator}"


@dataclasses.dataclass(frozen=True)
class WorthKeeping:
    """What to keep of several pipelines: ``seconds`` of all their epochs then, and without it.

    ``unknown`` are places that nobody has measured. ``print`` it for people.
    """

    places: tuple[Worth, ...]
    seconds: float
    uncached_s: float
    unknown: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """What is newly kept."""
        return int(sum(each.part * each.nbytes for each in self.places if not each.there))

    def __str__(self) -> str:
        then, now = seconds_text(self.seconds), seconds_text(self.uncached_s)
        first = f"all epochs take {then} instead of {now}, with {bytes_text(self.nbytes)} kept"
        unknown = [f"not measured yet: {each}" for each in self.unknown]
        return "\n".join([first, *map(str, self.places), *unknown])

    def _repr_html_(self) -> str:
        return as_html(str(self))


class _Tree:
    """The pipelines merged: a place that two of them have is one point."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.names: dict[str, int] = {}
        self.labels: dict[int, str] = {}
        self.jobs: dict[int, int] = {}
        self.unknown: list[str] = []

    def add(self, choosing: Choosing) -> None:
        """One pipeline, with all of its chains."""
        for sites, whole_s in choosing.chains({}):
            below, below_s, epochs = SOURCE, 0.0, 1.0
            for place, site in sites:
                entry = choosing.entry(place, choosing.epoch)
                if site is None or entry is None:
                    self.unknown.append(place.node.label())
                    continue
                below = self._point(place, site, entry.fingerprint, below, below_s)
                below_s, epochs = site.below_s, site.epochs
            rest_s = max(0.0, whole_s - below_s)
            self.points.append(Point(below, rest_s, 0.0, 0.0, 0.0, epochs, keepable=False))

    def _point(self, place: Place, site: Site, name: str, below: int, below_s: float) -> int:
        found = self.names.setdefault(name, len(self.points))
        self.jobs[found] = self.jobs.get(found, 0) + 1
        if found == len(self.points):
            step_s = max(0.0, site.below_s - below_s)
            figures = site.nbytes, site.read_s, site.write_s
            self.points.append(Point(below, step_s, *figures, kept=site.there >= 1))
            self.labels[found] = place.node.label()
        return found


def worth_keeping(
    jobs: Sequence[tuple[Node, Settings, int]], room: float | None, parts: int = LEAST_PARTS
) -> WorthKeeping:
    """What to keep of ``jobs``, each with the epoch that comes next, in ``room`` bytes."""
    tree = _Tree()
    for node, settings, epoch in jobs:
        tree.add(looking(optimized(node, settings).plan, settings, epoch))
    points = tree.points
    shares = ((1.0, best(points)),) if room is None else _shares(points, room, parts)
    part = {n: sum(part for part, kept in shares if n in kept) for n in tree.labels}
    places = tuple(
        Worth(
            *(label, next(k for k, v in tree.names.items() if v == number), tree.jobs[number]),
            int(points[number].nbytes),
            part[number],
            points[number].kept,
        )
        for number, label in sorted(tree.labels.items())
    )
    seconds = sum(part * spent(points, kept) for part, kept in shares)
    now_s = spent(points, frozenset())
    return WorthKeeping(places, seconds, now_s, tuple(tree.unknown))


def _shares(
    points: Sequence[Point], room: float, parts: int
) -> tuple[tuple[float, frozenset[int]], ...]:
    return tuple((each.part, each.kept) for each in within(points, room, parts))
