"""This file wires the rooms: a node and its settings become an optimized, running iterator."""

from __future__ import annotations

import dataclasses
import importlib
import platform
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa

from dml.arranging import GIVEN, Arrangement, arranged, told
from dml.costing import (
    capability_of,
    collector_of,
    estimates_of,
    gains_of,
    identified,
    names_of,
    planned,
)
from dml.errors import PlanError
from dml.events import Event, RunStarted, unsaid
from dml.exec.above import refuse_depth, ways_told
from dml.exec.account import Account
from dml.exec.baselines import FUSED, as_one
from dml.exec.budget import demands_of, in_turn, refuse
from dml.exec.deliver import Elements
from dml.exec.holding import MemoryReport, memory_report
from dml.exec.kept import notice
from dml.exec.lanes import has_parallel_work
from dml.exec.ledger import Ledger
from dml.exec.likeness import impure
from dml.exec.losses import Allowance, Later
from dml.exec.meter import Tallies
from dml.exec.nested import NestedFlow
from dml.exec.nulls import refuse_nulls
from dml.exec.opening import Opening
from dml.exec.pace import Cutting
from dml.exec.reading_ahead import SideBySide, side_by_side
from dml.exec.spill import Spilling
from dml.exec.stream import Streaming
from dml.exec.tables import record_batches
from dml.expr.fingerprint import Domain
from dml.expr.flow import At, Position, Spill
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.fleet.collect import Collector, telemetry_root
from dml.fleet.host import cores, host_class
from dml.fleet.report import RunTable, run_table
from dml.keeping import CacheStatus, keeping_of, status, storing_of, tiers_of, without
from dml.kernels.fuse import Tiers
from dml.optimize.analyze import analyzed_text, costs_text, rewrites_text
from dml.optimize.estimate import Estimate
from dml.optimize.explain import STATIONS, explained, physical_text
from dml.optimize.gains import Gain
from dml.optimize.names import fingerprint_of, parts_of
from dml.optimize.phases import Optimized, optimize
from dml.plan import Plan
from dml.resources import Resources, limit_of, nested_settings, verifies, verifying_bytes
from dml.settings import Autoscale, Settings, not_scaled

# Names everything that holds in this process only.
PROCESS = uuid.uuid4().hex
# Executors whose workers are on this host: they have processors and nothing else.
LOCAL = ("auto", "sync", "threads", "processes")
# Of those, the ones whose slices run side by side, on slots that all parts of a run share.
SHARING = ("auto", "threads", "processes")


def optimized(node: Node, settings: Settings) -> Optimized:
    """Every station of the pipeline, timed; kept with the node, so that epochs share programs.

    What running teaches about a program (compiled kernels, trust in a lifted function) is found
    again by the next iteration only if it meets the same objects. A function that has come to do
    something else, by a global that changed, is looked at anew.
    """
    held: dict[tuple[object, ...], Optimized] = node.__dict__.setdefault("_stations", {})
    key = (settings.seed, settings.optimize, settings.disable_rules, settings.autocache)
    if key not in held or not all(each.stands() for each in held[key].chosen.walk()):
        refuse_depth(node)
        plans = importlib.import_module("dml.autocaching").placed if settings.autocache else planned
        held[key] = plans(node, settings, without(settings))
    return held[key]


def arrangement(node: Node, settings: Settings) -> Arrangement:
    """How a run of ``node`` goes about it; kept with the node, so that all its epochs are alike.

    Found anew where the stations are: a function's global may have changed.
    """
    made = optimized(node, settings)
    if settings.executor in GIVEN:  # nothing to keep, and equal settings may name other clusters
        return arranged(made, settings, without(settings))
    held: dict[Settings, tuple[Optimized, Arrangement]]
    held = node.__dict__.setdefault("_arrangements", {})
    if settings not in held or held[settings][0] is not made:
        held[settings] = made, arranged(made, settings, without(settings))
    return held[settings][1]


def explain(node: Node, settings: Settings, stage: str | None) -> str:
    """The text of one station, or the story of all."""
    run = arrangement(node, settings)
    stations = run.stations
    if stage == "costs":
        return costs_text(estimated(node, settings))
    decided = partial(told, optimized(node, settings), settings, without(settings), run)
    if stage == "arranged":
        return decided()
    text = explained(stations, stage)
    if stage not in (None, "physical"):
        return text
    text += ways_told(stations.plan, settings, limit_of(settings))
    if verifies(settings):
        scope = verifying("scope").scope(_written(node, settings), stations.plan)
        text += f"\nverify  {settings.verify_samples} samples of a pass: {scope.text()}"
    text = "\n".join([text, *(f"kept    {each.told}" for each in kept(stations.plan, settings))])
    if stage is not None:
        return text
    expected = estimated(node, settings)
    parts = {"arranged": decided(), "costs": costs_text(expected)}
    text = "\n".join([text, *(f"{each}\n{textwrap.indent(parts[each], '  ')}" for each in parts)])
    return f"{text}\n{rewrites_text(stations.trace, gained(node, settings, expected))}"


def kept(plan: Plan, settings: Settings, epoch: int = 0) -> CacheStatus:
    """What every cache of a plan holds, and what the next run does where it decides that."""
    if not plan.decides:
        return status(plan, settings)
    found: CacheStatus = importlib.import_module("dml.autocaching").told(plan, settings, epoch)
    return found


def estimated(node: Node, settings: Settings) -> tuple[Estimate, ...]:
    """What every operator is expected to cost, from all that is known at this moment."""
    return estimates_of(optimized(node, settings).plan, settings)


def gained(node: Node, settings: Settings, expected: tuple[Estimate, ...]) -> tuple[Gain, ...]:
    """What every rule that made the plan is expected to save, where that costs ``expected``."""
    return gains_of(optimized(node, settings), expected, settings)


def analyzed(
    node: Node,
    settings: Settings,
    expected: tuple[Estimate, ...],
    gains: tuple[Gain, ...],
    events: list[Event],
) -> str:
    """What was ``expected`` beside what a run did; what the optimizer did, and what it gained."""
    trace = arrangement(node, settings).stations.trace
    return analyzed_text(expected, events, trace, gains)


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
    made = arrangement(node, settings)
    stations, plan = made.stations, made.stations.plan
    refuse_nulls(plan)
    if any(step.within_atoms for step in plan.on_blocks):
        importlib.import_module("dml.exec.group_sizes").warn_of_small_groups(plan)
    streaming, resources = streamed(node, settings, epoch)
    collector = collector_of(settings)
    account = Account(
        _started(stations, made.settings, resources, epoch),
        streaming,
        tiers_of(settings).counts,
        None if collector is None else partial(_record, collector, settings),
        tuple if collector is None else partial(names_of, plan),
        complete=list if collector is None else partial(identified, stations, made.settings),
    )
    if isinstance(settings.autoscale, Autoscale):
        _scale(account, streaming, made.settings, settings.autoscale)
    streaming.hear(account.stalled)
    if streaming.watching is not None:
        streaming.watching.told(account.warn)
    local = any(fn.reason for each in node.walk() if (fn := each.calls) is not None)
    return Elements(
        streaming,
        epoch,
        account,
        ahead=resources.ahead,
        ahead_bytes=resources.budget.ahead_bytes,
        limit_bytes=limit_of(made.settings),
        table=stats,
        process=PROCESS if local else "",
        on_restore=on_restore,
    )


def _record(collector: Collector, settings: Settings, event: Event) -> None:
    """Hand an event to telemetry, with texts in which users' values stand if that is wanted."""
    collector.record(event if settings.plain_text else unsaid(event))


def _scale(account: Account, streaming: Streaming, settings: Settings, asked: Autoscale) -> None:
    """Have a run decide how many workers its cluster has; PlanError where there is none."""
    if settings.executor != "distributed":
        raise not_scaled(f"executor={settings.executor!r} has no workers that come and go")
    # loaded by a run that asks for it, as it loads Dask
    trainer = importlib.import_module("dml.exec.trainer")
    scaling = trainer.Scaling(asked, streaming, settings.worker_wait_s, account.warn)
    account.received = account.scaling = scaling


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
        capability=capability_of(settings),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    return {
        "dml": getattr(sys.modules["dml"], "__version__", ""),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "python": platform.python_version(),
    }


def streamed(
    node: Node, settings: Settings, epoch: int, among: int = 1
) -> tuple[Streaming, Resources]:
    """The plan of ``node`` with a driver, kernels and budgets, and what it may use.

    That is an equal part of the memory ``among`` so many runs. Watched, if that is asked for.
    """
    made = arrangement(node, settings)
    stations, settings = made.stations, made.settings
    resources = Resources.met(settings, stations.plan, among)
    run = _begun(stations.plan, settings, resources, epoch, tiers_of(settings))
    return (_watched(run, stations, settings) if verifies(settings) else run), resources


def _begun(  # noqa: PLR0917 (a run; inside of another also that one)
    plan: Plan,
    settings: Settings,
    resources: Resources,
    epoch: int,
    tiers: Tiers,
    within: Nesting | None = None,
) -> Streaming:
    notice(plan)
    keep = keeping_of(plan, settings, resources.kept_bytes, epoch)
    store, choosing = storing_of(plan, settings, epoch), None
    if plan.decides:
        made = importlib.import_module("dml.autocaching")
        keep, store, choosing = made.chosen_of(plan, settings, keep, store, epoch)
    allowance, ledger = Allowance(settings.max_errors), None
    spilling: Callable[[Schema], Spill] = Spilling(settings.spill_dir)
    if within is not None:
        spilling, allowance = within.spilling, Later(within.allowance.most)
        ledger = None if settings.executor == "sync" else Ledger(around=within.ledger)
    bounded = allowance.most is not None
    at = At(epoch, settings.seed, tiers, {}, spilling, 0, keep=keep, store=store, bounded=bounded)
    run = _streamed(plan, settings, resources, at, allowance=allowance, ledger=ledger)
    if choosing is not None:
        choosing.watch(run, resources.workers)
    return run


def _watched(run: Streaming, stations: Optimized, settings: Settings) -> Streaming:
    """``run``, some of which is compared with the plan as it was written."""
    naive = _written(stations.written, settings)
    tiers = tiers_of(dataclasses.replace(settings, kernels="numpy"))

    def fallback() -> Streaming:
        plainly = dataclasses.replace(settings, optimize=False)
        return _begun(naive, plainly, Resources.of(plainly, naive), run.at.epoch, tiers)

    def told() -> dict[str, str]:
        stories = {name: explained(stations, name) for name in STATIONS}
        return {**stories, "as-written": physical_text(naive)}

    bundles = verifying("bundle").Bundles(
        _bundles_folder(settings),
        settings.kernels,
        told,
        stations.trace.names,
        {
            "versions": _versions(),
            "host": platform.node(),
            "host_class": host_class(),
            "options": {each: repr(value) for each, value in vars(settings).items()},
        },
    )
    scope = verifying("scope").scope(naive, run.plan)
    limits = settings.verify_samples, verifying_bytes(settings)
    guard = verifying("guard").Guard(scope, *limits, tiers, fallback, bundles)
    return dataclasses.replace(run, watching=guard)


def _written(node: Node, settings: Settings) -> Plan:
    """The plan of ``node`` as it was written."""
    return optimized(node, dataclasses.replace(settings, optimize=False)).plan


def verifying(name: str) -> ModuleType:
    """A file of what compares plans, loaded by the first run that asks for it."""
    return importlib.import_module(f"dml.exec.verify.{name}")


def _bundles_folder(settings: Settings) -> Path:
    """Where differences are written down."""
    if settings.verify_dir is not None:
        return Path(settings.verify_dir).expanduser()
    root = telemetry_root(settings.telemetry_dir) or telemetry_root(None)
    # a name that nobody can have taken, where the user has no folder
    return (root or Path(tempfile.gettempdir()) / f"dml-{uuid.uuid4().hex}") / "bundles"


def _streamed(
    plan: Plan,
    settings: Settings,
    resources: Resources,
    at: At,
    *,
    allowance: Allowance,
    ledger: Ledger | None = None,
) -> Streaming:
    budget = resources.budget
    slots = {"cpu": float(resources.workers), **dict(settings.resources or ())}
    ledger = _shared(plan, settings, slots, ledger)
    if ledger is not None:
        ledger.limit_bytes += budget.stage_bytes
    at = dataclasses.replace(at, budget=budget.held_bytes, hold_bytes=budget.hold_bytes)
    alone = settings.executor == "sync"
    demands = in_turn(demands_of(plan, budget)) if alone else demands_of(plan, budget)
    refuse(plan, demands, slots if settings.executor in LOCAL else None, budget.stage_bytes)
    if settings.scheduler_policy == FUSED:
        plan, demands = as_one(plan, demands, budget.stage_bytes)
    opening = Opening(settings, slots, budget, demands, ledger=ledger)

    def each_of(inner: Plan) -> tuple[Plan, Settings, Resources, At]:
        return inner, settings, resources.beside(inner), at

    return Streaming(
        *(plan, at, opening, budget.target_bytes, Tallies()),
        stage_bytes=budget.stage_bytes,
        whole_bytes=budget.whole_bytes,
        atom_bytes=budget.atom_bytes,
        kept_bytes=resources.kept_bytes,
        beside=tuple(
            tuple(_streamed(*each_of(each), allowance=allowance, ledger=ledger) for each in plans)
            for plans in plan.beside
        ),
        allowance=allowance,
        cutting=_cutting(plan, settings, resources),
        in_order=alone or settings.deterministic,
        nested=Nesting(settings, allowance, resources.workers, at.spill, ledger),
    )


def _cutting(plan: Plan, settings: Settings, resources: Resources) -> Cutting | None:
    """How slices are cut; on a cluster units stay where they are read, if all workers have some.

    Not if types settle by rows of units of which functions must not be called twice.
    """
    enough = plan.stage.source.unit_count >= resources.workers
    twice = impure(plan.on_blocks) and not all(node.schema.known for node in plan.on_blocks)
    units = settings.executor == "distributed" and enough and not twice
    units |= settings.scheduler_policy != "adaptive"  # others are compared by how they run stages
    most_bytes = resources.budget.slice_bytes(resources.workers)
    ahead = settings.executor != "sync"
    return Cutting(resources.workers, most_bytes, units=units, ahead=ahead)


def _shared(
    plan: Plan, settings: Settings, slots: Mapping[str, float], ledger: Ledger | None
) -> Ledger | None:
    """What the plan shares with those beside it, among its lanes, and with those inside of it."""
    if ledger is None and any(map(has_parallel_work, plan.all)):
        ledger = Ledger(slots=settings.executor in SHARING)
        ledger.taken(slots)
    return ledger


@dataclasses.dataclass(frozen=True, eq=False)
class Nesting:
    """Runs pipelines that functions give, inside of a run with ``settings`` and ``workers``.

    What they lose is within the ``allowance`` of the run. The thread that asks for rows makes them;
    but where the run has worker processes, and they are read side by side, these call functions,
    within the slots of ``ledger``. Not where they are short, or cannot be sent there.
    """

    settings: Settings
    allowance: Allowance
    workers: int = 1
    spilling: Callable[[Schema], Spill] = dataclasses.field(default_factory=Spilling)
    ledger: Ledger | None = None
    sides: list[SideBySide] = dataclasses.field(default_factory=list)

    def __call__(
        self, node: Node, epoch: int, position: Position | None, most_bytes: int
    ) -> NestedFlow:
        """The flow of ``node``."""
        inner = nested_settings(self.settings, most_bytes)
        plan = optimized(node, inner).plan
        if self._sends(plan):
            with suppress(PlanError):  # they may be refused there
                sent = dataclasses.replace(inner, executor="processes", num_workers=1)
                return self._opened(plan, sent, epoch, position)
        return self._opened(plan, inner, epoch, position)

    def _sends(self, plan: Plan) -> bool:
        """True if worker processes are to do the plan's work."""
        if self.settings.executor != "processes" or not self.sides:
            return False
        return any(map(has_parallel_work, plan.all)) and not any(each.short for each in self.sides)

    def _opened(
        self, plan: Plan, settings: Settings, epoch: int, position: Position | None
    ) -> NestedFlow:
        resources = Resources.of(settings, plan)
        run = _begun(plan, settings, resources, epoch, tiers_of(self.settings), self)
        return NestedFlow(run, epoch, position, self.allowance)

    def reading(self, flows: int, at_once: int | None) -> SideBySide | None:
        """What reads flows ahead, in threads, where there are several workers."""
        side = side_by_side(flows, self.workers, at_once, self.allowance)
        self.sides.extend([] if side is None else [side])
        return side


def fingerprint_parts(node: Node, settings: Settings, domain: str) -> str:
    """Operator by operator, the name of its own part: where two pipelines differ."""
    normal = optimize(node, settings.seed).normalized
    return "\n".join(f"{name[:16]}  {title}" for title, name in parts_of(normal, _domain(domain)))


def table(node: Node, settings: Settings, epoch: int) -> pa.Table:
    """All rows of the pipeline as an Arrow table."""
    streaming, _ = streamed(node, settings, epoch)
    batches = list(record_batches(streaming, epoch))
    schema = batches[0].schema if batches else node.schema.to_arrow()
    return pa.Table.from_batches(batches, schema=schema)


def memory(node: Node, settings: Settings, epoch: int) -> MemoryReport:
    """How the memory number of a run would be divided."""
    streaming, _ = streamed(node, settings, epoch)
    return memory_report(streaming, limit_of(settings))


def stats(events: list[Event]) -> RunTable:
    """What each operator of a run did: rows, bytes, seconds."""
    return run_table(events)
