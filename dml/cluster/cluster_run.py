"""A run on a Dask cluster: its driver, and the operators that workers execute in two rounds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Unpack

from dml.exec.drivers.driver_choice import Opening
from dml.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dml.cluster.dask_crew import DaskCrew
    from dml.exec.delivery.meter import Tallies
    from dml.exec.streams.stream import Streaming
    from dml.exec.tasks.job import Job
    from dml.exec.tasks.slices import Options, PartitionFeed, Tasks
    from dml.expr.flow import Opener
    from dml.expr.node import Node


@dataclasses.dataclass(frozen=True, eq=False)
class ClusterRun:
    """The cluster of a run, and the ``crews`` it opened, collected only if workers are scaled.

    A call begins the tasks of a job on the cluster.
    """

    settings: Settings
    crews: list[DaskCrew] = dataclasses.field(default_factory=list)

    def __call__(
        self, tasks: Tasks, job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> PartitionFeed:
        # Imported here, as this loads Dask, which takes half a second and may not be installed.
        from dml.cluster.dask_driver import open_crew  # noqa: PLC0415

        crews = [] if self.settings.autoscale is None else self.crews
        return open_crew(self.settings, crews, tasks, job, tallies, **options)

    def exchange(self, run: Streaming, nodes: Sequence[Node], *, finishing: bool) -> Opener:
        """Return the opener of the output of ``nodes``, the first stream operators of ``run``."""
        from dml.cluster.exchange.distributed_sort import ExchangeRun  # noqa: PLC0415

        return ExchangeRun(run, finishing, nodes[0], nodes[1] if nodes[1:] else None).open


def crews_of(opened: Any) -> list[DaskCrew]:
    """Return the crews of a run on a cluster, [] elsewhere; ``opened`` opens the run's drivers."""
    cluster = opened.cluster if isinstance(opened, Opening) else None
    return cluster.crews if isinstance(cluster, ClusterRun) else []
