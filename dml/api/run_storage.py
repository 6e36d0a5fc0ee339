"""The caches of a run are opened here: elements in memory, stored rows, compiled kernels."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dml.base.user_line import warn
from dml.cache.elements.element_cache import CacheFigures, Keeping, changed_below
from dml.expr.facts import ENDLESS, Rows
from dml.expr.flow import NothingStored, nothing_stored
from dml.expr.node import Node
from dml.expr.tree_text import as_html
from dml.io.files.file_content import unchanged_since_ns
from dml.kernels.compiled.tier_choice import KernelTiers, shared
from dml.optimize.fingerprints import asked_names, kept_name, stored_name, unnamed
from dml.physical.plan import Plan
from dml.settings import Settings, user_folder
from dml.udfs.named_function import name_now

if TYPE_CHECKING:
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


class CacheStatus(tuple[Cached, ...]):
    """The contents of the caches of a pipeline, source first; ``str()`` returns a readable text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no cache() in this pipeline"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(str(self))


def cache_folder(settings: Settings) -> Path:
    """Return the local folder of compiled kernels, and of stored rows unless these are at a URL."""
    given = settings.cache_dir or ""
    if given and "://" not in given:
        return Path(given).expanduser().absolute()
    # without a writable folder, a path at which nothing can exist
    return Path(user_folder() or f"{os.devnull}/dml")


def tiers_of(settings: Settings) -> KernelTiers:
    """Return the kernels of a mode and cache folder, which all runs of this process share."""
    return shared(cache_folder(settings), settings.kernels)


def without(settings: Settings) -> frozenset[str]:
    """Return the rules that ``settings`` disable. Raise PlanError for an unknown rule or family."""
    if not settings.disable_rules:
        return frozenset()
    from dml.optimize.rules.families import named

    return named(settings.disable_rules)


def keeping_of(plan: Plan, settings: Settings, most_bytes: int, epoch: int = 0) -> Keeping:
    """Return the element caches of ``plan``; those in memory share ``most_bytes``."""
    caches = [node for each in plan.all for node in each.stream if node.rows is Rows.KEPT]
    off = without(settings)
    made = partial(kept_name, seed=settings.seed, optimized=settings.optimize, without=off)
    stored = [node for node in caches if not node.keeps_in_memory]
    names = {node: made(node) for node in caches if node not in stored or _lasts(node)}
    where = store_of(settings) if stored else None
    told, later = (
        partial(said_of, seed=settings.seed, plain=settings.plain_text),
        partial(_later, plan, settings, epoch),
    )
    return Keeping(names, most_bytes, where=where, describe=told, later=later)


def passes_at(plan: Plan, number: int) -> float:
    """Return how many passes a run makes over the output of operator ``number``.

    The number is the product of the passes of every later ``repeat``; infinite if one is endless.
    """
    above = plan.operators[number:]
    passes = (max(1, each.passes) for each in above)
    return math.prod(math.inf if each == ENDLESS else float(each) for each in passes)


def _later(plan: Plan, settings: Settings, epoch: int, node: Node) -> float:
    """Return how often the rows at ``node`` will be read after this pass; inf if undeclared."""
    if settings.epochs is None or len([*plan.all]) > 1 or node not in plan.operators:
        return math.inf
    passes = passes_at(plan, plan.operators.index(node))
    return passes * max(1, settings.epochs - epoch) - 1


def store_of(settings: Settings, root: str = "") -> Where:
    """Return the location of the store: folder or URL ``root``, by default that of the settings."""
    from dml.cache.store import open_stores

    given, folder = settings.cache_dir or "", settings.cache_local_dir
    quotas: tuple[Any, Any] = settings.cache_local_quota, settings.cache_quota  # bytes by now
    above = given.rstrip("/") if "://" in given else str(cache_folder(settings))
    place = root or f"{above}/store"
    local = None
    if folder != "off" and (folder is not None or "://" in place):
        local = open_stores.LocalPlace(folder, quotas[0])
    where: Where = open_stores.Where(place, settings.cache_namespace, quotas[1], local)
    return where


def storing_of(
    plan: Plan, settings: Settings, epoch: int = 0, *, runs: bool = True
) -> NothingStored:
    """Return the stored rows of a plan: of its stored steps, and of the steps below disk caches.

    ``runs`` is True for a run, which looks for entries of other pipelines to reuse. Warn of steps
    whose rows have no portable fingerprint.
    """
    looking = any(_keeps_on_disk(node) for each in plan.all for node in each.stream)
    names = {}
    for each in plan.all:
        for node in each.on_blocks:
            if node.rows is Rows.STORED and _lasts(node):
                named = _named(node, each, settings, runs=runs)
                later = _later(plan, settings, epoch, node)
                key = node.digest, cast("Any", node).root
                names[key] = dataclasses.replace(named, later=later)
        top = each.stage.steps[-1] if each.stage.steps else None
        if looking and top is not None and top.rows is not Rows.STORED and not unnamed(top):
            named = _named(top, each, settings, runs=runs)
            names |= {(top.digest, ""): named} if named.looks or not runs else {}
    stored = any(node.rows is Rows.STORED for each in plan.all for node in each.on_blocks)
    if not names and not stored:
        return nothing_stored
    from dml.cache.rows.run_store import Storing

    return Storing(names)


def _named(node: Any, plan: Plan, settings: Settings, *, runs: bool) -> Any:
    """Return the name of the entry in which rows of ``node`` are stored or may be found."""
    from dml.cache.rows.entry import EntryName, entry_of

    seed, at_ns = settings.seed, unchanged_since_ns()
    below, root, about = node, "", {}
    asked = node.rows is Rows.STORED
    units = plan.stage.source.unit_count
    if asked:
        below, root = node.input, node.root
        about = describe_rows(below, "atoms", units, seed=seed, plain=settings.plain_text)
    names = asked_names(below, seed)
    drawn = node.reuse is not None  # no other pipeline has these draws of rows
    named = EntryName(
        *(store_of(settings, root), names.names[-1], about, at_ns),
        asked=None if drawn else names,
        checks=checked(settings),
    )
    if not runs or drawn:
        return named
    entry, steps = entry_of(named), below.chain()
    from dml.cache.lookup import reuse_report

    looks = reuse_report.reuses_entries(entry, steps, units, seed, asked=asked)
    return dataclasses.replace(named, looks=looks)


def checked(settings: Settings) -> bool:
    """Return True if samples of stored rows are computed again before they are used."""
    return settings.verify != "off"


def _keeps_on_disk(node: Node) -> bool:
    return node.rows is Rows.KEPT and not node.keeps_in_memory


def asked_of(plan: Plan, settings: Settings) -> tuple[Node, str, int | None] | None:
    """Return the input of a plan's last cache on disk, its entry's name and number of parts.

    The number is None for a stream, where it is not known in advance. Return None without such a
    cache.
    """
    for node in reversed(plan.operators):
        below = node.inputs[0] if node.inputs else node
        if node.rows is Rows.STORED:
            return below, stored_name(below, settings.seed), plan.stage.source.unit_count
        if _keeps_on_disk(node):
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
            found = keep.figures(node)
            entry = None if node.keeps_in_memory or found.whole else storing(top, 0)
            reuse = _describe_reusable(entry, top, plan, settings.seed)
            yield node, _streamed(found, keep.names[node].hex(), node, settings, reuse)


def _streamed(found: CacheFigures, name: str, node: Node, settings: Settings, reuse: str) -> Cached:
    """Describe the cache ``node``, which the delivering process fills; its entry is ``name``."""
    where, copied = store_of(settings), 0
    place = ("disk", name, where.root)
    if node.keeps_in_memory:
        place = ("memory", "", "")
    else:
        from dml.cache.store import open_stores

        copied = open_stores.store_at(where).copied_bytes(name)
    given = node.label(), *place, None, None, found.elements, found.nbytes
    changed = changed_below(node)
    return Cached(*given, whole=found.whole, reuse=reuse, copied=copied, changed=changed)


def _stored(entry: Any, node: Node, plan: Plan, seed: int) -> Cached:
    """Describe the cache ``node``, which workers fill; ``entry`` is None if it cannot be stored."""
    of = plan.stage.source.unit_count
    if entry is None:  # nothing can be stored
        return Cached(node.label(), "disk", "", "", 0, of, 0, 0, whole=False)
    records = entry.store.records(entry.fingerprint)
    rows = sum(each.rows for each in records.values())
    size = sum(each.size for each in records.values())
    names = entry.fingerprint, entry.where.root, len(records), of
    reuse, whole = _describe_reusable(entry, node, plan, seed), len(records) == of
    said = None if records else entry.store.quarantined(entry.fingerprint)
    from dml.cache.eviction import quarantine

    wrong = quarantine.words(said)
    copied = entry.store.copied_bytes(entry.fingerprint)
    given = node.label(), "disk", *names, rows, size
    told: dict[str, Any] = {"reuse": reuse, "quarantined": wrong, "changed": changed_below(node)}
    return Cached(*given, whole=whole, copied=copied, **told)


def _describe_reusable(entry: Any, node: Node, plan: Plan, seed: int) -> str:
    """Return a line on entries of other pipelines that ``node`` can reuse; "" if there are none."""
    from dml.cache.lookup import reuse_report

    found = None if entry is None else _finding(entry, node, plan, seed)
    units = plan.stage.source.unit_count
    return reuse_report.describe_reuse(found, units) if found else ""


def _finding(entry: Any, node: Node, plan: Plan, seed: int) -> Any:
    """Find stored rows of other pipelines for ``node``, which runs in workers; None if unknown."""
    from dml.cache.lookup import reuse_report

    steps, asked = plan.on_blocks, node.rows is Rows.STORED
    below = steps[: steps.index(node) + (not asked)]
    return reuse_report.finding_of(entry, below, seed, asked=asked)


def reused(plan: Plan, settings: Settings, root: str, namespace: str) -> str:
    """Describe entries at ``root`` that a plan's last disk cache could reuse; "" if it has none."""
    names = getattr(storing_of(plan, settings, runs=False), "names", {})
    if not names:
        return ""
    from dml.cache.store import open_stores

    where = open_stores.Where(root, namespace)
    there = {key: dataclasses.replace(named, where=where) for key, named in names.items()}
    from dml.cache.rows.run_store import Storing

    storing = Storing(there)
    on_disk = [each for each in plan.operators if each.rows is Rows.STORED or _keeps_on_disk(each)]
    nearest = on_disk[-1] if on_disk and on_disk[-1].rows is Rows.STORED else plan.on_blocks[-1]
    return _describe_reusable(storing(nearest, 0), nearest, plan, settings.seed) if on_disk else ""


def clearing(plan: Plan, settings: Settings) -> list[Callable[[], None]]:
    """For each cache entry, return a function that removes it; CacheError if one is pinned.

    Each function raises UnusableError if its entry exists and cannot be removed.
    """
    from dml.cache.eviction import pins

    found: list[Callable[[], None]] = []
    entries: list[tuple[Where, str, str]] = []
    for store, where, name in _entries(plan, settings):
        unpin = f"dml.Catalog({where.root!r}, {where.namespace!r}).unpin({name[:8]!r})"
        pins.must_not_hold(store.place, name, unpin)
        found.append(partial(store.remove, name))
        entries.append((where, name, unpin))
    if settings.executor == "distributed" and entries:
        found.insert(0, partial(_clear_workers, settings, entries))
    return found


def _clear_workers(settings: Settings, entries: list[tuple[Where, str, str]]) -> None:
    """Remove ``entries`` on the workers' machines; warn of each machine where that fails."""
    from dml.cluster import dask_driver

    for place, reason in dask_driver.cleared(settings, entries).items():
        warn(f"clear_cache could not clear what {place} keeps: {reason}", UserWarning)


def _entries(plan: Plan, settings: Settings) -> Iterator[tuple[PartStore, Where, str]]:
    """Yield the store, location and fingerprint of each entry of the plan's caches."""
    from dml.cache.lookup import reuse_report
    from dml.cache.store import open_stores

    for each in (one for _, one in cache_contents(plan, settings) if one.name):
        where = store_of(settings, each.where)
        yield open_stores.store_at(where), where, each.name
    storing = storing_of(plan, settings, runs=False)
    for one in plan.all:
        for node in (each for each in one.on_blocks if each.rows is Rows.STORED):
            entry = storing(node, 0)
            found = entry and _finding(entry, node, one, settings.seed)
            for name in reuse_report.own(found) if found else ():
                yield entry.store, entry.where, name


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
        from dml.cache.lookup import reuse_report

        lacking = reuse_report.lacking(storing, steps, cached.of, settings.seed)
        whole, told = not lacking, f"{cached.of - len(lacking):,} of {cached.of:,} parts"
    if not whole:
        wrong = cached.quarantined
        raise standing.unkept(store, f"materialize kept {told}", lost=lost, quarantined=wrong)


def _standing(settings: Settings) -> tuple[str, PartStore, Any]:
    """Return the root of the store, the store, and the module that reports on its health."""
    from dml.cache.store import health, open_stores

    where = store_of(settings)
    store = open_stores.store_at(where)
    return where.root, store, health


def said_of(cache: Node, *, seed: int, plain: bool = False) -> dict[str, Any]:
    """Return the description that the store keeps of the rows that ``cache`` stores of a stream."""
    return describe_rows(cache.inputs[0], "stream", seed=seed, plain=plain)


def describe_rows(
    below: Node, tier: str, parts: int | None = None, *, seed: int, plain: bool = False
) -> dict[str, Any]:
    """Return the description, for the store, of the operators that compute the rows of ``below``.

    ``parts`` is the entry's number of parts (None: unknown). ``plain`` shows constants as values.
    """
    from dml.optimize.explain import fingerprint_text

    telling = fingerprint_text
    key = seed, plain, *(name_now(fn) for node in below.walk() if (fn := node.calls) is not None)
    known = below.memo.setdefault("description", {})  # cached while functions are unchanged
    if key not in known:
        known[key] = telling.to_json(telling.describe(below, None, seed, quick=True), plain=plain)
    return {
        **known[key],
        "schema": str(below.schema),
        "tier": tier,
        "dml": getattr(sys.modules["dml"], "__version__", ""),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "parts": parts,
    }


def _lasts(node: Node) -> bool:
    """Return True if rows below ``node`` have a portable fingerprint; else warn of the reason."""
    reason = unnamed(node.inputs[0])
    if reason is not None:
        text = f"{node.label()} stores nothing: {reason.what}: {reason.why}; try {reason.try_}"
        warn(text, UserWarning)
    return reason is None
