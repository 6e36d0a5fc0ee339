"""The contents of a pipeline's caches are described, checked and removed here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from dml.api.run_storage import keeping_of, keeps_on_disk, store_of, storing_of, without
from dml.base.display import Displayed, Grid
from dml.base.user_line import warn
from dml.cache.elements.element_cache import CacheFigures, changed_below
from dml.cache.eviction import pins, quarantine
from dml.cache.lookup import reuse_report
from dml.cache.store import health, open_stores
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.optimize.fingerprints import kept_name, stored_name, unnamed
from dml.physical.plan import Plan
from dml.settings import Settings

if TYPE_CHECKING:
    from dml.cache.parts.entry import StoredEntry
    from dml.cache.parts.parts import PartStore
    from dml.cache.store.open_stores import Where


@dataclasses.dataclass(frozen=True)
class Cached:
    """The current contents of one ``cache()``.

    ``name`` is the fingerprint of the cached rows in the store ``where``. ``parts`` of the ``of``
    parts are stored; both are None for a cache of elements, which has no parts. ``rows`` counts
    batches if batches are cached. ``whole`` is True if all rows are stored. ``reuse`` says which
    missing parts can be computed from entries of other pipelines.
    """

    operator: str
    tier: str
    name: str
    where: str
    parts: int | None
    of: int | None
    rows: int
    nbytes: int
    whole: bool
    reuse: str = ""
    decision: str = ""
    """The decision of the next run at an ``autocache()``, and why."""
    quarantined: str = ""
    """Why the entry is neither read nor filled again before it is removed."""
    copied: int = 0
    """Bytes that are also on a local disk of this machine."""
    changed: str = ""
    """Why nothing is kept, or nothing of earlier runs is found."""

    @property
    def summary(self) -> str:
        """One line with the decision, the contents, their location, and reusable entries."""
        return "; ".join(filter(None, (self.decision, self._there, self.reuse, self.changed)))

    @property
    def _there(self) -> str:
        place = f" as {self.name[:16]} in {self.where}" if self.name else ""
        place += f", {self.copied:,} bytes of that in copies here" if self.copied else ""
        if self.parts is None:
            return f"{CacheFigures(self.rows, self.nbytes, self.whole)}{place}"
        if self.quarantined:
            return f"keeps nothing{place}, which is quarantined: {self.quarantined}"
        if not self.parts:
            return f"keeps nothing yet{place}"
        share = "all" if self.whole else f"{self.parts:,} of"
        return f"keeps {share} {self.of:,} parts, {self.rows:,} rows, {self.nbytes:,} bytes{place}"

    def __str__(self) -> str:
        return f"{self.operator}  {self.summary}"


class CacheStatus(Displayed, tuple[Cached, ...]):
    """The contents of the caches of a pipeline, source first; ``str()`` returns a readable text."""

    __slots__ = ()

    def _parts(self) -> Iterator[str | Grid]:
        if self:
            rows = [[each.operator, each.summary] for each in self]
            yield Grid(rows, texts={0, 1}, heads=0)
        else:
            yield "no cache() in this pipeline"


def asked_of(plan: Plan, settings: Settings) -> tuple[Node, str, int | None] | None:
    """Return the input of a plan's last cache on disk, its entry's name and number of parts.

    The number is None for a stream, where it is not known in advance. Return None without such a
    cache.
    """
    for node in reversed(plan.operators):
        below = node.inputs[0] if node.inputs else node
        if node.rows is Rows.STORED:
            return below, stored_name(below, settings.seed), plan.stage.source.unit_count
        if keeps_on_disk(node):
            off = without(settings)
            name = kept_name(node, settings.seed, optimized=settings.optimize, without=off)
            return below, name.hex(), None
    return None


def cache_contents(plan: Plan, settings: Settings, epoch: int = 0) -> Iterator[tuple[Node, Cached]]:
    """Yield each cache of a plan with its contents; for a cache by epoch, those of ``epoch``."""
    storing = storing_of(plan, settings, runs=False)
    for each in plan.all:
        yield from _of_plan(each, settings, storing, epoch)


def _of_plan(
    plan: Plan, settings: Settings, storing: Callable[[Node, int], Any], epoch: int
) -> Iterator[tuple[Node, Cached]]:
    """Yield as ``cache_contents`` does, for one plan without the plans of its other inputs."""
    keep, top = keeping_of(plan, settings, 0), plan.on_blocks[-1]
    for node in plan.operators:
        if node.rows is Rows.STORED:
            yield node, _stored(storing(node, epoch), node, plan, settings.seed)
        elif node in keep.names:
            found, entry = keep.figures(node), keep.entry(node)
            given = None, None, found.kept_elements, found.kept_bytes
            others = None if entry is None or found.whole else storing(top, 0)
            reuse = _describe_reusable(others, top, plan, settings.seed)
            yield node, _cached(node, entry, *given, whole=found.whole, reuse=reuse)


def _stored(entry: StoredEntry | None, node: Node, plan: Plan, seed: int) -> Cached:
    """Describe the cache ``node``, which workers fill; ``entry`` is None if it cannot be stored."""
    of = plan.stage.source.unit_count
    if entry is None:  # nothing can be stored
        return Cached(node.label(), "disk", "", "", 0, of, 0, 0, whole=False)
    records = entry.store.records(entry.fingerprint)
    rows = sum(each.rows for each in records.values())
    size = sum(each.size for each in records.values())
    reuse, whole = _describe_reusable(entry, node, plan, seed), len(records) == of
    said = None if records else entry.store.quarantined(entry.fingerprint)
    told: dict[str, Any] = {"reuse": reuse, "quarantined": quarantine.words(said)}
    return _cached(node, entry, len(records), of, rows, size, whole=whole, **told)


def _cached(node: Node, entry: StoredEntry | None, *counts: Any, **found: Any) -> Cached:
    """Describe the cache ``node``, whose rows are in ``entry``; in memory if that is None."""
    place, copied = ("memory", "", ""), 0
    if entry is not None:
        place = ("disk", entry.fingerprint, entry.where.root)
        copied = entry.store.copied_bytes(entry.fingerprint)
    told = {"copied": copied, "changed": changed_below(node), **found}
    return Cached(node.label(), *place, *counts, **told)


def _describe_reusable(entry: Any, node: Node, plan: Plan, seed: int) -> str:
    """Return a line on entries of other pipelines that ``node`` can reuse; "" if there are none."""
    found = None if entry is None else _finding(entry, node, plan, seed)
    units = plan.stage.source.unit_count
    return reuse_report.describe_reuse(found, units) if found else ""


def _finding(entry: Any, node: Node, plan: Plan, seed: int) -> Any:
    """Find stored rows of other pipelines for ``node``, which runs in workers; None if unknown."""
    steps, asked = plan.on_blocks, node.rows is Rows.STORED
    below = steps[: steps.index(node) + (not asked)]
    return reuse_report.finding_of(entry, below, seed, asked=asked)


def reused(plan: Plan, settings: Settings, root: str, namespace: str) -> str:
    """Describe entries at ``root`` that a plan's last disk cache could reuse; "" if it has none."""
    names = getattr(storing_of(plan, settings, runs=False), "names", {})
    if not names:
        return ""
    where = open_stores.Where(root, namespace)
    there = {key: dataclasses.replace(named, where=where) for key, named in names.items()}
    from dml.cache.rows.run_store import Storing

    storing = Storing(there)
    on_disk = [each for each in plan.operators if each.rows is Rows.STORED or keeps_on_disk(each)]
    nearest = on_disk[-1] if on_disk and on_disk[-1].rows is Rows.STORED else plan.on_blocks[-1]
    return _describe_reusable(storing(nearest, 0), nearest, plan, settings.seed) if on_disk else ""


def clearing(plan: Plan, settings: Settings) -> list[Callable[[], None]]:
    """For each cache entry, return a function that removes it; CacheError if one is pinned.

    Each function raises UnusableError if its entry exists and cannot be removed.
    """
    found: list[Callable[[], None]] = []
    entries: list[tuple[Where, str, str]] = []
    for entry in _entries(plan, settings):
        where, name = entry.where, entry.fingerprint
        unpin = f"dml.Catalog({where.root!r}, {where.namespace!r}).unpin({name[:8]!r})"
        pins.must_not_hold(entry.store.place, name, unpin)
        found.append(partial(entry.store.remove, name))
        entries.append((where, name, unpin))
    if settings.executor == "distributed" and entries:
        found.insert(0, partial(_clear_workers, settings, entries))
    return found


def _clear_workers(settings: Settings, entries: list[tuple[Where, str, str]]) -> None:
    """Remove ``entries`` on the workers' machines; warn of each machine where that fails."""
    from dml.cluster import dask_driver

    for place, reason in dask_driver.cleared(settings, entries).items():
        warn(f"clear_cache could not clear what {place} keeps: {reason}", UserWarning)


def _entries(plan: Plan, settings: Settings) -> Iterator[StoredEntry]:
    """Yield the entries of the plan's caches, and those that hold some of their columns alone."""
    keep, storing = keeping_of(plan, settings, 0), storing_of(plan, settings, runs=False)
    yield from filter(None, map(keep.entry, keep.entries))
    for one in plan.all:
        for node in (each for each in one.on_blocks if each.rows is Rows.STORED):
            entry = storing(node, 0)
            if entry is not None:
                yield entry
                found = _finding(entry, node, one, settings.seed)
                if found is not None:  # None if the rows are drawn anew: no other entry has them
                    yield from map(found.opened, reuse_report.own(found))


def must_keep(plan: Plan, settings: Settings) -> None:
    """Raise CacheError if the last cache of ``plan`` certainly cannot store any rows."""
    below, *_ = asked_of(plan, settings) or (plan.operators[-1],)
    reason, (_, store, standing) = unnamed(below), _standing(settings)
    if reason or store.standing.unusable:
        raise standing.unkept(store, "materialize can keep nothing", unnamed=reason)


def must_hold(plan: Plan, settings: Settings, lost: int) -> None:
    """Raise CacheError unless a plan's last cache is complete; errors cost ``lost`` rows."""
    storing, (root, store, standing) = storing_of(plan, settings, runs=False), _standing(settings)
    node, cached = [*_of_plan(plan, settings, storing, 0)][-1]
    whole, told = cached.whole, f"the first {cached.rows:,} elements of more"
    if cached.of is not None and not whole:
        if settings.executor == "distributed" and "://" not in root:
            return  # each machine has a folder of its own
        steps = plan.on_blocks[: plan.on_blocks.index(node) + 1]
        lacking = reuse_report.lacking(storing, steps, cached.of, settings.seed)
        whole, told = not lacking, f"{cached.of - len(lacking):,} of {cached.of:,} parts"
    if not whole:
        wrong = cached.quarantined
        raise standing.unkept(store, f"materialize kept {told}", lost=lost, quarantined=wrong)


def _standing(settings: Settings) -> tuple[str, PartStore, Any]:
    """Return the root of the store, the store, and the module that reports on its health."""
    where = store_of(settings)
    store = open_stores.store_at(where)
    return where.root, store, health
