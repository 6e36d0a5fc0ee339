"""This file opens the driver that settings name: where the tasks of a stage are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dml.exec.backends.processes import Processes
from dml.exec.backends.promoting import MovingFeed, Promoting, PromotingFeed
from dml.exec.backends.sync import Feed, Sync
from dml.exec.backends.threads import Threads
from dml.exec.baselines import policy_of
from dml.exec.budget import Budget, in_turn
from dml.exec.job import Job
from dml.exec.ledger import Ledger
from dml.exec.meter import Tallies
from dml.exec.policy import Demand
from dml.exec.slices import Options, Tasks
from dml.settings import Settings


@dataclasses.dataclass(frozen=True, eq=False)
class Opening:
    """A driver with all that is decided before the first task.

    ``slots`` are those of this host; a cluster knows its own.
    """

    settings: Settings
    slots: Mapping[str, float]
    budget: Budget
    demands: Sequence[Demand]
    crews: list[Any] = dataclasses.field(default_factory=list)  # of a cluster that is to be scaled
    ledger: Ledger | None = None

    @property
    def workers(self) -> int:
        """How many slices of this host run at once."""
        return int(self.slots["cpu"])

    @property
    def limit_bytes(self) -> int:
        """Bytes of partitions, of all that works side by side."""
        return self.budget.stage_bytes if self.ledger is None else self.ledger.limit_bytes

    def __call__(
        self, tasks: Tasks, job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> Feed | PromotingFeed | MovingFeed:
        """Begin the tasks of ``job``."""
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
        )
        if self.settings.executor == "processes":
            return Processes().open(tasks, job, tallies, **options)
        if self.settings.executor == "distributed":
            # Imported here: it loads Dask, which takes half a second and needs to be installed.
            from dml.exec.backends.dask import Distributed  # noqa: PLC0415

            crews = None if self.settings.autoscale is None else self.crews
            return Distributed(self.settings, crews).open(tasks, job, tallies, **options)
        if self.settings.executor == "sync":
            return Sync().open(tasks, job.starts(tallies.mine), **options)
        if self.settings.executor == "threads":
            return Threads().open(tasks, job.starts(tallies.mine), **options)
        return Promoting().open(tasks, job, tallies, **options)
