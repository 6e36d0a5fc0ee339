"""This file brings together what a run keeps: elements in memory, rows in the store, kernels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml.exec.kept import Keeping
from dml.expr.facts import Rows
from dml.expr.fingerprint import Domain
from dml.expr.flow import nothing_stored
from dml.expr.node import Node
from dml.kernels.fuse import Tiers, shared
from dml.optimize.families import named
from dml.optimize.names import kept_name, parts_of, stored_name, unnamed
from dml.plan import Plan
from dml.settings import Settings

if TYPE_CHECKING:
    from dml.exec.store.opened import Where


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


def _warn(node: Any, reason: str) -> None:
    text = f"{node.label()} stores nothing, since a function below it has no fingerprint: {reason}"
    warnings.warn(f'{text}; give it one with fingerprint="..."', UserWarning, stacklevel=2)
