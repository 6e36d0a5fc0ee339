"""Draw fleets with planted chances to save, to measure how many of them advice finds.

``planted_fleet`` returns the events of ordinary runs and of runs that waste something on purpose,
with the truth about each waste: the amounts before noise. All recorded seconds have noise of 5 %.
The kinds are those of ``docs/fleet.md``; none of these runs ever took place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from dml.events import Event, OperatorTotals, RunFinished, RunStarted, Waits

START: Final = 1_770_000_000.0
DAY_S: Final = 86_400.0
DAYS: Final = 14
CORES: Final = 8
MACHINE: Final = "planted-8c"
LIMIT: Final = 8 << 30
NOISE: Final = 0.05
READ_BYTES_S: Final = 5e8
"""Bytes of a cache that one processor second reads."""
CALL_S: Final = 1e-7
"""Processor seconds of an expression on one row."""


class Chance(NamedTuple):
    """A planted waste: its kind, where it is, and what would be saved in the whole time.

    ``where`` is the fingerprint of a pipeline, or the name of a prefix of several. ``cpu_s`` are
    seconds of one processor, ``wait_s`` seconds of training loops; ``stored_bytes`` would be added
    to a store, or removed if negative.
    """

    kind: str
    where: str
    cpu_s: float = 0.0
    wait_s: float = 0.0
    stored_bytes: float = 0.0


class PlantedFleet(NamedTuple):
    """The events of all runs, and the chances among them."""

    events: list[Event]
    chances: list[Chance]


def planted_fleet(
    seed: int, kinds: Collection[str] | None = None, ordinary: int = 30
) -> PlantedFleet:
    """Return ``ordinary`` pipelines without a chance, and one chance of each of ``kinds``.

    None plants every kind with a probability of one half.
    """
    fleet = _Fleet(seed)
    for _ in range(ordinary):
        _ordinary(fleet)
    _cheap_prefix(fleet)
    if kinds is None:
        kinds = [kind for kind in PLANTS if fleet.rng.random() < 0.5]
    chances = [PLANTS[kind](fleet)._replace(kind=kind) for kind in kinds]
    return PlantedFleet(fleet.events, chances)


# -------------------------------------------------------------------------------- runs and events


@dataclass(frozen=True)
class PlantedStep:
    """An operator: processor seconds per row, rows out per row in, bytes of a row that it returns.

    ``read_s`` are the seconds per row if it is a cache that has the rows. ``facts`` are further
    fields of its event.
    """

    operator: str
    row_s: float
    keep: float = 1.0
    row_bytes: float = 1000.0
    read_s: float | None = None
    calls: bool = False
    block_rows: int = 4096
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class PlantedPipeline:
    """A pipeline and how its runs go: ``busy`` is the part of the time in which a worker works.

    ``waits`` is the part of the time in which the training loop waits. ``shared`` are names of
    prefixes by the number of their last step.
    """

    name: str
    steps: tuple[PlantedStep, ...]
    rows: int = 200_000
    executor: str = "processes"
    workers: int = CORES
    busy: float = 0.9
    waits: float = 0.01
    first_s: float = 0.5
    full: float = 0.3
    slow: float = 1.05
    shared: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))

    def cpu_s(self, first: int = 0, last: int | None = None) -> float:
        """Return the processor seconds of steps ``first`` to ``last``, of one run."""
        rows, spent = float(self.rows), 0.0
        for number, step in enumerate(self.steps):
            if first <= number and (last is None or number <= last):
                spent += rows * step.row_s
            rows *= step.keep
        return spent

    @property
    def seconds(self) -> float:
        """The seconds of one run."""
        return self.seconds_of(self.cpu_s() * self.slow)

    def seconds_of(self, work_s: float) -> float:
        """Return the seconds of a run whose operators take ``work_s`` in all workers together."""
        return work_s / (min(self.workers, CORES) * self.busy)


class _Fleet:
    """Records runs, and draws names and amounts."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.events: list[Event] = []

    def name(self) -> str:
        """Return a new fingerprint."""
        return self.rng.bytes(16).hex()

    def between(self, low: float, high: float) -> float:
        """Draw a number, evenly by its logarithm."""
        return float(np.exp(self.rng.uniform(math.log(low), math.log(high))))

    def count(self, low: int, high: int) -> int:
        """Draw a whole number from ``low`` to ``high``."""
        return int(self.rng.integers(low, high + 1))

    def noisy(self, figure: float) -> float:
        """Return the figure as a clock would have measured it."""
        return figure * float(np.exp(self.rng.normal(0.0, NOISE)))

    def day(self) -> float:
        """Draw a time of the fleet, in seconds since 1970."""
        return START + float(self.rng.uniform(0, DAYS * DAY_S))

    def several(self, pipeline: PlantedPipeline, low: int, high: int) -> int:
        """Record from ``low`` to ``high`` ordinary runs; return how many."""
        runs = self.count(low, high)
        for _ in range(runs):
            self.run(pipeline)
        return runs

    def run(
        self,
        pipeline: PlantedPipeline,
        at: float | None = None,
        job: str | None = None,
        *,
        data: str | None = None,
        result: str | None = None,
        host: str | None = None,
        status: str = "finished",
        done: float = 1.0,
        costs: float = 1.0,
        version: str = "1.0",
        epoch: int = 0,
        cached: bool = False,
        skipped: float = 0.0,
    ) -> None:
        """Record a run that did the part ``done`` of its rows at ``costs`` times the seconds.

        ``cached``: the rows are in the last cache. ``skipped`` is the part of the rows that the
        first function skips.
        """
        at = self.day() if at is None else at
        totals = self._totals(pipeline, done, costs, cached=cached, skipped=skipped)
        seconds = self.noisy(pipeline.seconds_of(sum(each.seconds for each in totals)))
        started = RunStarted(
            at=at, job=job or self.name(), epoch=epoch, host=host or self.name(),
            fingerprints={
                "fleet": pipeline.name, "data": data or self.name(), "result": result or "",
            },
            versions={"dml": version},
        )  # fmt: skip
        ended = RunFinished(
            at=at + seconds, status=status, seconds=seconds,
            error_kind="" if status == "finished" else "UserFunctionError",
        )  # fmt: skip
        self._record(pipeline, started, totals, ended)

    def _record(
        self,
        pipeline: PlantedPipeline,
        started: RunStarted,
        totals: Sequence[OperatorTotals],
        ended: RunFinished,
    ) -> None:
        """Add the events of a run, with what all runs of the pipeline have."""
        prefixes = {
            name: f"{last} {pipeline.steps[last].operator}"
            for last, name in pipeline.shared.items()
        }
        options = {
            "executor": pipeline.executor,
            "workers": str(pipeline.workers),
            "memory_limit": str(LIMIT),
        }
        last, waited = totals[-1], Waits(consumer_s=ended.seconds * pipeline.waits)
        started = replace(
            started, pipeline="\n".join(step.operator for step in reversed(pipeline.steps)),
            options=options, host_class=MACHINE, cores=CORES, capability=1.0, prefixes=prefixes,
        )  # fmt: skip
        ended = replace(
            ended, rows=last.rows_out, batches=last.rows_out // 64 + 1, bytes=last.bytes_out,
            bytes_read=totals[0].bytes_in, first_batch_s=self.noisy(pipeline.first_s),
            cpu_s=sum(each.cpu_s or 0.0 for each in totals), peak_bytes=int(LIMIT * pipeline.full),
        )  # fmt: skip
        run = self.name()
        self.events.append(replace(started, run=run))
        self.events += [replace(each, run=run, at=ended.at) for each in (*totals, waited, ended)]

    def _totals(
        self, pipeline: PlantedPipeline, done: float, costs: float, *, cached: bool, skipped: float
    ) -> list[OperatorTotals]:
        caches = [n for n, step in enumerate(pipeline.steps) if step.read_s is not None]
        first = caches[-1] if cached and caches else 0
        rows, found = pipeline.rows * done, []
        row_bytes = pipeline.steps[0].row_bytes
        for number, step in enumerate(pipeline.steps):
            lost = rows * skipped if step.calls else 0.0
            out = (rows - lost) * step.keep
            there = number >= first
            row_s = step.read_s if cached and step.read_s is not None else step.row_s
            cpu_s = self.noisy(rows * row_s * costs) if there else 0.0
            blocks = int(rows) // step.block_rows + 1 if there else 0
            cache = step.read_s is not None and there
            found.append(
                OperatorTotals(
                    ordinal=number, operator=step.operator, name=step.operator,
                    fingerprints={"fleet": f"{pipeline.name}{number}", "cost": step.operator},
                    rows_in=int(rows) * there, rows_out=int(out) * there,
                    bytes_in=int(rows * row_bytes) * there,
                    bytes_out=int(out * step.row_bytes) * there,
                    seconds=cpu_s * pipeline.slow, cpu_s=cpu_s, blocks=blocks,
                    python_calls=int(rows) * step.calls * there, skipped=int(lost),
                    lifted="no" if step.calls else "",
                    cache_hits=blocks * (cache and cached),
                    cache_misses=blocks * (cache and not cached),
                    medium="" if number else "local",
                )
            )  # fmt: skip
            found[-1] = replace(found[-1], **step.facts)
            rows, row_bytes = out, step.row_bytes
        return found


# --------------------------------------------------------------------------------------- chances


def _source(row_s: float = 1e-6, row_bytes: float = 1000.0, **facts: Any) -> PlantedStep:
    return PlantedStep("ParquetSource", row_s, row_bytes=row_bytes, facts=facts)


def _function(row_s: float, row_bytes: float = 1000.0) -> PlantedStep:
    return PlantedStep("MapRows", row_s, row_bytes=row_bytes, calls=True)


BATCH: Final = PlantedStep("Batch", 1e-7)
SHUFFLE: Final = PlantedStep("ShuffleWindow", 2e-7)


def _ordinary(fleet: _Fleet) -> PlantedPipeline:
    """Record runs of a pipeline that wastes nothing that is worth a sentence."""
    rng = fleet.rng
    steps = [_source(), _function(fleet.between(3e-5, 1e-3))]
    if rng.random() < 0.3:
        steps.append(PlantedStep("Filter", 2e-7, keep=float(rng.uniform(0.8, 1.0))))
    if rng.random() < 0.3:
        steps.append(PlantedStep("Select", 1e-8, row_bytes=float(rng.uniform(800, 1000))))
    if rng.random() < 0.3:
        steps.append(SHUFFLE)
    used = PlantedStep("Cache", 1e-6, read_s=5e-7)
    cached = rng.random() < 0.3
    steps += [used] if cached else []
    pipeline = PlantedPipeline(
        fleet.name(), (*steps, BATCH), waits=float(rng.uniform(0, 0.08)),
        busy=float(rng.uniform(0.6, 0.95)), full=float(rng.uniform(0.1, 0.7)),
        first_s=float(rng.uniform(0.1, 5)),
    )  # fmt: skip
    for number in range(fleet.count(1, 4)):
        fleet.run(pipeline, cached=cached and number > 0)
    if rng.random() < 0.2:
        fleet.run(pipeline, status="stopped", done=float(rng.uniform(0.2, 0.9)))
    return pipeline


def _cheap_prefix(fleet: _Fleet) -> None:
    """Record pipelines that share rows which are cheaper to compute than to store."""
    data, names = fleet.name(), {0: fleet.name(), 1: fleet.name()}
    steps = (_source(), _function(fleet.between(3e-5, 6e-5), 5000.0))
    for _ in range(3):
        pipeline = PlantedPipeline(fleet.name(), (*steps, SHUFFLE, BATCH), shared=names)
        fleet.run(pipeline, data=data)


def _read_again_s(rows: float, row_bytes: float) -> float:
    return rows * row_bytes / READ_BYTES_S


def _cache_prefix(fleet: _Fleet) -> Chance:
    """Several pipelines begin with the same costly function, on the same data."""
    data, names = fleet.name(), (fleet.name(), fleet.name())
    row_bytes = fleet.between(100, 2000)
    steps = (_source(), _function(fleet.between(1e-3, 1e-2), row_bytes))
    shared = {0: names[0], 1: names[1]}
    common = PlantedPipeline("", steps, shared=shared)
    runs = 0
    for _ in range(fleet.count(3, 6)):
        tail = PlantedStep(
            "Filter", 1e-7, keep=float(fleet.rng.uniform(0.8, 1)), row_bytes=row_bytes
        )
        whole = replace(common, name=fleet.name(), steps=(*steps, tail, SHUFFLE, BATCH))
        for _ in range(fleet.count(2, 5)):
            fleet.run(whole, data=data)
            runs += 1
    each = common.cpu_s() - _read_again_s(common.rows, row_bytes)
    return Chance("", names[1], (runs - 1) * each, stored_bytes=common.rows * row_bytes)


def _cache_epochs(fleet: _Fleet) -> Chance:
    """One job computes the same rows in every epoch."""
    row_bytes = fleet.between(100, 2000)
    names = {0: fleet.name(), 1: fleet.name()}
    steps = (_source(), _function(fleet.between(1e-3, 1e-2), row_bytes), SHUFFLE, BATCH)
    pipeline = PlantedPipeline(fleet.name(), steps, shared=names)
    data, job, at, epochs = fleet.name(), fleet.name(), fleet.day(), fleet.count(3, 20)
    for epoch in range(epochs):
        fleet.run(pipeline, at + 2 * epoch * pipeline.seconds, job, data=data, epoch=epoch)
    each = pipeline.cpu_s(0, 1) - _read_again_s(pipeline.rows, row_bytes)
    return Chance("", names[1], (epochs - 1) * each, stored_bytes=pipeline.rows * row_bytes)


def _unused_cache(fleet: _Fleet) -> Chance:
    """A cache is written by every run, and no run reads it."""
    cache = PlantedStep("Stored", fleet.between(5e-6, 5e-5), read_s=1e-6)
    steps = (_source(), _function(fleet.between(5e-5, 1e-3)), cache, BATCH)
    pipeline = PlantedPipeline(fleet.name(), steps)
    runs = fleet.several(pipeline, 3, 8)
    written = pipeline.rows * cache.row_bytes
    return Chance("", pipeline.name, runs * pipeline.cpu_s(2, 2), stored_bytes=-written)


def _slow_cache(fleet: _Fleet) -> Chance:
    """Reading a cache takes longer than computing its rows would."""
    row_s = fleet.between(1e-6, 1e-5)
    cache = PlantedStep("Cache", 1e-5, read_s=(row_s + 1e-6) * fleet.between(2, 6))
    steps = (_source(), PlantedStep("Segment", row_s), cache, _function(5e-5), BATCH)
    pipeline, hits = PlantedPipeline(fleet.name(), steps, rows=2_000_000), fleet.count(4, 10)
    data = fleet.name()
    for number in range(hits + 1):
        fleet.run(pipeline, data=data, cached=number > 0)
    assert cache.read_s is not None
    saved = hits * pipeline.rows * (cache.read_s - row_s - 1e-6)
    return Chance("", pipeline.name, saved, stored_bytes=-pipeline.rows * cache.row_bytes)


def _select_early(fleet: _Fleet) -> Chance:
    """Columns that are dropped in the end are read and pass a function."""
    row_bytes, kept = fleet.between(1000, 10_000), float(fleet.rng.uniform(0.05, 0.4))
    source = _source(fleet.between(2e-5, 2e-4), row_bytes)
    steps = (
        source,
        _function(1e-4, row_bytes),
        PlantedStep("Select", 1e-8, row_bytes=kept * row_bytes),
    )
    pipeline = PlantedPipeline(fleet.name(), (*steps, BATCH))
    runs = fleet.several(pipeline, 2, 8)
    return Chance("", pipeline.name, runs * pipeline.cpu_s(0, 0) * (1 - kept))


def _filter_early(fleet: _Fleet) -> Chance:
    """A filter above a costly function drops most rows."""
    keep = fleet.between(0.02, 0.4)
    steps = (
        _source(),
        _function(fleet.between(1e-4, 1e-3)),
        PlantedStep("Filter", 2e-7, keep=keep),
    )
    pipeline = PlantedPipeline(fleet.name(), (*steps, BATCH))
    runs = fleet.several(pipeline, 2, 8)
    return Chance("", pipeline.name, runs * pipeline.cpu_s(1, 1) * (1 - keep))


def _vectorize(fleet: _Fleet) -> Chance:
    """A small function is called for each of many rows."""
    steps = (_source(), _function(fleet.between(1.5e-6, 8e-6)), BATCH)
    pipeline = PlantedPipeline(fleet.name(), steps, rows=fleet.count(2_000_000, 20_000_000))
    runs = fleet.several(pipeline, 2, 6)
    saved = runs * (pipeline.cpu_s(1, 1) - pipeline.rows * CALL_S)
    return Chance("", pipeline.name, saved)


def _processes(fleet: _Fleet) -> Chance:
    """Threads take turns in a Python function, and the training loop waits."""
    steps = (_source(), _function(fleet.between(2e-4, 2e-3)), BATCH)
    pipeline = PlantedPipeline(
        fleet.name(), steps, executor="threads", busy=1 / CORES,
        waits=float(fleet.rng.uniform(0.4, 0.9)),
    )  # fmt: skip
    runs = fleet.several(pipeline, 2, 6)
    waited = runs * pipeline.seconds * pipeline.waits
    return Chance("", pipeline.name, wait_s=waited * (1 - 1 / CORES))


def _oversubscribed(fleet: _Fleet) -> Chance:
    """Several jobs of one machine have more workers than it has cores."""
    steps = (_source(), _function(fleet.between(2e-4, 2e-3)), BATCH)
    jobs = fleet.count(2, 5)
    pipeline = PlantedPipeline(
        fleet.name(), steps, slow=float(jobs), waits=float(fleet.rng.uniform(0.3, 0.6))
    )
    host, at = fleet.name(), fleet.day()
    for _ in range(jobs):
        fleet.run(pipeline, at + float(fleet.rng.uniform(0, 0.05)) * pipeline.seconds, host=host)
    waited = jobs * pipeline.seconds * pipeline.waits
    return Chance("", pipeline.name, wait_s=waited * (1 - 1 / jobs))


def _duplicate_jobs(fleet: _Fleet) -> Chance:
    """Several jobs make the same batches at the same time."""
    steps = (_source(), SHUFFLE, _function(fleet.between(1e-4, 1e-3)), BATCH)
    pipeline = PlantedPipeline(fleet.name(), steps)
    jobs, at, result, data = fleet.count(2, 6), fleet.day(), fleet.name(), fleet.name()
    for _ in range(jobs):
        start = at + float(fleet.rng.uniform(0, 0.3)) * pipeline.seconds
        fleet.run(pipeline, start, data=data, result=result)
    return Chance("", pipeline.name, (jobs - 1) * pipeline.cpu_s())


def _waiting_trainer(fleet: _Fleet) -> Chance:
    """The training loop waits, although all workers are busy."""
    steps = (_source(), _function(fleet.between(1e-4, 1e-3)), BATCH)
    pipeline = PlantedPipeline(fleet.name(), steps, waits=float(fleet.rng.uniform(0.25, 0.9)))
    runs = fleet.several(pipeline, 2, 6)
    return Chance("", pipeline.name, wait_s=runs * pipeline.seconds * pipeline.waits)


def _idle_workers(fleet: _Fleet) -> Chance:
    """A few workers would do the work of many."""
    steps = (_source(), _function(fleet.between(1e-3, 3e-3)), BATCH)
    busy = float(fleet.rng.uniform(0.03, 0.2))
    pipeline = PlantedPipeline(fleet.name(), steps, busy=busy, waits=0.001)
    runs = fleet.several(pipeline, 2, 6)
    needed = max(1.0, math.ceil(1.5 * busy * CORES))
    return Chance("", pipeline.name, runs * pipeline.seconds * (CORES - needed))


def _memory_limit(fleet: _Fleet) -> Chance:
    """Workers stand still because the memory is full, and the training loop waits."""
    steps = (_source(), _function(fleet.between(1e-4, 1e-3)), BATCH)
    pipeline = PlantedPipeline(
        fleet.name(), steps, busy=float(fleet.rng.uniform(0.2, 0.5)), full=0.97,
        waits=float(fleet.rng.uniform(0.2, 0.7)),
    )  # fmt: skip
    runs = fleet.several(pipeline, 2, 6)
    return Chance("", pipeline.name, wait_s=runs * pipeline.seconds * pipeline.waits)


def _failing(fleet: _Fleet) -> Chance:
    """A pipeline fails every time."""
    steps = (_source(), _function(fleet.between(1e-4, 1e-3)), BATCH)
    pipeline, runs, done = PlantedPipeline(fleet.name(), steps), fleet.count(3, 10), 0.0
    for _ in range(runs):
        part = float(fleet.rng.uniform(0.2, 0.9))
        fleet.run(pipeline, status="failed", done=part)
        done += part
    return Chance("", pipeline.name, done * pipeline.cpu_s())


def _restarts(fleet: _Fleet) -> Chance:
    """Runs that fail are begun again from the first row."""
    steps = (_source(), SHUFFLE, _function(fleet.between(1e-4, 1e-3)), BATCH)
    pipeline, at, lost = PlantedPipeline(fleet.name(), steps), fleet.day(), 0.0
    data = fleet.name()
    for _ in range(fleet.count(1, 4)):
        part = float(fleet.rng.uniform(0.4, 0.95))
        fleet.run(pipeline, at, data=data, status="failed", done=part)
        lost += part
        at += 2 * pipeline.seconds
    fleet.run(pipeline, at, data=data)
    return Chance("", pipeline.name, lost * pipeline.cpu_s())


def _skipped_rows(fleet: _Fleet) -> Chance:
    """A function fails on some rows, which are skipped."""
    steps = (_source(), _function(fleet.between(1e-4, 1e-3)), BATCH)
    pipeline, runs = PlantedPipeline(fleet.name(), steps), fleet.count(2, 6)
    skipped = fleet.between(0.005, 0.2)
    for _ in range(runs):
        fleet.run(pipeline, skipped=skipped)
    return Chance("", pipeline.name, runs * skipped * pipeline.cpu_s(0, 1))


def _slow_start(fleet: _Fleet) -> Chance:
    """All rows are made before the first batch, because they are shuffled as a whole."""
    shuffle = PlantedStep("ShuffleAll", 2e-6)
    steps = (_source(), _function(fleet.between(1e-3, 3e-3)), shuffle, BATCH)
    pipeline = PlantedPipeline(fleet.name(), steps)
    part, runs = float(fleet.rng.uniform(0.3, 0.8)), fleet.count(2, 6)
    first_s = part * pipeline.seconds
    slow = replace(pipeline, first_s=first_s, waits=part + 0.01)
    for _ in range(runs):
        fleet.run(slow)
    return Chance("", pipeline.name, wait_s=runs * first_s)


def _small_files(fleet: _Fleet) -> Chance:
    """A source opens thousands of tiny files."""
    row_s = fleet.between(2e-5, 2e-4)
    source = replace(_source(row_s), block_rows=fleet.count(5, 40))
    pipeline = PlantedPipeline(fleet.name(), (source, _function(1e-4), BATCH))
    runs = fleet.several(pipeline, 2, 8)
    return Chance("", pipeline.name, runs * pipeline.rows * (row_s - 1e-6))


def _remote_reads(fleet: _Fleet) -> Chance:
    """Jobs of one machine read the same objects again and again, and wait for them."""
    source = _source(2e-6, medium="remote")
    steps = (source, SHUFFLE, _function(fleet.between(5e-4, 2e-3)), BATCH)
    pipeline = PlantedPipeline(
        fleet.name(), steps, busy=float(fleet.rng.uniform(0.3, 0.8)),
        waits=float(fleet.rng.uniform(0.3, 0.8)), shared={0: fleet.name()},
    )  # fmt: skip
    host, data, runs = fleet.name(), fleet.name(), fleet.count(3, 8)
    at = START + float(fleet.rng.uniform(0, 6)) * DAY_S
    for number in range(runs):
        fleet.run(pipeline, at + 2 * number * pipeline.seconds, data=data, host=host)
    waited = (runs - 1) * pipeline.seconds * pipeline.waits
    return Chance("", pipeline.name, wait_s=waited, stored_bytes=pipeline.rows * source.row_bytes)


def _slower(fleet: _Fleet) -> Chance:
    """A pipeline needs more processor time per row since another version runs it."""
    steps = (_source(), _function(fleet.between(1e-4, 1e-3)), BATCH)
    pipeline, factor = PlantedPipeline(fleet.name(), steps), fleet.between(1.5, 4)
    runs = fleet.count(6, 12)
    for number in range(runs):
        early, late = START + number * 3600, START + 7 * DAY_S + number * 3600
        fleet.run(pipeline, early, version="1.0")
        fleet.run(pipeline, late, version="1.1", costs=factor)
    return Chance("", pipeline.name, runs * pipeline.cpu_s() * (factor - 1))


PLANTS: Final[Mapping[str, Callable[[_Fleet], Chance]]] = {
    "cache-prefix": _cache_prefix,
    "cache-epochs": _cache_epochs,
    "unused-cache": _unused_cache,
    "slow-cache": _slow_cache,
    "select-early": _select_early,
    "filter-early": _filter_early,
    "vectorize": _vectorize,
    "processes": _processes,
    "oversubscribed": _oversubscribed,
    "duplicate-jobs": _duplicate_jobs,
    "waiting-trainer": _waiting_trainer,
    "idle-workers": _idle_workers,
    "memory-limit": _memory_limit,
    "failing": _failing,
    "restarts": _restarts,
    "skipped-rows": _skipped_rows,
    "slow-start": _slow_start,
    "small-files": _small_files,
    "remote-reads": _remote_reads,
    "slower": _slower,
}
"""What plants each kind of chance."""
