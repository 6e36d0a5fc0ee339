"""The session opens runs: it turns a node and settings into an optimized plan and an iterator."""

from __future__ import annotations

import dataclasses
import platform
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dml.api.plan_search import GIVEN, Arrangement, arranged, planned
from dml.api.resources import (
    RunResources,
    limit_of,
    nested_settings,
    slots_of,
    verifies,
    verifying_bytes,
)
from dml.api.run_storage import keeping_of, storing_of, tiers_of, without
from dml.api.run_telemetry import (
    capability_of,
    collector_of,
    identified,
    names_of,
    parallels_of,
    prefixes_of,
)
from dml.base.fingerprint import Domain
from dml.base.host import cores, host_class
from dml.data.schema import Schema
from dml.errors import PlanError
from dml.events import Event, RunStarted, unsaid
from dml.exec.delivery.account import Account
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.meter import Tallies
from dml.exec.delivery.prefetch_depth import PrefetchDepth
from dml.exec.drivers.driver_choice import Opening
from dml.exec.memory.memory_report import MemoryReport, memory_report
from dml.exec.memory.memory_shares import demands_of, in_turn, refuse
from dml.exec.memory.spill import Spilling
from dml.exec.scheduler.baseline_policies import FUSED, as_one
from dml.exec.scheduler.shared_slots import Ledger
from dml.exec.slicing.slice_sizes import Cutting
from dml.exec.streams.plan_run import refuse_depth
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.null_check import refuse_nulls, warn_of_small_groups
from dml.exec.tasks.replay_check import impure
from dml.exec.tasks.skipped_rows import Allowance, Later
from dml.expr.flow import (
    At,
    NothingKept,
    NothingStored,
    Position,
    Spill,
    nothing_kept,
    nothing_stored,
)
from dml.expr.node import Node, tree
from dml.fleet.collector import Collector, telemetry_root
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.optimize.fingerprints import fingerprint_of, parts_of
from dml.optimize.phases import Optimized, optimize
from dml.physical.lanes import has_parallel_work
from dml.physical.operators import RunChoices
from dml.physical.plan import Plan
from dml.settings import AUTOTUNE, Autoscale, Settings, not_scaled

if TYPE_CHECKING:
    from dml.api.autocache import Choosing
    from dml.cluster.cluster_run import ClusterRun
    from dml.exec.streams.nested_run import NestedFlow
    from dml.exec.streams.read_ahead import SideBySide
    from dml.fleet.history import RunHistory
    from dml.fleet.report import RunTable

# Names everything that holds in this process only.
PROCESS = uuid.uuid4().hex
# Executors with workers on this host, which have processors and no other resources.
LOCAL = ("auto", "sync", "threads", "processes")
# Of those, the ones whose slices run side by side, on slots that all parts of a run share.
SHARING = ("auto", "threads", "processes")


def optimized(node: Node, settings: Settings) -> Optimized:
    """Return the results of all compilation phases of ``node``; cached with the node.

    Knowledge from runs (compiled kernels, whether a lifted function agrees with the original) is
    attached to the objects of the result, so that all epochs share it. The pipeline is optimized
    again if a function's behaviour changed through a global variable.
    """
    held: dict[tuple[object, ...], Optimized] = node.memo.setdefault("stations", {})
    key = (settings.seed, settings.optimize, settings.disable_rules)
    if key not in held or not all(each.stands() for each in held[key].chosen.walk()):
        refuse_depth(node)
        held[key] = planned(node, settings, without(settings))
    made = held[key]
    if settings.autocache or (made.plan.caches and made.plan.decides):
        from dml.api import autocache

        return autocache.placed(made, node, settings)
    return made


def arrangement(node: Node, settings: Settings) -> Arrangement:
    """Return the arrangement of a run of ``node``, cached until ``node`` is optimized again."""
    made = optimized(node, settings)
    if settings.executor in GIVEN:  # not cached: equal settings may name other clusters
        return arranged(made, settings, without(settings))
    held: dict[Settings, tuple[Optimized, Arrangement]]
    held = node.memo.setdefault("arrangements", {})
    if settings not in held or held[settings][0] is not made:
        held[settings] = made, arranged(made, settings, without(settings))
    return held[settings][1]


def _cluster(settings: Settings) -> ClusterRun | None:
    if settings.executor != "distributed":
        return None
    from dml.cluster.cluster_run import ClusterRun

    return ClusterRun(settings)


def fingerprint(node: Node, settings: Settings, domain: str) -> str:
    """Return ``node``'s fingerprint; raise FingerprintError if a function has no portable one."""
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
    """Return a new iterator over ``epoch`` of the pipeline; work begins with its first element.

    ``on_restore`` is called with the epoch of a position that the iterator is set to.
    """
    made = arrangement(node, settings)
    stations, plan = made.stations, made.stations.plan
    refuse_nulls(plan)
    if any(step.within_atoms for step in plan.on_blocks):
        warn_of_small_groups(plan)
    streaming, resources = streamed(node, settings, epoch, made=made)
    collector = collector_of(settings)
    if collector is not None:
        collector.start()
    account = Account(
        partial(_started, stations, made.settings, resources, epoch),
        streaming,
        tiers_of(settings).counts,
        None if collector is None else partial(_record, collector, settings),
        tuple if collector is None else partial(names_of, plan),
        complete=list if collector is None else partial(identified, stations, made.settings),
    )
    if settings.autoscale or settings.metrics_port or settings.trace_dir is not None:
        _connect(account, streaming, made.settings)
    streaming.hear(account.stalled)
    if streaming.watching is not None:
        streaming.watching.report_differences(account.warn)
    local = any(fn.reason for each in node.walk() if (fn := each.calls) is not None)
    return Elements(
        streaming,
        epoch,
        account,
        ahead=resources.ahead,
        depth=_depth(plan, settings) if resources.ahead is None else None,
        ahead_bytes=resources.budget.ahead_bytes,
        limit_bytes=resources.limit_bytes,
        table=stats,
        process=PROCESS if local else "",
        on_restore=on_restore,
    )


def _depth(plan: Plan, settings: Settings) -> PrefetchDepth | None:
    """Return the number of chunks ahead, which a run tunes; None if settings keep it."""
    if settings.tune != AUTOTUNE:
        return None
    name = f"{plan.operators[-1].digest.hex()}:ahead"
    earlier = parallels_of(settings).get(name)
    known = None if earlier is None else round(earlier.typical)
    return PrefetchDepth(name, known, batched=plan.batched)


def _record(collector: Collector, settings: Settings, event: Event) -> None:
    """Send ``event`` to telemetry, without users' values unless settings allow them."""
    collector.record(event if settings.plain_text else unsaid(event))


def _connect(account: Account, streaming: Streaming, settings: Settings) -> None:
    """Serve the run's figures, trace it, and let it scale its cluster, as the settings ask."""
    if settings.driver != "here":
        return  # the driver process does
    if settings.trace_dir is not None:
        from dml.exec.delivery import run_trace

        run_trace.traced(account, streaming, settings.trace_dir)
    if settings.metrics_port is not None:
        from dml.fleet import metrics

        metrics.serve(account, settings.metrics_port)
    if isinstance(settings.autoscale, Autoscale):
        _scale(account, streaming, settings, settings.autoscale)


def _scale(account: Account, streaming: Streaming, settings: Settings, asked: Autoscale) -> None:
    """Enable the run to scale its cluster. Raise PlanError if the executor has no cluster."""
    if settings.executor != "distributed":
        raise not_scaled(f"executor={settings.executor!r} has no workers that come and go")
    # loaded by a run that asks for it, as it loads Dask
    wait_s = settings.worker_wait_s
    from dml.cluster.autoscale import throughput

    scaling = throughput.TrainerMeter(asked, streaming, wait_s, account.warn)
    account.received, account.scaling = scaling, scaling.events


def _started(  # noqa: PLR0917 (an event, once the first are bound)
    stations: Optimized,
    settings: Settings,
    resources: RunResources,
    epoch: int,
    run: str,
    at: float,
) -> RunStarted:
    """Return the event that describes the run called ``run``, which began at time ``at``."""
    plan = stations.plan
    shape = fingerprint_of(stations.normalized, Domain.SHAPE, settings.seed)
    return RunStarted(
        run=run,
        at=at,
        job=PROCESS,
        fingerprints={"fleet": plan.fingerprint, "shape": shape},
        pipeline=tree(stations.written),
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
        prefixes=prefixes_of(stations),
    )


def _versions() -> dict[str, str]:
    return {
        "dml": getattr(sys.modules["dml"], "__version__", ""),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "python": platform.python_version(),
    }


def streamed(
    node: Node,
    settings: Settings,
    epoch: int,
    among: int = 1,
    made: Arrangement | None = None,
) -> tuple[Streaming, RunResources]:
    """Return ``epoch`` of ``node`` as a stream that is not opened yet, and the run's resources.

    ``among`` runs share the memory equally; ``made`` is the arrangement, if the caller knows it. If
    the settings say so, samples are verified.
    """
    made = arrangement(node, settings) if made is None else made
    stations, settings = made.stations, made.settings
    resources = RunResources.met(settings, stations.plan, among)
    samples = settings.verify_samples if verifies(settings) else 0
    tiers = tiers_of(settings)
    run = _begun(stations.plan, settings, resources, epoch, tiers, samples=samples)
    return (_watched(run, stations, settings) if samples else run), resources


def _begun(  # noqa: PLR0917 (a run; inside of another also that one)
    plan: Plan,
    settings: Settings,
    resources: RunResources,
    epoch: int,
    tiers: KernelTiers,
    within: Nesting | None = None,
    *,
    samples: int = 0,
) -> Streaming:
    keep, store, choosing = _caches_of(plan, settings, resources.kept_bytes, epoch)
    allowance, ledger = Allowance(settings.max_errors), None
    spilling: Callable[[Schema], Spill] = Spilling(settings.spill_dir)
    if within is not None:
        spilling, allowance = within.spilling, Later(within.allowance.most)
        ledger = None if settings.executor == "sync" else Ledger(around=within.ledger)
    allowance.overran = keep.refuse
    bounded = allowance.most is not None
    at = At(epoch, settings.seed, tiers, {}, spilling, 0, keep=keep, store=store, bounded=bounded)
    run = _streamed(plan, settings, resources, at, allowance, ledger, samples)
    if choosing is not None:
        choosing.watch(run, resources.workers)
    return run


def _caches_of(
    plan: Plan, settings: Settings, most_bytes: int, epoch: int
) -> tuple[NothingKept, NothingStored, Choosing | None]:
    """Return the element caches of a run, its stored rows, and what decides which are used.

    Caches in memory share ``most_bytes``. Warn of caches that were found to store nothing.
    """
    if not plan.caches:
        return nothing_kept, nothing_stored, None
    from dml.cache.elements.element_cache import notice

    notice(plan)
    if plan.decides:
        from dml.api import autocache

        return autocache.chosen_of(plan, settings, most_bytes, epoch)
    keep = keeping_of(plan, settings, most_bytes, epoch)
    return keep, storing_of(plan, settings, epoch), None


def _watched(run: Streaming, stations: Optimized, settings: Settings) -> Streaming:
    """Return ``run`` with checks that compare samples of rows with the plan as written."""
    naive = written_plan(stations.written, settings)
    tiers = tiers_of(dataclasses.replace(settings, kernels="numpy"))

    def fallback() -> Streaming:
        plainly = dataclasses.replace(settings, optimize=False)
        return _begun(naive, plainly, RunResources.of(plainly, naive), run.at.epoch, tiers)

    def station_texts() -> dict[str, str]:
        from dml.optimize.explain.physical_text import physical_text
        from dml.optimize.explain.stations import STATIONS, explained

        stories = {name: explained(stations, name) for name in STATIONS}
        return {**stories, "as-written": physical_text(naive)}

    from dml.verify import bundle

    bundles = bundle.Bundles(
        _bundles_folder(settings),
        settings.kernels,
        station_texts,
        stations.trace.names,
        {
            "versions": _versions(),
            "host": platform.node(),
            "host_class": host_class(),
            "options": {each: repr(value) for each, value in vars(settings).items()},
        },
    )
    from dml.verify import scope as scope_module

    scope = scope_module.scope(naive, run.plan)
    limits = settings.verify_samples, verifying_bytes(settings, limit_of(settings))
    from dml.verify import guard as guard_module

    guard = guard_module.Guard(scope, *limits, tiers, fallback, bundles)
    return dataclasses.replace(run, watching=guard)


def written_plan(node: Node, settings: Settings) -> Plan:
    """Return the plan of ``node`` as it was written."""
    return optimized(node, dataclasses.replace(settings, optimize=False)).plan


def _bundles_folder(settings: Settings) -> Path:
    """Return the folder to which verification writes a bundle for each difference that it finds."""
    if settings.verify_dir is not None:
        return Path(settings.verify_dir).expanduser()
    root = telemetry_root(settings.telemetry_dir) or telemetry_root(None)
    # a new temporary name, if the user has no folder
    return (root or Path(tempfile.gettempdir()) / f"dml-{uuid.uuid4().hex}") / "bundles"


def _streamed(  # noqa: PLR0917 (a run)
    plan: Plan,
    settings: Settings,
    resources: RunResources,
    at: At,
    allowance: Allowance,
    ledger: Ledger | None,
    samples: int = 0,
) -> Streaming:
    budget, workers = resources.budget, resources.workers
    slots = slots_of(settings, workers)
    ledger = _shared(plan, settings, slots, ledger, budget.stage_bytes)
    at = dataclasses.replace(at, budget=budget.held_bytes, hold_bytes=budget.hold_bytes)
    demands = demands_of(plan, budget)
    demands = in_turn(demands) if settings.executor == "sync" else demands
    refuse(plan, demands, slots if settings.executor in LOCAL else None, budget.stage_bytes)
    if settings.scheduler_policy == FUSED:
        plan, demands = as_one(plan, demands, budget.stage_bytes)
    cluster = _cluster(settings)
    opening = Opening(settings, slots, budget, demands, ledger, cluster, parallels_of(settings))

    def each_of(inner: Plan) -> tuple[Plan, Settings, RunResources, At]:
        return inner, settings, resources.beside(inner), at

    return Streaming(
        *(plan, at, opening, budget.target_bytes, Tallies()),
        stage_bytes=budget.stage_bytes,
        whole_bytes=budget.whole_bytes,
        atom_bytes=budget.atom_bytes,
        kept_bytes=resources.kept_bytes,
        beside=tuple(
            tuple(_streamed(*each_of(each), allowance, ledger) for each in plans)
            for plans in plan.beside
        ),
        allowance=allowance,
        cutting=Cutting.of(settings.executor, workers, budget.slice_bytes(workers)),
        choices=choices_of(plan, settings, resources, looks=at.store.looks, samples=samples),
        nested=Nesting(settings, allowance, workers, at.spill, ledger),
        cluster=cluster,
    )


def choices_of(
    plan: Plan, settings: Settings, resources: RunResources, *, looks: bool, samples: int = 0
) -> RunChoices:
    """Choose how ``plan`` runs: on a cluster, on whole units if there is one for each worker.

    Functions run on slices if a schema is unknown and a function is impure: the rows that settle
    the types must not pass through that function again. ``looks`` is True if entries of other
    caches have rows of the plan, ``samples`` the number of samples that are compared.
    """
    enough = plan.stage.source.unit_count >= resources.workers
    twice = impure(plan.on_blocks) and not all(node.schema.known for node in plan.on_blocks)
    units = settings.executor == "distributed" and enough and not twice
    units |= settings.scheduler_policy != "adaptive"  # for comparing how baselines run stages
    exchanged = 0 if samples else exchange(plan, settings, resources.budget.limit_bytes)[0]
    free = settings.executor != "sync" and not settings.deterministic
    return RunChoices(
        whole_units=units, looks=looks, exchanged=exchanged, free=free, samples=samples
    )


def every_choice(
    plan: Plan, settings: Settings, resources: RunResources, *, looks: bool, samples: int = 0
) -> dict[Plan, RunChoices]:
    """Return ``choices_of`` of ``plan``, and of each plan beside it, none of which is sampled."""
    own = {plan: samples}
    return {
        each: choices_of(
            each, settings, resources.beside(each), looks=looks, samples=own.get(each, 0)
        )
        for each in plan.all
    }


def exchange(plan: Plan, settings: Settings, limit_bytes: int) -> tuple[int, str]:
    """Return how many of the first stream operators run on workers; if none, also why not."""
    if settings.executor != "distributed":
        return 0, ""
    from dml.cluster.cluster_run import exchanged

    return exchanged(plan, settings, limit_bytes)


def _shared(
    plan: Plan,
    settings: Settings,
    slots: Mapping[str, float],
    ledger: Ledger | None,
    stage_bytes: int,
) -> Ledger | None:
    """Return the ledger shared by a plan and the plans of its inputs; None if all is sequential."""
    if ledger is None and any(map(has_parallel_work, plan.all)):
        ledger = Ledger(slots=settings.executor in SHARING)
        ledger.declare(slots)
    if ledger is not None:
        ledger.limit_bytes += stage_bytes
    return ledger


@dataclasses.dataclass(frozen=True, eq=False)
class Nesting:
    """Runs the pipelines that users' functions return, within a run with ``settings``.

    Rows lost in nested pipelines count against the ``allowance`` of the outer run. The thread that
    requests rows computes them, unless the outer run has worker processes and reads nested
    pipelines concurrently. These processes then call the functions, within the slots of ``ledger``,
    except for pipelines that are too short to benefit or cannot be sent to processes.
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
        """Open ``epoch`` of ``node`` at ``position``, with a memory limit of ``most_bytes``."""
        inner = nested_settings(self.settings, most_bytes)
        plan = optimized(node, inner).plan
        if self._sends(plan):
            with suppress(PlanError):  # they may be refused there
                sent = dataclasses.replace(inner, executor="processes", num_workers=1)
                return self._opened(plan, sent, epoch, position)
        return self._opened(plan, inner, epoch, position)

    def _sends(self, plan: Plan) -> bool:
        """Return True if worker processes should call the plan's functions."""
        if self.settings.executor != "processes" or not self.sides:
            return False
        return any(map(has_parallel_work, plan.all)) and not any(each.short for each in self.sides)

    def _opened(
        self, plan: Plan, settings: Settings, epoch: int, position: Position | None
    ) -> NestedFlow:
        from dml.exec.streams.nested_run import NestedFlow

        resources = RunResources.of(settings, plan)
        run = _begun(plan, settings, resources, epoch, tiers_of(self.settings), self)
        return NestedFlow(run, epoch, position, self.allowance)

    def reading(self, flows: int, at_once: int | None) -> SideBySide | None:
        """Return a reader that prefetches from ``flows`` flows in threads, or None."""
        from dml.exec.streams.read_ahead import side_by_side

        tunes = self.settings.tunes
        side = side_by_side(flows, self.workers, at_once, self.allowance, tunes=tunes)
        self.sides.extend([] if side is None else [side])
        return side


def fingerprint_parts(node: Node, settings: Settings, domain: str) -> str:
    """Return each operator's own fingerprint and title, one operator per line."""
    normal = optimize(node, settings.seed).normalized
    return "\n".join(f"{name[:16]}  {title}" for title, name in parts_of(normal, _domain(domain)))


def table(node: Node, settings: Settings, epoch: int) -> pa.Table:
    """Return all rows of the pipeline as an Arrow table."""
    from dml.exec.delivery.tables import record_batches

    streaming, _ = streamed(node, settings, epoch)
    batches = list(record_batches(streaming, epoch))
    schema = batches[0].schema if batches else node.schema.to_arrow()
    return pa.Table.from_batches(batches, schema=schema)


def memory(node: Node, settings: Settings, epoch: int) -> MemoryReport:
    """Return how the memory limit of a run would be divided."""
    streaming, resources = streamed(node, settings, epoch)
    return memory_report(streaming, resources.limit_bytes)


def history(node: Node, settings: Settings, count: int) -> RunHistory:
    """Return the last ``count`` recorded runs of a pipeline, with those that ended just now."""
    from dml.fleet.fleet import open_fleet

    collector = collector_of(settings)
    if collector is not None:
        collector.flush()
    fleet = open_fleet(settings.telemetry_dir)
    return fleet.history(optimized(node, settings).plan.fingerprint, count)


def stats(events: list[Event]) -> RunTable:
    """Return the work of each operator of a run: rows, bytes, seconds."""
    from dml.fleet.report import run_table

    return run_table(events)
