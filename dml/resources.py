"""This file decides what settings leave to dml: workers, memory and its parts, for this machine."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

from dml.exec.budget import Budget, divided, kept_bytes
from dml.fleet.host import cgroup_bytes, cores, machine_bytes
from dml.plan import Plan
from dml.settings import AUTOTUNE, Settings

MIB = 1 << 20
# One part in so many of the memory number is for comparing samples, where that is asked for.
VERIFYING = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """Settings with every "auto" decided for this machine and this plan.

    ``ahead`` None is decided by the run, which sees how long its batches take.
    """

    workers: int
    budget: Budget
    ahead: int | None
    target: int | None = None
    kept_bytes: int = 0

    @staticmethod
    def of(settings: Settings, plan: Plan, among: int = 1) -> Resources:
        """Cores that this process may use, a quarter of its memory, partitions to match.

        On a cluster they are the workers' threads, and a quarter of what the workers may use, once
        they were met. The memory is divided ``among`` so many runs side by side.
        """
        workers = _workers(settings)
        target = settings.target_partition_bytes
        asked = None if target == AUTOTUNE else int(target)
        ahead = None if settings.prefetch == AUTOTUNE else int(settings.prefetch)
        ahead = 0 if settings.executor == "sync" else ahead
        # what runs side by side has equal parts of the memory number
        limit = (limit_of(settings) - verifying_bytes(settings)) // (
            sum(1 for _ in plan.all) * among
        )
        kept = sum(kept_bytes(each, limit) for each in plan.all)
        return Resources(workers, divided(plan, limit, workers, asked), ahead, asked, kept)

    @staticmethod
    def met(settings: Settings, plan: Plan, among: int = 1) -> Resources:
        """The same for a run, which looks first who is there on a cluster, if it runs here."""
        if settings.executor == "distributed" and settings.driver == "here":
            _on_dask().met(settings)
        return Resources.of(settings, plan, among)

    def beside(self, plan: Plan) -> Resources:
        """The same for a plan beside the chain."""
        budget = divided(plan, self.budget.limit_bytes, self.workers, self.target)
        return dataclasses.replace(self, budget=budget)


def _on_dask() -> Any:
    return importlib.import_module("dml.exec.backends.dask")  # for these runs alone: it loads Dask


def _workers(settings: Settings) -> int:
    if settings.executor == "sync":
        return 1
    if settings.num_workers != AUTOTUNE:
        return int(settings.num_workers)
    return _offered(settings)[0] or cores()


def _offered(settings: Settings) -> tuple[int, int]:
    """Threads and bytes of the cluster; 0 where there is none, or nothing is known of it."""
    if settings.executor != "distributed" or "distributed" not in sys.modules:
        return 0, 0
    found: tuple[int, int] = _on_dask().offered(settings)
    return found


def limit_of(settings: Settings) -> int:
    """The memory number, or a quarter of what the cluster, the machine or its group may use."""
    if settings.memory_limit != AUTOTUNE:
        return int(settings.memory_limit)
    there = _offered(settings)[1]
    known = [there] if there else [size for size in (machine_bytes(), cgroup_bytes()) if size]
    return min(known) // 4 if known else 1024 * MIB


def verifying_bytes(settings: Settings) -> int:
    """The part of the memory number that is left for comparing samples."""
    return limit_of(settings) // VERIFYING if verifies(settings) else 0


def verifies(settings: Settings) -> bool:
    """True if there is something to compare: the plan as written has nothing beside it."""
    return settings.verify == "sample" and settings.optimize


def nested_settings(settings: Settings, most_bytes: int) -> Settings:
    """Options of a pipeline inside of a run: those of the run, but for where and how much."""
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
