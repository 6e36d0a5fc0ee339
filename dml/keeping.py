"""This file brings together what a run keeps: elements in memory, rows in the store, kernels."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml.exec.kept import Keeping
from dml.expr.amounts import bytes_text, count_text
from dml.expr.facts import Rows
from dml.expr.fingerprint import Domain
from dml.expr.flow import nothing_stored
from dml.expr.node import Node
from dml.expr.text import as_html
from dml.kernels.fuse import Tiers, shared
from dml.optimize.families import named
from dml.optimize.names import kept_name, parts_of, stored_name, unnamed
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

    def __str__(self) -> str:
        share = "all" if self.whole else f"{self.parts} of {self.of} parts" if self.of else "a part"
        held = f"{share}: {count_text(self.rows)} rows, {bytes_text(self.nbytes)}"
        place = f" as {self.name[:16]} in {self.where}" if self.where else ""
        return f"{self.operator}  {held if self.rows or self.whole else 'nothing'}{place}"


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
    """What the caches of a plan keep in this process; those beside each other share the memory."""
    caches = [node for each in plan.all for node in each.stream if node.rows is Rows.KEPT]
    off = without(settings)
    made = partial(kept_name, seed=settings.seed, optimized=settings.optimize, without=off)
    return Keeping({node: made(node) for node in caches}, most_bytes)


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
    steps: list[Any] = [
        node for each in plan.all for node in each.on_blocks if node.rows is Rows.STORED
    ]
    if not steps:
        return nothing_stored
    stored = import_module("dml.exec.stored")
    names = {}
    for node in steps:
        if reason := unnamed(node.input):
            _warn(node, reason)
            continue
        about = {"operators": parts_of(node.input, Domain.RESULT), "tier": "atoms"}
        where = store_of(settings, node.root)
        names[node.digest] = stored.Named(where, stored_name(node.input, settings.seed), about)
    storing: Callable[[Node], Any] = stored.Storing(names)
    return storing


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
                kept = found.elements, found.nbytes, found.whole
                yield Cached(node.label(), "memory", "", "", None, None, *kept)


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
    """Remove what the stored steps of a plan have in the store."""
    storing = storing_of(plan, settings)
    for each in plan.all:
        for node in each.on_blocks:
            entry = storing(node) if node.rows is Rows.STORED else None
            if entry is not None:
                entry.store.remove(entry.fingerprint)


def _warn(node: Any, reason: str) -> None:
    text = f"{node.label()} stores nothing, since a function below it has no fingerprint: {reason}"
    warnings.warn(f'{text}; give it one with fingerprint="..."', UserWarning, stacklevel=2)
