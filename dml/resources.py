"""This file decides what settings leave to dml: workers, memory and its parts, for this machine."""

from __future__ import annotations

import dataclasses

from dml.exec.budget import Budget, divided, kept_bytes
from dml.fleet.host import cgroup_bytes, cores, machine_bytes
from dml.plan import Plan
from dml.settings import AUTOTUNE, Settings

MIB = 1 << 20
# One part in so many of the memory number is for comparing samples, where that is asked for.
VERIFYING = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """Settings with every "auto" decided for this machine and this plan."""

    workers: int
    budget: Budget
    ahead: int
    target: int | None = None
    kept_bytes: int = 0

    @staticmethod
    def of(settings: Settings, plan: Plan, among: int = 1) -> Resources:
        """Cores that this process may use, a quarter of its memory, partitions to match.

        The memory is divided ``among`` so many runs side by side.
        """
        workers = cores() if settings.num_workers == AUTOTUNE else int(settings.num_workers)
        workers = 1 if settings.executor == "sync" else workers
        target = settings.target_partition_bytes
        asked = None if target == AUTOTUNE else int(target)
        ahead = 0
        if settings.prefetch != AUTOTUNE and settings.executor != "sync":
            ahead = int(settings.prefetch)
        # what runs side by side has equal parts of the memory number
        limit = (limit_of(settings) - verifying_bytes(settings)) // (
            sum(1 for _ in plan.all) * among
        )
        kept = sum(kept_bytes(each, limit) for each in plan.all)
        return Resources(workers, divided(plan, limit, workers, asked), ahead, asked, kept)

    def beside(self, plan: Plan) -> Resources:
        """The same for a plan beside the chain."""
        budget = divided(plan, self.budget.limit_bytes, self.workers, self.target)
        return dataclasses.replace(self, budget=budget)


def limit_of(settings: Settings) -> int:
    """The memory number, or a quarter of what the machine or its control group has."""
    if settings.memory_limit != AUTOTUNE:
        return int(settings.memory_limit)
    known = [size for size in (machine_bytes(), cgroup_bytes()) if size]
    return min(known) // 4 if known else 1024 * MIB


def verifying_bytes(settings: Settings) -> int:
    """The part of the memory number that is left for comparing samples."""
    return limit_of(settings) // VERIFYING if verifies(settings) else 0


def verifies(settings: Settings) -> bool:
    """True if there is something to compare: the plan as written has nothing beside it."""
    return settings.verify == "sample" and settings.optimize
