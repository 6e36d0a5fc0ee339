"""Scheduling experiments of the papers are set up here for the virtual cluster."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import dml
from dml.exec.memory.memory_shares import Budget, demands_of, divided
from dml.exec.scheduler.policy import Demand, Policy, Seq
from dml.optimize.phases import optimize
from dml.physical.plan import Plan
from dml.verify.simulate.virtual_cluster import ClusterTrace, TaskTruth, VirtualCluster

MB, GB = 10**6, 10**9
# Section 5.3.1 of the streaming batch model.
LOADS, ROWS, LOAD_S, ROW_S = 160, 500, 5.0, 0.005
SLOTS = {"cpu": 8.0, "gpu": 4.0}
BOUND_S, OPTIMUM_S = 150.0, 153.0  # all processors always busy; optimum of the paper's solver


@dataclasses.dataclass(frozen=True)
class Scene:
    """An experiment: demands of stages, true costs of their tasks, slots, memory and units."""

    demands: tuple[Demand, ...]
    truth: tuple[TaskTruth | Callable[[Seq], TaskTruth], ...]
    slots: Mapping[str, float]
    limit_bytes: int
    units: int

    def cluster(self, policy: Policy | None = None, **options: Any) -> VirtualCluster:
        """Build the virtual cluster of the experiment with the options of ``VirtualCluster``."""
        return VirtualCluster(
            self.demands, self.truth, self.slots, self.limit_bytes, policy, **options
        )

    def run(self, policy: Policy | None = None, **options: Any) -> ClusterTrace:
        """Run the experiment on the virtual cluster."""
        return self.cluster(policy, **options).run(self.units)


def memory_aware(
    limit_bytes: int, *, part_rows: int | None = None, wobble: float = 0.0, seed: int = 0
) -> Scene:
    """Load and transform on the same 8 processors, infer on 4 GPUs, within a memory limit.

    160 tasks load 500 rows of 1 MB in 5 s each; both other stages take 5 ms a row. The limit is
    divided as for a run of the same pipeline, which gives the rows of a partition; with
    ``part_rows`` a partition has that many, and the stages may use the whole limit. Seconds and
    bytes vary by up to the fraction ``wobble`` from slice to slice.
    """
    if part_rows is None:
        plan, slots = _planned(), int(sum(SLOTS.values()))
        budget = divided(plan, limit_bytes, slots, None)
        demands, limit_bytes = demands_of(plan, budget), budget.stage_bytes
        part_rows = rows_of(budget)
    else:
        sizes = (part_rows * MB, part_rows * MB, 0)
        named = zip(("load", "transform", "infer"), ("cpu", "cpu", "gpu"), sizes, strict=True)
        demands = tuple(Demand(name, ((slot, 1.0),), size) for name, slot, size in named)
    off = partial(_off, wobble, seed)
    truth = [partial(_made, part_rows, off, stage) for stage in range(3)]
    return Scene(demands, tuple(truth), SLOTS, limit_bytes, LOADS)


def rows_of(budget: Budget) -> int:
    """Return the rows of 1 MB in a partition: just enough to reach the target size."""
    return min(ROWS, -(-budget.target_bytes // MB))


def _made(part_rows: int, off: Callable[[Seq, int], float], stage: int, seq: Seq) -> TaskTruth:
    """Return the costs of a task of ``stage``; a load task makes all partitions of its rows."""
    if stage:
        rows = min(part_rows, ROWS - seq[1] * part_rows)
        size = rows * MB if stage == 1 else 0
        return TaskTruth(rows * ROW_S * off(seq, 0), int(size * off(seq, 1)))
    counts = [min(part_rows, ROWS - start) for start in range(0, ROWS, part_rows)]
    return TaskTruth(
        0.0,
        parts=tuple(
            (LOAD_S * rows / ROWS * off((*seq, k), 2), int(rows * MB * off((*seq, k), 3)))
            for k, rows in enumerate(counts)
        ),
    )


def _off(wobble: float, seed: int, seq: Seq, which: int) -> float:
    if not wobble:
        return 1.0
    return random.Random(repr((seed, seq, which))).uniform(1 - wobble, 1 + wobble)  # noqa: S311


@cache
def _planned() -> Plan:
    """Plan the pipeline as a user writes it; transform and load are two stages, as in the paper."""
    loaded = dml.range(LOADS, atom_rows=1).flat_map(_load)
    transformed = loaded.map(_transform, concurrency=int(SLOTS["cpu"]))
    ds = transformed.map(_infer, num_cpus=0, num_gpus=1)
    return optimize(ds._node, 0).plan  # noqa: SLF001 - plans are made of what lies below


def _load(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for _ in range(ROWS):
        yield {"loaded": str(row["id"])}


def _transform(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"transformed": str(row["loaded"])}


def _infer(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"inferred": str(row["transformed"])}


def fractional(units: int, *, apart: tuple[float, float] | None = None) -> Scene:
    """Appendix A.1: tasks of 1 s feed tasks of 2 s on 8 slots, or on ``apart`` slots per stage."""
    names = ("first", "second")
    demands = tuple(Demand(name, ((name if apart else "cpu", 1.0),), 1) for name in names)
    slots = dict(zip(names, apart, strict=True)) if apart else {"cpu": 8.0}
    return Scene(demands, (TaskTruth(1.0, 1), TaskTruth(2.0, 1)), slots, GB, units)
