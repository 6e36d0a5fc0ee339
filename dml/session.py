"""This file wires the rooms: a node and its settings become an optimized, running iterator."""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dml.errors import PlanError
from dml.events import Event, Operator, RunFinished, RunStarted
from dml.exec.backends.sync import Sync
from dml.exec.backends.threads import Threads
from dml.exec.deliver import Elements
from dml.exec.nulls import refuse_nulls
from dml.exec.spill import DiskSpill
from dml.exec.stream import Feed, Streaming, Tallies
from dml.expr.fingerprint import Domain
from dml.expr.flow import CHUNK, At
from dml.expr.node import Node
from dml.fleet.collect import Collector, telemetry_root
from dml.fleet.report import RunTable, run_table
from dml.fleet.host import cgroup_bytes, cores, host_class, machine_bytes
from dml.kernels.fuse import Tiers
from dml.optimize.explain import explained
from dml.optimize.names import fingerprint_of, parts_of
from dml.optimize.phases import Optimized, optimize
from dml.plan import Plan
from dml.settings import AUTOTUNE, Settings

# Names everything that holds in this process only.
PROCESS = uuid.uuid4().hex
MIB = 1 << 20
# Parts of the memory number: partitions between workers and consumer; one stream operator.
STAGE_SHARE = 0.5
STREAM_SHARE = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """Settings with every "auto" decided for this machine."""

    workers: int
    limit_bytes: int
    target_bytes: int
    ahead: int

    @staticmethod
    def of(settings: Settings) -> Resources:
        """Cores that this process may use, a quarter of its memory, partitions to match."""
        workers = cores() if settings.num_workers == AUTOTUNE else int(settings.num_workers)
        workers = 1 if settings.executor == "sync" else workers
        limit = _limit(settings)
        target = settings.target_partition_bytes
        if target == AUTOTUNE:
            target = max(256 << 10, min(16 * MIB, int(limit * STAGE_SHARE) // (6 * workers)))
        ahead = 0
        if settings.prefetch != AUTOTUNE and settings.executor != "sync":
            ahead = int(settings.prefetch)
        return Resources(workers, limit, int(target), ahead)


def _limit(settings: Settings) -> int:
    if settings.memory_limit != AUTOTUNE:
        return int(settings.memory_limit)
    known = [size for size in (machine_bytes(), cgroup_bytes()) if size]
    return min(known) // 4 if known else 1024 * MIB


def optimized(node: Node, settings: Settings) -> Optimized:
    """Every station of the pipeline, timed."""
    return optimize(node, settings.seed, rewriting=settings.optimize, clock=time.perf_counter)


def explain(node: Node, settings: Settings, stage: str | None) -> str:
    """The text of one station, or the story of all."""
    return explained(optimized(node, settings), stage)


def fingerprint(node: Node, settings: Settings, domain: str) -> str:
    """The canonical fingerprint; FingerprintError if a function has no portable name."""
    for each in node.walk():
        fn = getattr(each, "fn", None)
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


def run(
    node: Node, settings: Settings, epoch: int, on_restore: Callable[[int], None]
) -> Elements:
    """A new iterator over ``epoch`` of the pipeline; work begins with its first element."""
    stations = optimized(node, settings)
    plan = stations.plan
    refuse_nulls(plan)
    resources = Resources.of(settings)
    streaming = streamed(plan, settings, resources, epoch)
    report = Report(stations, settings, streaming, epoch, resources)
    local = any(getattr(each, "fn", None) and each.fn.reason for each in node.walk())
    return Elements(
        streaming,
        epoch,
        report,
        ahead=resources.ahead,
        process=PROCESS if local else "",
        on_restore=on_restore,
    )


def streamed(plan: Plan, settings: Settings, resources: Resources, epoch: int) -> Streaming:
    """The plan with a driver, kernels and budgets."""
    tiers = tiers_of(settings)
    at = At(
        epoch, settings.seed, tiers, {}, DiskSpill, int(resources.limit_bytes * STREAM_SHARE)
    )
    opening = partial(_opened, settings, resources)
    return Streaming(plan, at, opening, resources.target_bytes, Tallies())


_TIERS: dict[tuple[str, str], Tiers] = {}


def tiers_of(settings: Settings) -> Tiers:
    """The process's kernels of one mode and cache folder: what one run compiled, the next has."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = settings.cache_dir or f"{base}/dml"
    key = (folder, settings.kernels)
    if key not in _TIERS:
        _TIERS[key] = Tiers(Path(folder) / "kernels", settings.kernels)
    return _TIERS[key]


def _opened(
    settings: Settings, resources: Resources, tasks: Sequence[Any], start: Any, *, settling: bool
) -> Feed:
    driver = Sync() if settings.executor == "sync" else Threads()
    return driver.open(
        tasks,
        start,
        slots=resources.workers,
        limit_bytes=int(resources.limit_bytes * STAGE_SHARE),
        ordered=True,
        settling=settling,
        watchdog_s=settings.watchdog_s,
    )


class Report:
    """Counts what one run did, and hands its events to the telemetry store."""

    def __init__(
        self, stations: Optimized, settings: Settings, streaming: Streaming, epoch: int,
        resources: Resources,
    ) -> None:
        self.stations, self.settings, self.streaming = stations, settings, streaming
        self.run = uuid.uuid4().hex
        self.rows = self.nbytes = self.elements = 0
        self.started = time.perf_counter()
        self.events: list[Event] = [self._start(epoch, resources)]
        self.status = ""

    def _start(self, epoch: int, resources: Resources) -> RunStarted:
        shape = fingerprint_of(self.stations.normalized, Domain.SHAPE, self.settings.seed)
        return RunStarted(
            run=self.run,
            at=time.time(),
            job=PROCESS,
            fingerprints={"fleet": self.stations.plan.fingerprint, "shape": shape},
            pipeline=explained(self.stations, "written"),
            epoch=epoch,
            options={
                "executor": self.settings.executor,
                "workers": str(resources.workers),
                "memory_limit": str(resources.limit_bytes),
            },
            datasets=1,
            host_class=host_class(),
            cores=os.cpu_count(),
        )

    def delivered(self, rows: int, nbytes: int) -> None:
        """Count one element."""
        self.rows += rows
        self.nbytes += nbytes
        self.elements += 1

    def finished(self, status: str, error: BaseException | None) -> None:
        """Close the books and publish them, once."""
        if self.status:
            return
        self.status = status
        kind = "" if error is None else type(error).__name__
        self.events += self.totals()
        self.events.append(self._finish(status, kind))
        collector = collector_of(self.settings)
        if collector is not None:
            for event in self.events:
                collector.record(event)

    def totals(self) -> tuple[Event, ...]:
        """What each operator of the stage did so far."""
        operators = [
            Operator(ordinal=i, operator=type(node).__name__, name=node.title()[:200])
            for i, node in enumerate(
                (self.stations.plan.stage.source, *self.stations.plan.stage.steps)
            )
        ]
        return self.streaming.tallies.total().totals(operators, run=self.run, at=time.time())

    def _finish(self, status: str, kind: str) -> RunFinished:
        return RunFinished(
            run=self.run,
            at=time.time(),
            status=status,
            rows=self.rows,
            bytes=self.nbytes,
            seconds=time.perf_counter() - self.started,
            error_kind=kind,
        )

    def so_far(self) -> list[Event]:
        """The events of the run, finished or not."""
        if self.status:
            return list(self.events)
        return [*self.events, *self.totals(), self._finish("running", "")]


_COLLECTORS: dict[str, Collector] = {}


def collector_of(settings: Settings) -> Collector | None:
    """The process's writer into the telemetry store; None when telemetry is off."""
    root = telemetry_root(settings.telemetry_dir)
    if root is None:
        return None
    return _COLLECTORS.setdefault(str(root), Collector(root))


def fingerprint_parts(node: Node, settings: Settings, domain: str) -> str:
    """Operator by operator, the name of its own part: where two pipelines differ."""
    normal = optimize(node, settings.seed).normalized
    return "\n".join(f"{name[:16]}  {title}" for title, name in parts_of(normal, _domain(domain)))


def table(node: Node, settings: Settings, epoch: int) -> pa.Table:
    """All rows of the pipeline as an Arrow table."""
    streaming = streamed(
        optimized(node, settings).plan, settings, Resources.of(settings), epoch
    )
    flow = streaming.flow(epoch, None)
    batches = []
    try:
        while (block := flow.pull(CHUNK)) is not None:
            batches.append(block.to_arrow())
    finally:
        flow.close()
    schema = batches[0].schema if batches else node.schema.to_arrow()
    return pa.Table.from_batches(batches, schema=schema)


def stats(events: list[Event]) -> RunTable:
    """What each operator of a run did: rows, bytes, seconds."""
    return run_table(events)
