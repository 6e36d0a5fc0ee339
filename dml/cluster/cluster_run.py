"""A run on a Dask cluster: its driver, and the operators that workers execute in two rounds.

Such an operator needs all rows: a sort, a full shuffle, or a grouping directly after the stages. It
runs on workers if its input is more than a small part of the memory limit; otherwise the rows are
sent to the consuming process, and sorted there. The resulting bytes are the same.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from dml.exec.drivers.driver_choice import Opening
from dml.exec.memory.memory_shares import SAMPLED
from dml.exec.tasks.replay_check import impure
from dml.expr.node import Node
from dml.physical.plan import Plan, Stage
from dml.settings import AUTOTUNE, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dml.cluster.dask_crew import DaskCrew
    from dml.exec.delivery.meter import Tallies
    from dml.exec.streams.stream import Streaming
    from dml.exec.tasks.job import Job
    from dml.exec.tasks.slices import Options, PartitionFeed, Tasks
    from dml.expr.flow import Opener


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
        from dml.cluster.exchange.distributed_sort import open_exchange  # noqa: PLC0415

        return partial(open_exchange, run, nodes, finishing=finishing)


def crews_of(opened: Any) -> list[DaskCrew]:
    """Return the crews of a run on a cluster, [] elsewhere; ``opened`` opens the run's drivers."""
    cluster = opened.cluster if isinstance(opened, Opening) else None
    return cluster.crews if isinstance(cluster, ClusterRun) else []


# An input of at most the memory limit divided by SMALL is sorted without the disk.
SMALL = 10


def exchanged(plan: Plan, settings: Settings, limit_bytes: int) -> tuple[int, str]:
    """Return how many of the first stream operators run on workers; if none, also why not."""
    nodes, why = _exchangeable(plan), why_not(plan, settings, limit_bytes)
    return (0, why if nodes else "") if why else (len(nodes), "")


def why_not(plan: Plan, settings: Settings, limit_bytes: int) -> str:
    """Return why no operator of ``plan`` runs on workers; "" if one does."""
    if not _exchangeable(plan):
        return "nothing to spread"
    if impure(plan.on_blocks):
        return "a function below is declared impure (pure=False)"
    if settings.spread is False:
        return "spread=False"
    if settings.autoscale is not None:
        return "as they come and go (autoscale=)"
    size = input_bytes(plan.stage)
    if settings.spread == AUTOTUNE and size is not None and size * SMALL <= limit_bytes:
        return "the input is small"
    return ""


def _exchangeable(plan: Plan) -> tuple[Node, ...]:
    """Return the operator that orders all rows of the stages, and the grouping on it, if any."""
    if not plan.stream or not plan.stream[0].spreads:
        return ()
    first, *others = plan.stream[:2]
    grouped = others and others[0].grouped_by and others[0].grouped_by == first.ordered_by
    return (first, others[0]) if grouped else (first,)


def input_bytes(stage: Stage) -> int | None:
    """Estimate the bytes of a stage's input rows from a sample of units; return None if unknown."""
    source = stage.source
    count = source.unit_count
    units = [source.unit(i) for i in range(0, count, max(1, count // SAMPLED))]
    if any(unit.is_open for unit in units):
        return None
    return sum(unit.nbytes for unit in units) * count // max(1, len(units))
