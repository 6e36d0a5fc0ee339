"""This file wires the rooms: a node and its settings become an optimized, running iterator."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from dml.costing import by_cost, collector_of, estimates_of, names_of
from dml.errors import PlanError
from dml.events import Event, RunStarted
from dml.exec.account import Account
from dml.exec.budget import Budget, demands_of, divided, in_turn, kept_bytes, refuse
from dml.exec.deliver import Elements
from dml.exec.kept import Keeping
from dml.exec.losses import Allowance
from dml.exec.meter import Tallies
from dml.exec.nulls import refuse_nulls
from dml.exec.opening import Opening
from dml.exec.spill import DiskSpill
from dml.exec.stream import Streaming
from dml.exec.tables import record_batches
from dml.expr.facts import Rows
from dml.expr.fingerprint import Domain
from dml.expr.flow import At
from dml.expr.node import Node
from dml.fleet.host import cgroup_bytes, cores, host_class, machine_bytes
from dml.fleet.report import RunTable, run_table
from dml.kernels.fuse import Tiers, shared
from dml.optimize.analyze import analyzed_text, costs_text
from dml.optimize.estimate import Estimate
from dml.optimize.explain import explained
from dml.optimize.names import fingerprint_of, kept_name, parts_of
from dml.optimize.phases import Optimized, optimize
from dml.plan import Plan
from dml.settings import AUTOTUNE, Settings

# Names everything that holds in this process only.
PROCESS = uuid.uuid4().hex
MIB = 1 << 20
# Calls of the deepest operators take up to 6 of Python's 1000 frames, and the caller has some.
DEEPEST = 120
# Executors whose workers are on this host: they have processors and nothing else.
LOCAL = ("sync", "threads", "processes")


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """Settings with every "auto" decided for this machine and this plan."""

    workers: int
    budget: Budget
    ahead: int
    target: int | None = None
    kept_bytes: int = 0

    @staticmethod
    def of(settings: Settings, plan: Plan) -> Resources:
        """Cores that this process may use, a quarter of its memory, partitions to match."""
        workers = cores() if settings.num_workers == AUTOTUNE else int(settings.num_workers)
        workers = 1 if settings.executor == "sync" else workers
        target = settings.target_partition_bytes
        asked = None if target == AUTOTUNE else int(target)
        ahead = 0
        if settings.prefetch != AUTOTUNE and settings.executor != "sync":
            ahead = int(settings.prefetch)
        # what runs side by side has equal parts of the memory number
        limit = _limit(settings) // sum(1 for _ in plan.all)
        kept = sum(kept_bytes(each, limit) for each in plan.all)
        return Resources(workers, divided(plan, limit, workers, asked), ahead, asked, kept)

    def beside(self, plan: Plan) -> Resources:
        """The same for a plan beside the chain."""
        budget = divided(plan, self.budget.limit_bytes, self.workers, self.target)
        return dataclasses.replace(self, budget=budget)


def _limit(settings: Settings) -> int:
    if settings.memory_limit != AUTOTUNE:
        return int(settings.memory_limit)
    known = [size for size in (machine_bytes(), cgroup_bytes()) if size]
    return min(known) // 4 if known else 1024 * MIB


def optimized(node: Node, settings: Settings) -> Optimized:
    """Every station of the pipeline, timed; kept with the node, so that epochs share programs.

    What running teaches about a program (compiled kernels, trust in a lifted function) is found
    again by the next iteration only if it meets the same objects.
    """
    held: dict[tuple[int, bool], Optimized] = node.__dict__.setdefault("_stations", {})
    key = (settings.seed, settings.optimize)
    if key not in held:
        _refuse_depth(node)
        held[key] = optimize(
            node, settings.seed, rewriting=settings.optimize, clock=time.perf_counter
        )
        held[key] = by_cost(held[key], settings)
    return held[key]


def _refuse_depth(node: Node) -> None:
    """PlanError for more operators, one in another, than a run's stack of calls can hold."""
    depths: dict[int, int] = {}
    for each in node.walk():
        below = max((depths[id(child)] for child in each.inputs), default=0)
        depths[id(each)] = below + (bool(each.inputs) and not each.rows.local)
        if depths[id(each)] > DEEPEST:
            raise PlanError(
                f"more than {DEEPEST} operators see the stream one above the other",
                at=each.label(),
                why="each waits for the one below it, and Python bounds how deep calls may go",
                try_="ds.mix(*others) of many inputs at once, or .write_parquet(...) half way",
            )


def explain(node: Node, settings: Settings, stage: str | None) -> str:
    """The text of one station, or the story of all."""
    stations = optimized(node, settings)
    if stage == "costs":
        return costs_text(estimated(node, settings))
    text = explained(stations, stage)
    if stage not in (None, "physical"):
        return text
    keep = keeping_of(stations.plan, settings, 0)
    text = "\n".join([text, *(f"kept    {keep.figures(node)}" for node in keep.names)])
    if stage is not None:
        return text
    return f"{text}\ncosts\n{textwrap.indent(costs_text(estimated(node, settings)), '  ')}"


def estimated(node: Node, settings: Settings) -> tuple[Estimate, ...]:
    """What every operator is expected to cost, from all that is known at this moment."""
    return estimates_of(optimized(node, settings).plan, settings)


def analyzed(
    node: Node, settings: Settings, expected: tuple[Estimate, ...], events: list[Event]
) -> str:
    """What was ``expected`` beside what a run did, and what the optimizer did."""
    return analyzed_text(expected, events, optimized(node, settings).trace)


def fingerprint(node: Node, settings: Settings, domain: str) -> str:
    """The canonical fingerprint; FingerprintError if a function has no portable name."""
    for each in node.walk():
        fn = each.calls
        if fn is not None and fn.reason:
            raise fn.refusal().located(each.label())
    normal = optimize(node, settings.seed).normalized
    return fingerprint_of(normal, _domain(domain), settings.seed)


def _domain(name: str) -> Domain:
    known = [each.value for each in Domain]
    if name not in known:
        raise PlanError(
            f"there is no fingerprint for {name!r}",
            why=f"fingerprints are for {', '.join(known)}",
            try_='"result", which names the bytes that come out',
        )
    return Domain(name)


def run(node: Node, settings: Settings, epoch: int, on_restore: Callable[[int], None]) -> Elements:
    """A new iterator over ``epoch`` of the pipeline; work begins with its first element."""
    stations = optimized(node, settings)
    plan = stations.plan
    refuse_nulls(plan)
    resources = Resources.of(settings, plan)
    streaming = streamed(plan, settings, resources, epoch)
    collector = collector_of(settings)
    account = Account(
        _started(stations, settings, resources, epoch),
        streaming,
        tiers_of(settings).counts,
        None if collector is None else collector.record,
        tuple if collector is None else partial(names_of, plan),
    )
    streaming.hear(account.stalled)
    local = any(fn.reason for each in node.walk() if (fn := each.calls) is not None)
    return Elements(
        streaming,
        epoch,
        account,
        ahead=resources.ahead,
        ahead_bytes=resources.budget.ahead_bytes,
        process=PROCESS if local else "",
        on_restore=on_restore,
    )


def _started(
    stations: Optimized, settings: Settings, resources: Resources, epoch: int
) -> RunStarted:
    plan = stations.plan
    shape = fingerprint_of(stations.normalized, Domain.SHAPE, settings.seed)
    return RunStarted(
        run=uuid.uuid4().hex,
        at=time.time(),
        job=PROCESS,
        fingerprints={"fleet": plan.fingerprint, "shape": shape},
        pipeline=explained(stations, "written"),
        epoch=epoch,
        options={
            "executor": settings.executor,
            "workers": str(resources.workers),
            "memory_limit": str(resources.budget.limit_bytes),
        },
        datasets=sum(not each.inputs for each in stations.normalized.walk()),
        host=platform.node(),
        host_class=host_class(),
        cores=cores(),
        versions={
            "dml": getattr(sys.modules["dml"], "__version__", ""),
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
            "python": platform.python_version(),
        },
    )


def streamed(plan: Plan, settings: Settings, resources: Resources, epoch: int) -> Streaming:
    """The plan with a driver, kernels and budgets."""
    keep = keeping_of(plan, settings, resources.kept_bytes)
    at = At(epoch, settings.seed, tiers_of(settings), {}, DiskSpill, 0, keep=keep)
    return _streamed(plan, settings, resources, at, Allowance(settings.max_errors))


def _streamed(
    plan: Plan, settings: Settings, resources: Resources, at: At, allowance: Allowance
) -> Streaming:
    budget = resources.budget
    at = dataclasses.replace(at, budget=budget.held_bytes, hold_bytes=budget.held_bytes)
    demands = demands_of(plan, budget)
    demands = in_turn(demands) if settings.executor == "sync" else demands
    slots = {"cpu": float(resources.workers)} if settings.executor in LOCAL else None
    refuse(plan, demands, slots, budget.stage_bytes)
    opening = Opening(settings, resources.workers, budget, demands)
    return Streaming(
        *(plan, at, opening, budget.target_bytes, Tallies()),
        stage_bytes=budget.stage_bytes,
        whole_bytes=budget.whole_bytes,
        atom_bytes=budget.atom_bytes,
        kept_bytes=resources.kept_bytes,
        beside=tuple(
            tuple(
                _streamed(each, settings, resources.beside(each), at, allowance) for each in plans
            )
            for plans in plan.beside
        ),
        allowance=allowance,
    )


def keeping_of(plan: Plan, settings: Settings, most_bytes: int) -> Keeping:
    """What the caches of a plan keep in this process; those beside each other share the memory."""
    caches = [node for each in plan.all for node in each.stream if node.rows is Rows.KEPT]
    made = partial(kept_name, seed=settings.seed, optimized=settings.optimize)
    return Keeping({node: made(node) for node in caches}, most_bytes)


def tiers_of(settings: Settings) -> Tiers:
    """The process's kernels of one mode and cache folder: what one run compiled, the next has."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = settings.cache_dir or f"{base}/dml"
    return shared(Path(folder) / "kernels", settings.kernels)


def fingerprint_parts(node: Node, settings: Settings, domain: str) -> str:
    """Operator by operator, the name of its own part: where two pipelines differ."""
    normal = optimize(node, settings.seed).normalized
    return "\n".join(f"{name[:16]}  {title}" for title, name in parts_of(normal, _domain(domain)))


def table(node: Node, settings: Settings, epoch: int) -> pa.Table:
    """All rows of the pipeline as an Arrow table."""
    plan = optimized(node, settings).plan
    streaming = streamed(plan, settings, Resources.of(settings, plan), epoch)
    batches = list(record_batches(streaming, epoch))
    schema = batches[0].schema if batches else node.schema.to_arrow()
    return pa.Table.from_batches(batches, schema=schema)


def stats(events: list[Event]) -> RunTable:
    """What each operator of a run did: rows, bytes, seconds."""
    return run_table(events)
