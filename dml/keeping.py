"""This file brings together what a run keeps: elements in memory, rows in the store, kernels."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml.exec.kept import Figures, Keeping
from dml.expr.facts import Rows
from dml.expr.flow import nothing_stored
from dml.expr.named import name_now
from dml.expr.node import Node
from dml.expr.text import as_html
from dml.kernels.fuse import Tiers, shared
from dml.optimize.families import named
from dml.optimize.names import kept_name, stored_name, unnamed
from dml.plan import Plan
from dml.settings import Settings

if TYPE_CHECKING:
    from dml.exec.store.opened import Where


@dataclasses.dataclass(frozen=True)
class Cached:
    """What one ``cache()`` holds now.

    ``name`` is what its rows are found by, in ``where``; ``parts`` of ``of`` are there, None where
    it keeps elements and no parts. ``rows`` are elements where batches are cached.
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

    @property
    def told(self) -> str:
        """How much is there, and where, in one line."""
        place = f" as {self.name[:16]} in {self.where}" if self.name else ""
        if self.parts is None:
            return f"{Figures(self.rows, self.nbytes, self.whole)}{place}"
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
    """The folder of what outlives a run: kernels, and rows that are stored."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(settings.cache_dir or f"{base}/dml").expanduser().absolute()


def tiers_of(settings: Settings) -> Tiers:
    """The process's kernels of one mode and cache folder: what one run compiled, the next has."""
    return shared(cache_folder(settings) / "kernels", settings.kernels)


def without(settings: Settings) -> frozenset[str]:
    """The rules that settings switch off; PlanError for a name that no rule and no family has."""
    return named(settings.disable_rules)


def keeping_of(plan: Plan, settings: Settings, most_bytes: int) -> Keeping:
    """What the caches of a plan keep: those in memory that are beside each other share it."""
    caches = [node for each in plan.all for node in each.stream if node.rows is Rows.KEPT]
    off = without(settings)
    made = partial(kept_name, seed=settings.seed, optimized=settings.optimize, without=off)
    stored = [node for node in caches if not node.keeps_in_memory]
    names = {node: made(node) for node in caches if node not in stored or _lasts(node)}
    where = store_of(settings) if stored else None
    return Keeping(
        names, most_bytes, where=where, describe=partial(said, tier="stream", seed=settings.seed)
    )


def store_of(settings: Settings, root: str = "") -> Where:
    """Where rows are stored: in the folder or at the URL ``root``, or in the cache folder."""
    opened = import_module("dml.exec.store.opened")
    where: Where = opened.Where(
        root or str(cache_folder(settings) / "store"),
        settings.cache_namespace,
        settings.cache_quota,
    )
    return where


def storing_of(plan: Plan, settings: Settings) -> Callable[[Node], Any]:
    """The store of a plan's stored steps; warns of those whose rows have no name that lasts."""
    steps = _stored_steps(plan)
    if not steps:
        return nothing_stored
    stored = import_module("dml.exec.stored")
    names = {}
    for node in filter(_lasts, steps):
        about = said(node, "atoms", plan.stage.source.unit_count, seed=settings.seed)
        where = store_of(settings, node.root)
        names[node.digest, node.root] = stored.Named(
            where, stored_name(node.input, settings.seed), about
        )
    storing: Callable[[Node], Any] = stored.Storing(names)
    return storing


def asked_of(plan: Plan, settings: Settings) -> tuple[Node, str] | None:
    """What the cache on disk nearest to a plan's end keeps, and its name; None without one."""
    for node in reversed(plan.operators):
        below = node.inputs[0] if node.inputs else node
        if node.rows is Rows.STORED:
            return below, stored_name(below, settings.seed)
        if node.rows is Rows.KEPT and not node.keeps_in_memory:
            off = without(settings)
            name = kept_name(node, settings.seed, optimized=settings.optimize, without=off)
            return below, name.hex()
    return None


def _stored_steps(plan: Plan) -> list[Any]:
    return [node for each in plan.all for node in each.on_blocks if node.rows is Rows.STORED]


def status(plan: Plan, settings: Settings) -> CacheStatus:
    """What each cache of a plan holds now."""
    return CacheStatus(_held(plan, settings))


def _held(plan: Plan, settings: Settings) -> Iterator[Cached]:
    storing, keep = storing_of(plan, settings), keeping_of(plan, settings, 0)
    for each in plan.all:
        for node in each.operators:
            if node.rows is Rows.STORED:
                yield _stored(storing(node), node, each)
            elif node in keep.names:
                found = keep.figures(node)
                tier = "memory" if node.keeps_in_memory else "disk"
                name, root = keep.names[node].hex(), store_of(settings).root
                place = ("", "") if node.keeps_in_memory else (name, root)
                yield Cached(
                    *(node.label(), tier, *place, None, None, found.elements, found.nbytes),
                    whole=found.whole,
                )


def _stored(entry: Any, node: Node, plan: Plan) -> Cached:
    of = plan.stage.source.unit_count
    if entry is None:  # nothing can be stored
        return Cached(node.label(), "disk", "", "", 0, of, 0, 0, whole=False)
    records = entry.store.records(entry.fingerprint)
    rows = sum(each.rows for each in records.values())
    size = sum(each.size for each in records.values())
    names = entry.fingerprint, entry.where.root, len(records), of
    return Cached(node.label(), "disk", *names, rows, size, whole=len(records) == of)


def clear(plan: Plan, settings: Settings) -> None:
    """Remove what the caches of a plan have in the store."""
    found = _held(plan, settings)
    for each in (one for one in found if one.name):
        where = store_of(settings, each.where)
        import_module("dml.exec.store.opened").store_at(where).remove(each.name)


def said(cache: Node, tier: str, parts: int | None = None, *, seed: int) -> dict[str, Any]:
    """What a store says of the rows of a cache: what they are made of, for people."""
    below = cache.inputs[0]
    telling = import_module("dml.optimize.told")
    key = seed, *(name_now(fn) for node in below.walk() if (fn := node.calls) is not None)
    known = below.__dict__.setdefault("_told", {})  # told once, while functions stay what they are
    if key not in known:
        known[key] = telling.told_in_json(telling.told(below, None, seed, quick=True))
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
    if reason:
        _warn(node, reason)
    return not reason


def _warn(node: Node, reason: str) -> None:
    text = f"{node.label()} stores nothing, since a function below it has no fingerprint: {reason}"
    warnings.warn(f'{text}; give it one with fingerprint="..."', UserWarning, stacklevel=2)
