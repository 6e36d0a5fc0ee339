"""Choose the rows of several pipelines that are worth caching in a store of limited size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dml.api.autocache import CachePlace, Choosing, looking
from dml.api.session import optimized
from dml.base.amounts import bytes_text, seconds_text
from dml.base.display import Displayed
from dml.expr.node import Node
from dml.fleet.cache_placement import SOURCE, Point, best, spent, within
from dml.optimize.search.autocache_choice import Site
from dml.settings import Settings

LEAST_PARTS = 16  # least number of parts of an entry that can be kept separately


@dataclasses.dataclass(frozen=True)
class Worth:
    """A place where rows could be cached, and the share ``part`` of its bytes that is worth it.

    ``pipelines`` is the number of given pipelines that compute these rows, and ``fingerprint``
    identifies the cache entry. ``there`` is true if the whole entry is already stored.
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


@dataclasses.dataclass(frozen=True, repr=False)
class WorthKeeping(Displayed):
    """The places where caching rows of several pipelines saves time, and the time saved.

    All coming epochs take ``seconds`` with these caches and ``uncached_s`` without any. ``unknown``
    are places that were never measured. ``print`` it for a readable table.
    """

    places: tuple[Worth, ...]
    seconds: float
    uncached_s: float
    unknown: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes that the advised caches would add to the store."""
        return int(sum(each.part * each.nbytes for each in self.places if not each.there))

    def _parts(self) -> Iterator[str]:
        then, now = seconds_text(self.seconds), seconds_text(self.uncached_s)
        yield f"all epochs take {then} instead of {now}, with {bytes_text(self.nbytes)} kept"
        yield from map(str, self.places)
        yield from (f"not measured yet: {each}" for each in self.unknown)


class _Tree:
    """The places of several pipelines as a tree, in which places with equal rows are merged."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.names: dict[str, int] = {}
        self.labels: dict[int, str] = {}
        self.jobs: dict[int, int] = {}
        self.unknown: list[str] = []

    def add(self, choosing: Choosing) -> None:
        """Add the places of one pipeline, on all of its inputs."""
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

    def _point(self, place: CachePlace, site: Site, name: str, below: int, below_s: float) -> int:
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
    """Choose the rows of ``jobs`` to cache in ``room`` bytes; None is unlimited.

    A job is a node, its settings and its next epoch. A limited store may keep a fraction of an
    entry, which has ``parts`` parts.
    """
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
