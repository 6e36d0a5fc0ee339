"""This file brings together what a run keeps: elements in memory, rows in the store, kernels."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dml.exec.kept import Figures, Keeping, changed_below
from dml.expr.doors import warn
from dml.expr.facts import Rows
from dml.expr.flow import nothing_stored
from dml.expr.named import name_now
from dml.expr.node import Node
from dml.expr.sources.file_content import unchanged_since_ns
from dml.expr.text import as_html
from dml.kernels.fuse import Tiers, shared
from dml.optimize.families import named
from dml.optimize.names import asked_names, kept_name, stored_name, unnamed
from dml.plan import Plan
from dml.settings import Settings, user_folder

if TYPE_CHECKING:
    from dml.exec.store.opened import Where
    from dml.exec.store.parts import PartStore


@dataclasses.dataclass(frozen=True)
class Cached:
    """What one ``cache()`` holds now.

    ``name`` is what its rows are found by, in ``where``; ``parts`` of ``of`` are there, None where
    it keeps elements and no parts. ``rows`` are elements where batches are cached. ``reuse`` says
    what is taken of the entries of other pipelines for parts that are not there.
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
    """What the next run does at an ``autocache()``, and why."""
    quarantined: str = ""
    """Why nobody reads it or keeps it again, before it is removed."""
    copied: int = 0
    """Bytes that lie on a disk of this machine, too."""
    changed: str = ""
    """Why nothing is kept, or nothing of earlier runs is found."""

    @property
    def told(self) -> str:
        """What is decided, how much is there, where, and what others have of it, in one line."""
        return "; ".join(filter(None, (self.decision, self._there, self.reuse, self.changed)))

    @property
    def _there(self) -> str:
        place = f" as {self.name[:16]} in {self.where}" if self.name else ""
        place += f", {self.copied:,} bytes of that in copies here" if self.copied else ""
        if self.parts is None:
            return f"{Figures(self.rows, self.nbytes, self.whole)}{place}"
        if self.quarantined:
            return f"keeps nothing{place}, which is quarantined: {self.quarantined}"
        if not self.parts:
            return f"keeps nothing yet{place}"
        share = "all" if self.whole else f"{self.parts:,} of"
        return f"keeps {share} {self.of:,} parts, {self.rows:,} rows, {self.nbytes:,} bytes{place}"

    def __str__(self) -> str:
        return f"{self.operator}  {self.told}"


class CacheStatus(tuple[Cached, ...]):
    """What the caches of a pipeline hold, source first; ``str()`` is for people."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no cache() in this pipeline"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(str(self))


def cache_folder(settings: Settings) -> Path:
    """The folder of what outlives a run: kernels, and rows that are stored unless at a URL."""
    given = settings.cache_dir or ""
    if given and "://" not in given:
        return Path(given).expanduser().absolute()
    # the second is for who can write nowhere: nothing can be there, of others neither
    return Path(user_folder() or f"{os.devnull}/dml")


def tiers_of(settings: Settings) -> Tiers:
    """The process's kernels of one mode and cache folder: what one run compiled, the next has."""
    return shared(cache_folder(settings), settings.kernels)


def without(settings: Settings) -> frozenset[str]:
    """The rules that settings switch off; PlanError for a name that no rule and no family has."""
    return named(settings.disable_rules)


def keeping_of(plan: Plan, settings: Settings, most_bytes: int, epoch: int = 0) -> Keeping:
    """What the caches of a plan keep: those in memory that are beside each other share it."""
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
    """How often a run of a plan passes its operator ``number``, by the ``repeat`` above it."""
    above = plan.operators[number:]
    passes = [getattr(each, "n", None) for each in above if each.rows is Rows.REPEATED]
    return math.prod(math.inf if n is None else float(max(1, n)) for n in passes)


def _later(plan: Plan, settings: Settings, epoch: int, node: Node) -> float:
    """How often the rows at a node will be asked for once more, as far as anybody said so."""
    if settings.epochs is None or len([*plan.all]) > 1 or node not in plan.operators:
        return math.inf
    passes = passes_at(plan, plan.operators.index(node))
    return passes * max(1, settings.epochs - epoch) - 1


def store_of(settings: Settings, root: str = "") -> Where:
    """Where rows are stored: in the folder or at the URL ``root``, or in the cache folder."""
    opened = import_module("dml.exec.store.opened")
    given, folder = settings.cache_dir or "", settings.cache_local_dir
    above = given.rstrip("/") if "://" in given else str(cache_folder(settings))
    place = root or f"{above}/store"
    local = None
    if folder != "off" and (folder is not None or "://" in place):
        local = opened.Local(folder, settings.cache_local_quota)
    where: Where = opened.Where(place, settings.cache_namespace, settings.cache_quota, local)
    return where


def storing_of(
    plan: Plan, settings: Settings, epoch: int = 0, *, runs: bool = True
) -> Callable[[Node, int], Any]:
    """The store of a plan's stored steps, and of what is below caches that store what is above.

    Who ``runs`` looks whether others have some of that. Warns of those whose rows have no name that
    lasts.
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
    if not names:
        return nothing_stored
    storing: Callable[[Node, int], Any] = import_module("dml.exec.stored").Storing(names)
    return storing


def _named(node: Any, plan: Plan, settings: Settings, *, runs: bool) -> Any:
    """Where the rows of a stored step are kept, or those of one that is not may be found."""
    stored, seed, at_ns = import_module("dml.exec.stored"), settings.seed, unchanged_since_ns()
    below, root, about = node, "", {}
    asked = node.rows is Rows.STORED
    units = plan.stage.source.unit_count
    if asked:
        below, root = node.input, node.root
        about = said(below, "atoms", units, seed=seed, plain=settings.plain_text)
    names = asked_names(below, seed)
    drawn = getattr(node, "reuse", None) is not None  # nobody else has these draws of the rows
    named = stored.Named(
        *(store_of(settings, root), names.names[-1], about, at_ns),
        asked=None if drawn else names,
        checks=checked(settings),
    )
    if not runs or drawn:
        return named
    entry, steps = stored.entry_of(named), below.chain()
    looks = import_module("dml.exec.reuse").looks(entry, steps, units, seed, asked=asked)
    return dataclasses.replace(named, looks=looks)


def checked(settings: Settings) -> bool:
    """Whether some stored rows are computed again, before others are used."""
    return settings.verify != "off"


def _keeps_on_disk(node: Node) -> bool:
    return node.rows is Rows.KEPT and not node.keeps_in_memory


def asked_of(plan: Plan, settings: Settings) -> tuple[Node, str] | None:
    """What the cache on disk nearest to a plan's end keeps, and its name; None without one."""
    for node in reversed(plan.operators):
        below = node.inputs[0] if node.inputs else node
        if node.rows is Rows.STORED:
            return below, stored_name(below, settings.seed)
        if _keeps_on_disk(node):
            off = without(settings)
            name = kept_name(node, settings.seed, optimized=settings.optimize, without=off)
            return below, name.hex()
    return None


def status(plan: Plan, settings: Settings) -> CacheStatus:
    """What each cache of a plan holds now."""
    return CacheStatus(each for _, each in held(plan, settings))


def held(plan: Plan, settings: Settings, epoch: int = 0) -> Iterator[tuple[Node, Cached]]:
    """Each cache of a plan, and what it holds now of ``epoch``, if that matters."""
    storing = storing_of(plan, settings, runs=False)
    for each in plan.all:
        yield from _of_plan(each, settings, storing, epoch)


def _of_plan(
    plan: Plan, settings: Settings, storing: Callable[[Node, int], Any], epoch: int
) -> Iterator[tuple[Node, Cached]]:
    """The same of one plan, without those beside it."""
    keep, top = keeping_of(plan, settings, 0), plan.on_blocks[-1]
    for node in plan.operators:
        if node.rows is Rows.STORED:
            yield node, _stored(storing(node, epoch), node, plan, settings.seed)
        elif node in keep.names:
            found = keep.figures(node)
            entry = None if node.keeps_in_memory or found.whole else storing(top, 0)
            reuse = _taken(entry, top, plan, settings.seed)
            yield node, _streamed(found, keep.names[node].hex(), node, settings, reuse)


def _streamed(found: Figures, name: str, node: Node, settings: Settings, reuse: str) -> Cached:
    """What a cache over a stream holds."""
    where, copied = store_of(settings), 0
    place = ("disk", name, where.root)
    if node.keeps_in_memory:
        place = ("memory", "", "")
    else:
        copied = import_module("dml.exec.store.opened").store_at(where).copied_bytes(name)
    given = node.label(), *place, None, None, found.elements, found.nbytes
    changed = changed_below(node)
    return Cached(*given, whole=found.whole, reuse=reuse, copied=copied, changed=changed)


def _stored(entry: Any, node: Node, plan: Plan, seed: int) -> Cached:
    """What a stored step has in its ``entry``."""
    of = plan.stage.source.unit_count
    if entry is None:  # nothing can be stored
        return Cached(node.label(), "disk", "", "", 0, of, 0, 0, whole=False)
    records = entry.store.records(entry.fingerprint)
    rows = sum(each.rows for each in records.values())
    size = sum(each.size for each in records.values())
    names = entry.fingerprint, entry.where.root, len(records), of
    reuse, whole = _taken(entry, node, plan, seed), len(records) == of
    said = None if records else entry.store.quarantined(entry.fingerprint)
    wrong = import_module("dml.exec.store.quarantine").words(said)
    copied = entry.store.copied_bytes(entry.fingerprint)
    given = node.label(), "disk", *names, rows, size
    told = {"reuse": reuse, "quarantined": wrong, "changed": changed_below(node)}
    return Cached(*given, whole=whole, copied=copied, **told)


def _taken(entry: Any, node: Node, plan: Plan, seed: int) -> str:
    """What is taken of others for rows of a step of workers, in one line."""
    found = None if entry is None else _finding(entry, node, plan, seed)
    units = plan.stage.source.unit_count
    return import_module("dml.exec.reuse").told(found, units) if found else ""


def _finding(entry: Any, node: Node, plan: Plan, seed: int) -> Any:
    """What others have stored of the rows of a step of workers; None if that cannot be told."""
    steps, asked = plan.on_blocks, node.rows is Rows.STORED
    below = steps[: steps.index(node) + (not asked)]
    return import_module("dml.exec.reuse").finding_of(entry, below, seed, asked=asked)


def reused(plan: Plan, settings: Settings, root: str, namespace: str) -> str:
    """What the cache of a plan nearest to its end would take of others in a store, if it has one.

    The store may be another than that of the settings.
    """
    names = getattr(storing_of(plan, settings, runs=False), "names", {})
    if not names:
        return ""
    where = import_module("dml.exec.store.opened").Where(root, namespace)
    there = {key: dataclasses.replace(named, where=where) for key, named in names.items()}
    storing = import_module("dml.exec.stored").Storing(there)
    on_disk = [each for each in plan.operators if each.rows is Rows.STORED or _keeps_on_disk(each)]
    nearest = on_disk[-1] if on_disk and on_disk[-1].rows is Rows.STORED else plan.on_blocks[-1]
    return _taken(storing(nearest, 0), nearest, plan, settings.seed) if on_disk else ""


def clearing(plan: Plan, settings: Settings) -> list[Callable[[], None]]:
    """What removes what the caches of a plan have in the store; CacheError if one is pinned.

    Each raises UnusableError if there is something to remove, and it cannot be.
    """
    found: list[Callable[[], None]] = []
    entries: list[tuple[Where, str, str]] = []
    for store, where, name in _entries(plan, settings):
        unpin = f"dml.Catalog({where.root!r}, {where.namespace!r}).unpin({name[:8]!r})"
        import_module("dml.exec.store.pins").must_not_hold(store.place, name, unpin)
        found.append(partial(store.remove, name))
        entries.append((where, name, unpin))
    if settings.executor == "distributed" and entries:
        found.insert(0, partial(_clear_workers, settings, entries))
    return found


def _clear_workers(settings: Settings, entries: list[tuple[Where, str, str]]) -> None:
    """Have the workers remove what lies on their machines; a warning says where that failed."""
    for place, reason in import_module("dml.exec.backends.dask").cleared(settings, entries).items():
        warn(f"clear_cache could not clear what {place} keeps: {reason}", UserWarning)


def _entries(plan: Plan, settings: Settings) -> Iterator[tuple[PartStore, Where, str]]:
    """Where the caches of a plan have something, by whatever names."""
    for each in (one for _, one in held(plan, settings) if one.name):
        where = store_of(settings, each.where)
        yield import_module("dml.exec.store.opened").store_at(where), where, each.name
    storing = storing_of(plan, settings, runs=False)
    for one in plan.all:
        for node in (each for each in one.on_blocks if each.rows is Rows.STORED):
            entry = storing(node, 0)
            found = entry and _finding(entry, node, one, settings.seed)
            for name in import_module("dml.exec.reuse").own(found) if found else ():
                yield entry.store, entry.where, name


def must_keep(plan: Plan, settings: Settings) -> None:
    """CacheError if the cache nearest to a plan's end can keep nothing, as far as that is known."""
    below, _ = asked_of(plan, settings) or (plan.operators[-1], "")
    reason, (_, store, standing) = unnamed(below), _standing(settings)
    if reason or store.standing.unusable:
        raise standing.unkept(store, "materialize can keep nothing", unnamed=reason)


def must_hold(plan: Plan, settings: Settings, lost: int) -> None:
    """CacheError unless the cache nearest to a plan's end holds all of it; errors cost ``lost``."""
    storing, (root, store, standing) = storing_of(plan, settings, runs=False), _standing(settings)
    node, cached = [*_of_plan(plan, settings, storing, 0)][-1]
    whole, told = cached.whole, f"the first {cached.rows:,} elements of more"
    if cached.of is not None and not whole:
        if settings.executor == "distributed" and "://" not in root:
            return  # each machine has a folder of its own
        steps = plan.on_blocks[: plan.on_blocks.index(node) + 1]
        lacking = import_module("dml.exec.reuse").lacking(storing, steps, cached.of, settings.seed)
        whole, told = not lacking, f"{cached.of - len(lacking):,} of {cached.of:,} parts"
    if not whole:
        wrong = cached.quarantined
        raise standing.unkept(store, f"materialize kept {told}", lost=lost, quarantined=wrong)


def _standing(settings: Settings) -> tuple[str, PartStore, Any]:
    """Where the store of the settings is, the store, and the file that says how it stands."""
    where = store_of(settings)
    store = import_module("dml.exec.store.opened").store_at(where)
    return where.root, store, import_module("dml.exec.store.standing")


def said_of(cache: Node, *, seed: int, plain: bool = False) -> dict[str, Any]:
    """What a store says of the elements of a cache over a stream, for people."""
    return said(cache.inputs[0], "stream", seed=seed, plain=plain)


def said(
    below: Node, tier: str, parts: int | None = None, *, seed: int, plain: bool = False
) -> dict[str, Any]:
    """What a store says of the rows of a step: what they are made of; ``plain`` with values."""
    telling = import_module("dml.optimize.told")
    key = seed, plain, *(name_now(fn) for node in below.walk() if (fn := node.calls) is not None)
    known = below.__dict__.setdefault("_told", {})  # told once, while functions stay what they are
    if key not in known:
        known[key] = telling.told_in_json(telling.told(below, None, seed, quick=True), plain=plain)
    return {
        **known[key],
        "schema": str(below.schema),
        "tier": tier,
        "dml": getattr(sys.modules["dml"], "__version__", ""),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "parts": parts,
    }


def _lasts(node: Node) -> bool:
    """True if what is below has a name that lasts; else a warning says why not."""
    reason = unnamed(node.inputs[0])
    if reason is not None:
        text = f"{node.label()} stores nothing: {reason.what}: {reason.why}; try {reason.try_}"
        warn(text, UserWarning)
    return reason is None
