"""Open the driver that the settings name; it runs the tasks of a stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from dml.exec.delivery.meter import Tallies
from dml.exec.drivers.sync import Sync, SyncFeed
from dml.exec.memory.memory_shares import Budget, in_turn
from dml.exec.scheduler.baseline_policies import policy_of
from dml.exec.scheduler.concurrency import ConcurrencyChange, Tuning
from dml.exec.scheduler.policy import Demand
from dml.exec.scheduler.shared_slots import Ledger
from dml.exec.streams.plan_run import Open
from dml.exec.tasks.job import Job
from dml.exec.tasks.slices import Options, PartitionFeed, Tasks
from dml.profile import Learned
from dml.settings import Settings

if TYPE_CHECKING:
    from dml.exec.drivers.promotion import MovingFeed, PromotingFeed


@dataclasses.dataclass(frozen=True, eq=False)
class Opening:
    """Opens a driver, with everything that is decided before the first task.

    ``slots`` are the resources of this host; a cluster knows its own. ``demands`` has one item for
    each stage. ``ledger`` is None if nothing is shared with other cores of the run. ``known`` maps
    the name of a stage to the last number of slices that ran at once in an earlier run;
    ``parallels`` maps the name in hexadecimal to that of earlier processes.
    """

    known: ClassVar[dict[bytes, ConcurrencyChange]] = {}

    settings: Settings
    slots: Mapping[str, float]
    budget: Budget
    demands: Sequence[Demand]
    ledger: Ledger | None = None
    cluster: Open | None = None
    parallels: Mapping[str, Learned] = dataclasses.field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Number of slices that run at once on this host."""
        return int(self.slots["cpu"])

    @property
    def limit_bytes(self) -> int:
        """Upper bound on the bytes of partitions, for all crews that run at the same time."""
        return self.budget.stage_bytes if self.ledger is None else self.ledger.limit_bytes

    def _tuning(self, job: Job) -> Tuning:
        """Return the tuning of ``job``, which begins with what earlier runs learned."""
        for name in job.names:
            earlier = self.parallels.get(name.hex())
            if earlier is not None and name not in self.known:
                self.known[name] = ConcurrencyChange(0, round(earlier.typical), 0.0, "")
        return Tuning(job.names, self.known, self.budget.limit_bytes)

    def __call__(
        self, tasks: Tasks, job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> SyncFeed | PromotingFeed | MovingFeed | PartitionFeed:
        """Begin the tasks of ``job`` in the driver of the settings; return their partitions."""
        demands = options.get("stages", self.demands[: 1 + len(job.links)])
        pairs = zip(demands, job.once, strict=True)
        demands = tuple(dataclasses.replace(each, once=once) for each, once in pairs)
        options |= Options(
            stages=in_turn(demands) if self.settings.executor == "sync" else demands,
            slots=self.slots,
            limit_bytes=self.limit_bytes,
            ledger=self.ledger,
            policy=policy_of(self.settings.scheduler_policy),
            watchdog_s=self.settings.watchdog_s,
            speculative=self.settings.speculative,
            tuning=self._tuning(job) if self.settings.tunes else None,
        )
        if self.settings.executor == "sync":
            return Sync().open(tasks, job.starts(tallies.mine), **options)
        if self.cluster is not None:
            return self.cluster(tasks, job, tallies, **options)
        # a run in the caller's thread needs none of their machinery
        from dml.exec.drivers.promotion import Promoting, processes  # noqa: PLC0415
        from dml.exec.drivers.threads import Threads  # noqa: PLC0415

        if self.settings.executor == "processes":
            return processes().open(tasks, job, tallies, **options)
        if self.settings.executor == "threads":
            return Threads().open(tasks, job.starts(tallies.mine), **options)
        return Promoting().open(tasks, job, tallies, **options)
