"""The resources of a run are decided where settings say "auto": workers and memory shares."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from dml.base.host import cgroup_bytes, cores, gpus, machine_bytes
from dml.exec.memory.memory_shares import Budget, divided, kept_bytes
from dml.physical.plan import Plan
from dml.settings import AUTOTUNE, Settings

MIB = 1 << 20
# One part in so many of the memory limit is for comparing samples, if that is enabled.
VERIFYING = 8


@dataclasses.dataclass(frozen=True, slots=True)
class RunResources:
    """Settings with every "auto" replaced by a value for this machine and this plan.

    ``ahead`` is the number of elements to compute ahead of the consumer; if None, the run decides
    it from the time that elements take. ``target`` is the user's bytes per partition, None if
    "auto". ``kept_bytes`` is the memory for caches of elements. ``limit_bytes`` is the memory limit
    of all runs that share it, when this was decided.
    """

    workers: int
    budget: Budget
    ahead: int | None
    target: int | None = None
    kept_bytes: int = 0
    limit_bytes: int = 0

    @staticmethod
    def of(settings: Settings, plan: Plan, among: int = 1) -> RunResources:
        """Use the cores of this process, a quarter of its memory, and a partition size to match.

        On a cluster, use the workers' threads and a quarter of the workers' memory, once they are
        known. The memory is divided equally among ``among`` concurrent runs.
        """
        workers = _workers(settings)
        target = settings.target_partition_bytes
        asked = None if target == AUTOTUNE else int(target)
        ahead = None if settings.prefetch == AUTOTUNE else int(settings.prefetch)
        ahead = 0 if settings.executor == "sync" else ahead
        limit = limit_of(settings)
        # plans that run side by side have equal parts of the memory limit
        plans = [*plan.all]
        each_bytes = (limit - verifying_bytes(settings, limit)) // (len(plans) * among)
        kept = sum(kept_bytes(each, each_bytes) for each in plans)
        budget = divided(plan, each_bytes, workers, asked)
        return RunResources(workers, budget, ahead, asked, kept, limit)

    @staticmethod
    def met(settings: Settings, plan: Plan, among: int = 1) -> RunResources:
        """Decide as ``of``, after connecting to the cluster if this process drives it."""
        if settings.executor == "distributed" and settings.driver == "here":
            _on_dask().met(settings)
        return RunResources.of(settings, plan, among)

    def beside(self, plan: Plan) -> RunResources:
        """Return the resources of ``plan``, the plan of another input of an operator."""
        budget = divided(plan, self.budget.limit_bytes, self.workers, self.target)
        return dataclasses.replace(self, budget=budget)


def slots_of(settings: Settings, workers: float) -> dict[str, float]:
    """Return the available amount of each resource: workers ("cpu"), GPUs, declared resources."""
    found = 0 if settings.executor == "distributed" else gpus()
    slots = {"cpu": float(workers), "gpu": float(found)} if found else {"cpu": float(workers)}
    return slots | dict(settings.resources or ())


def _on_dask() -> Any:
    from dml.cluster import dask_driver

    return dask_driver  # for these runs alone: it loads Dask


def _workers(settings: Settings) -> int:
    if settings.executor == "sync":
        return 1
    if settings.num_workers != AUTOTUNE:
        return int(settings.num_workers)
    return _offered(settings)[0] or cores()


def _offered(settings: Settings) -> tuple[int, int]:
    """Return the cluster's threads and bytes of memory; 0 without a cluster or while unknown."""
    if settings.executor != "distributed" or "distributed" not in sys.modules:
        return 0, 0
    found: tuple[int, int] = _on_dask().offered(settings)
    return found


def limit_of(settings: Settings) -> int:
    """Return the memory limit in bytes: as set by the user, else a quarter of the memory.

    The memory is that of the cluster's workers, or the lesser of the machine's and the cgroup's.
    """
    if settings.memory_limit != AUTOTUNE:
        return int(settings.memory_limit)
    there = _offered(settings)[1]
    known = [there] if there else [*filter(None, (machine_bytes(), cgroup_bytes()))]
    return min(known) // 4 if known else 1024 * MIB


def verifying_bytes(settings: Settings, limit_bytes: int) -> int:
    """Return the part of ``limit_bytes``, the memory limit, that is for comparing samples."""
    return limit_bytes // VERIFYING if verifies(settings) else 0


def verifies(settings: Settings) -> bool:
    """Return True if samples are compared with the written plan, which may then run instead."""
    return settings.verify == "sample" and settings.optimize


def nested_settings(settings: Settings, most_bytes: int) -> Settings:
    """Return a run's settings for a pipeline nested in it: one thread, ``most_bytes`` of memory."""
    return dataclasses.replace(
        settings,
        executor="sync",
        scheduler=None,
        driver="here",
        autoscale=None,
        autocache=False,
        verify="kept" if verifies(settings) else settings.verify,
        prefetch=0,
        memory_limit=max(1, min(most_bytes, limit_of(settings))),
    )
