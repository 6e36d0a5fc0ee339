"""Run a pipeline with each feature of dml off in turn, to measure what each is worth.

    best, kept = ablation(ds, turns=5)
    best["caching"].seconds        # an epoch without its caches; kept["parallel I/O"] is a reason

The features are those of table 5 in "tf.data", Murray et al., VLDB 2021.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import psutil

from dml.api.dataset import Dataset
from dml.errors import MemoryContractError, PlanError
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.optimize.node_rebuild import over
from dml.settings import Settings

WRITTEN, ALL = "nothing", "all of these"
CACHES = (Rows.KEPT, Rows.STORED)
# What runs one element after the other, as it was written, in the caller's thread.
SEQUENTIAL: Mapping[str, Any] = {
    "executor": "sync",
    "scheduler": None,
    "driver": "here",
    "autoscale": None,
    "prefetch": 0,
    "deterministic": True,
    "autocache": False,
    "optimize": False,
}

Missing: TypeAlias = Callable[[Node, Settings], str]
"""Returns why a feature cannot be switched off in a pipeline; "" if it can."""


def _in_parallel(_node: Node, settings: Settings) -> str:
    if settings.executor == "distributed":
        return "the cluster has its own workers"
    one = settings.executor == "sync" or settings.num_workers == 1
    return "the pipeline runs on one worker" if one else ""


def _ahead(_node: Node, settings: Settings) -> str:
    return "the pipeline has prefetch=0" if settings.prefetch == 0 else ""


def _in_any_order(_node: Node, settings: Settings) -> str:
    return "the pipeline keeps its order: deterministic=True" if settings.deterministic else ""


def _cached(node: Node, settings: Settings) -> str:
    kept = settings.autocache or any(each.rows in CACHES for each in node.walk())
    return "" if kept else "the pipeline has no cache()"


def _optimized(_node: Node, settings: Settings) -> str:
    return "" if settings.optimize else "the pipeline has optimize=False"


# Options that switch a feature off, and why that is not possible. Caches are left out besides.
FEATURES: dict[str, tuple[Mapping[str, Any], Missing]] = {
    "parallel compute": ({"num_workers": 1}, _in_parallel),
    "parallel I/O": (
        {},
        lambda _node, _settings: "workers read what they compute on; see parallel compute",
    ),
    "software pipelining": ({"prefetch": 0}, _ahead),
    "non-determinism": ({"deterministic": True}, _in_any_order),
    "caching": ({"autocache": False}, _cached),
    "static optimization": ({"optimize": False}, _optimized),
    "no intra-op parallelism": (
        {},
        lambda _node, _settings: "no option gives libraries more than a thread in a worker",
    ),
    ALL: (SEQUENTIAL, lambda _node, _settings: ""),
}


def ablation(
    ds: Dataset, turns: int, take: int | None = None, *, each_off: bool = True
) -> tuple[dict[str, MeasuredRun], dict[str, str]]:
    """Run ``ds`` with nothing off and, with ``each_off``, with each feature off, in turns.

    Return the best turns by the name of the feature, and the reasons why others cannot be off.
    Raise PlanError if ``ds`` is endless and there is no ``take``.
    """
    node = ds._node  # noqa: SLF001 - a class of this package
    if take is None and node.endless:
        raise PlanError(
            "a benchmark of an endless stream",
            at=node.label(),
            why=".repeat() without a count goes on for ever",
            try_="--take 1000, or .repeat(n)",
        )
    ways, kept = {WRITTEN: ds}, dict[str, str]()
    for name, way in (without_each(ds) if each_off else {}).items():
        if isinstance(way, str) or (refused := _refusal(way)):
            kept[name] = way if isinstance(way, str) else refused
        else:
            ways[name] = way
    return in_turns(ways, turns, take), kept


def _refusal(ds: Dataset) -> str:
    """Return why a run of ``ds`` cannot begin, such as a step that needs more; "" if it can."""
    try:
        run_once(ds, take=0)
    except (PlanError, MemoryContractError) as error:
        return error.what
    return ""


def without_each(ds: Dataset) -> dict[str, Dataset | str]:
    """Return the pipeline without each feature, or why it cannot do without, by the feature's name.

    All deliver the elements of epoch 0, in another order only if ``ds`` leaves their order free.
    """
    node, settings = ds._node, ds._settings  # noqa: SLF001 - a class of this package
    found = dict[str, Dataset | str]()
    for name, (options, missing) in FEATURES.items():
        why = missing(node, settings)
        below = _uncached(node) if name in ("caching", ALL) else node
        way = ds._with(below, settings)  # noqa: SLF001 - a class of this package
        found[name] = why or way.with_options(**options)
    return found


def _uncached(root: Node) -> Node:
    """Return the pipeline without its caches."""
    below, *rest = root.chain()
    for node in rest:
        below = _over(node, below)
    return below


def _over(node: Node, below: Node) -> Node:
    if node.rows in CACHES:
        return below
    main = node.inputs[0]
    return over(node, lambda each: below if each is main else _uncached(each))


class MeasuredRun(NamedTuple):
    """One run: its elements, seconds, and processor seconds of this process and its children."""

    elements: int
    seconds: float
    cpu_s: float


def in_turns(
    ways: Mapping[str, Iterable[Any]],
    turns: int,
    take: int | None = None,
    until: float = float("inf"),
) -> dict[str, MeasuredRun]:
    """Run each of ``ways`` once to warm up, then in ``turns`` turns; return the least seconds.

    A run ends after ``take`` elements. No turn begins after ``time.monotonic()`` reaches ``until``,
    except the first. Each turn begins with another way, since what a run leaves in the processor's
    caches counts in the next.
    """
    best = {name: run_once(way, take) for name, way in ways.items()}
    names = [*ways]
    for turn in range(turns):
        if turn and time.monotonic() > until:
            break
        first = 3 * turn % len(names)
        for name in names[first:] + names[:first]:
            found, least = run_once(ways[name], take), best[name]
            seconds, cpu_s = found.seconds, found.cpu_s
            if turn:
                seconds, cpu_s = min(seconds, least.seconds), min(cpu_s, least.cpu_s)
            best[name] = MeasuredRun(found.elements, seconds, cpu_s)
    return best


def run_once(way: Iterable[Any], take: int | None = None) -> MeasuredRun:
    """Iterate over one epoch, or its first ``take`` elements, and measure it."""
    children_s = _children_s()
    started, own_s = time.perf_counter(), time.process_time()
    iterator = iter(way)
    try:
        elements = sum(1 for _ in islice(iterator, take))
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
    seconds, own_s = time.perf_counter() - started, time.process_time() - own_s
    return MeasuredRun(elements, seconds, own_s + _children_s() - children_s)


def _children_s() -> float:
    """Return processor seconds of the children of this process, ended ones included."""
    total = sum(os.times()[2:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            total += sum(child.cpu_times()[:4])
    return total
