"""The caches of a run are opened here: elements in memory, stored rows, compiled kernels."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dml.base.user_line import warn
from dml.expr.facts import ENDLESS, Rows
from dml.expr.flow import NothingStored, nothing_stored
from dml.expr.node import Node
from dml.io.files.file_content import unchanged_since_ns
from dml.kernels.compiled.tier_choice import KernelTiers, shared
from dml.optimize.fingerprints import asked_names, kept_name, unnamed
from dml.physical.plan import Plan
from dml.settings import Settings, user_folder
from dml.udfs.named_function import name_now

if TYPE_CHECKING:
    from dml.cache.elements.element_cache import Keeping
    from dml.cache.parts.entry import EntryName
    from dml.cache.store.open_stores import Where


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
    from dml.cache.elements.element_cache import Keeping

    caches = [node for each in plan.all for node in each.stream if node.rows is Rows.KEPT]
    off = without(settings)
    made = partial(kept_name, seed=settings.seed, optimized=settings.optimize, without=off)
    names = {node: made(node) for node in caches if node.keeps_in_memory or _lasts(node)}
    return Keeping(names, most_bytes, entries=_entries_of(plan, settings, names, epoch))


def _entries_of(
    plan: Plan, settings: Settings, names: Mapping[Node, bytes], epoch: int
) -> dict[Node, EntryName]:
    """Return the entries of the element caches in ``names`` that are on disk."""
    entries = {}
    for node in filter(keeps_on_disk, names):
        from dml.cache.parts.entry import EntryName

        below, plain = node.inputs[0], settings.plain_text
        about = describe_rows(below, "stream", seed=settings.seed, plain=plain)
        later = _later(plan, settings, epoch, node)
        entries[node] = EntryName(store_of(settings), names[node].hex(), about, later=later)
    return entries


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
    return open_stores.Where(place, settings.cache_namespace, quotas[1], local)


def storing_of(
    plan: Plan, settings: Settings, epoch: int = 0, *, runs: bool = True
) -> NothingStored:
    """Return the stored rows of a plan: of its stored steps, and of the steps below disk caches.

    ``runs`` is True for a run, which looks for entries of other pipelines to reuse. Warn of steps
    whose rows have no portable fingerprint.
    """
    looking = any(keeps_on_disk(node) for each in plan.all for node in each.stream)
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
    from dml.cache.parts.entry import EntryName, entry_of

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


def keeps_on_disk(node: Node) -> bool:
    """Return True if ``node`` is a cache of elements on disk."""
    return node.rows is Rows.KEPT and not node.keeps_in_memory


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
