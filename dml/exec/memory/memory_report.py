"""The memory report of a run shows how its limit was divided, and how much each part used.

Figures of stages come from the scheduling core, which accounts for every partition. The report
also has the system's figures of the process, which include memory that is not accounted for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dml.base import control_groups
from dml.base.amounts import bytes_text, count_text
from dml.base.display import Displayed
from dml.exec.memory.memory_meter import anonymous_bytes, counted_bytes, resident_bytes
from dml.exec.memory.memory_shares import OVERHEAD_BYTES, Budget

if TYPE_CHECKING:
    from dml.events import Tuned
    from dml.exec.scheduler.core import Core

ABSENT = "-"


@dataclasses.dataclass(slots=True)
class StageMemory:
    """Memory of one stage: declared, measured, and its peak, in bytes.

    ``declared_bytes`` is the declared need of a slice: a partition and its decoded inputs.
    ``learned_bytes`` is the size of the largest recent slice, None before any ended; ``slices`` is
    the number of ended slices; ``working_bytes`` is the largest temporary memory that a slice took
    while it ran. ``held_bytes`` is the peak of the stage's stored partitions.
    """

    name: str
    declared_bytes: int
    learned_bytes: int | None = None
    slices: int = 0
    held_bytes: int = 0
    working_bytes: int = 0


class Holding:
    """Memory accounts of the drivers of one plan: the running driver and those before it.

    ``changes`` are the lists to which drivers, and whoever makes chunks ahead, add what they tuned.
    """

    def __init__(self) -> None:
        self.changes: list[list[Tuned]] = []
        self.core: Core | None = None
        self.peak_bytes = self.forced = self._ended = 0
        self._beside: list[Core] = []
        self._stages: dict[tuple[str, ...], list[StageMemory]] = {}

    @property
    def stages(self) -> list[StageMemory]:
        """The figures of all stages; a driver with other stages, such as a lane's, adds its own."""
        return [each for some in self._stages.values() for each in some]

    def begin(self, core: Core) -> None:
        """Switch to the driver of ``core``; the figures of earlier drivers are kept."""
        if self.core is not None:
            self.look()
        self.core, self._ended = core, self.forced
        self.changes.append(core.tuning.changes)

    def beside(self, core: Core) -> None:
        """Add the driver of ``core``, which runs at the same time as the current ones."""
        self._beside.append(core)
        self.changes.append(core.tuning.changes)

    def look(self) -> list[StageMemory]:
        """Update the accounts from the drivers, and return the figures of all stages."""
        for core in (*((self.core,) if self.core is not None else ()), *self._beside):
            self._look_at(core)
        self._beside = [core for core in self._beside if not core.closed]
        return self.stages

    def _look_at(self, core: Core) -> None:
        self.peak_bytes = max(self.peak_bytes, core.peak_bytes)
        if core is self.core:
            self.forced = self._ended + core.forced
        of = [StageMemory(each.name, each.output_bytes + each.open_bytes) for each in core.demands]
        stages = self._stages.setdefault(tuple(each.name for each in of), of)
        for found, load in zip(stages, core.state.loads, strict=True):
            if load.samples:
                found.learned_bytes = max(load.sizes, default=0) + max(load.opens, default=0)
            found.slices, found.held_bytes = load.samples, max(found.held_bytes, load.held_bytes)
            found.working_bytes = max(found.working_bytes, load.peaks.expected())


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class MemoryReport(Displayed):
    """The division of a run's memory limit, and the memory used; ``str()`` is for people.

    Attributes
    ----------
    limit_bytes : the limit; counted memory is at most that plus ``overhead_bytes`` per process
    workers : the number of slices that run at once
    plans : for each source a dict from use to bytes: all stages, one partition, one operator that
        holds rows, batches made ahead, caches
    stages : declared, measured and peak memory of every stage, as accounted
    accounted_bytes : the most that all stages held or had reserved at once
    forced : slices that were started although they did not fit, since the run would stall otherwise
    spilled_runs, spilled_bytes : files that were spilled to disk, and their bytes
    counted_bytes : private and shared memory of this process and its children, now
    private_bytes, most_private_bytes : anonymous memory of this process, now and at most
    resident_bytes, cgroup_bytes, cgroup_limit_bytes : figures of the system; None where unknown
    """

    limit_bytes: int
    workers: int
    plans: tuple[dict[str, int], ...]
    stages: tuple[StageMemory, ...]
    accounted_bytes: int
    forced: int
    spilled_runs: int
    spilled_bytes: int
    counted_bytes: int | None
    private_bytes: int | None
    most_private_bytes: int | None
    resident_bytes: int | None
    cgroup_bytes: int | None
    cgroup_limit_bytes: int | None
    overhead_bytes: int = OVERHEAD_BYTES

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values, by field name."""
        return dataclasses.asdict(self)

    def _parts(self) -> Iterator[str]:
        return _lines(self)


def _lines(report: MemoryReport) -> Iterator[str]:
    limit, overhead = _text(report.limit_bytes), _text(report.overhead_bytes)
    yield f"memory_limit {limit} for {report.workers} workers, and {overhead} for each process"
    for number, parts in enumerate(report.plans, 1):
        of = f"source {number}" if len(report.plans) > 1 else "divided"
        yield f"{of}  " + ", ".join(f"{name} {_text(size)}" for name, size in parts.items())
    for stage in report.stages:
        learned = _text(stage.learned_bytes)
        yield (
            f"stage  {stage.name}: held {_text(stage.held_bytes)} at most; a slice was promised"
            f" {_text(stage.declared_bytes)}, took {learned}, and"
            f" {_text(stage.working_bytes)} while it ran, in {count_text(stage.slices)} slices"
        )
    yield f"accounted {_text(report.accounted_bytes)} at most, {report.forced} slices beyond it"
    yield f"spilled {_text(report.spilled_bytes)} in {report.spilled_runs} runs"
    yield (
        f"counted {_text(report.counted_bytes)} now; private {_text(report.private_bytes)} now,"
        f" {_text(report.most_private_bytes)} at most; resident {_text(report.resident_bytes)}"
    )
    if report.cgroup_limit_bytes is not None:
        yield f"cgroup {_text(report.cgroup_bytes)} of {_text(report.cgroup_limit_bytes)}"


def _text(nbytes: int | None) -> str:
    return ABSENT if nbytes is None else bytes_text(nbytes)


def memory_report(run: Any, limit_bytes: int) -> MemoryReport:
    """Return the memory report of ``run`` (a ``PlanRun``), or of the run that has replaced it."""
    runs = list(run.running.all)
    stages = [stage for each in runs for stage in each.holding.look()]
    for each in runs:
        each.meter.look(0.0)
    spilled = run.running.at.spill
    now, most = control_groups.memory()
    return MemoryReport(
        limit_bytes=limit_bytes,
        workers=max(each.open.workers for each in runs),
        plans=tuple(_parts(each.open.budget, each.kept_bytes) for each in runs),
        stages=tuple(dataclasses.replace(stage) for stage in stages),
        accounted_bytes=sum(each.holding.peak_bytes for each in runs),
        forced=sum(each.holding.forced for each in runs),
        spilled_runs=getattr(spilled, "written", 0),
        spilled_bytes=getattr(spilled, "nbytes", 0),
        counted_bytes=counted_bytes(),
        private_bytes=anonymous_bytes(),
        most_private_bytes=max(each.meter.peak_bytes for each in runs) or None,
        resident_bytes=resident_bytes(),
        cgroup_bytes=now,
        cgroup_limit_bytes=most,
    )


def _parts(budget: Budget, kept_bytes: int) -> dict[str, int]:
    return {
        "stages": budget.stage_bytes,
        "partition": budget.target_bytes,
        "operator": budget.held_bytes,
        "ahead": budget.ahead_bytes,
        "caches": kept_bytes,
    }
