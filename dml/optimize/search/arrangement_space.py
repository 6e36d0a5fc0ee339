"""A plan may be arranged in several ways: where stages end, their drivers, partition sizes.

The arrangement affects no fingerprint, no result and no saved position. Settings that the user has
set are not searched.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from dml.ops.cache.stored import settled_epochs
from dml.ops.row.lifted import LiftedNode
from dml.optimize.rule import choice
from dml.physical.plan import Link, Plan, units_each
from dml.profile import Speed

# With this many tasks per worker, no worker is idle until another worker's task ends.
TASKS_PER_WORKER: Final = 4
# With fewer tasks than this, no stage moves from threads to processes.
MOVING_TASKS: Final = 8
# Number of partition sizes that are tried, each a quarter of the one before, and the least size.
SIZES, LEAST_BYTES = 4, 64 << 10


@dataclasses.dataclass(frozen=True)
class MachineLimits:
    """The resources of a run: workers, drivers by name (default first), and shares of memory.

    ``size_of`` returns the default partition size of a plan in bytes; ``sized`` is True if the user
    has set it. A read unit of up to ``whole_bytes`` is decoded at once; caches may hold
    ``kept_bytes``.
    """

    workers: int
    drivers: tuple[str, ...]
    size_of: Callable[[Plan], int]
    sized: bool = False
    whole_bytes: int = 0
    kept_bytes: float = 0.0
    speed: Speed = dataclasses.field(default_factory=Speed)


@choice(source="streaming batch model, section 4.2; cedar, VLDB 18(2)")
def stages_by_cost(plan: Plan, machine: MachineLimits) -> frozenset[int]:
    """A stage may end between any two operators on blocks; rows and their order do not change.

    Return the indices of block operators that may begin a stage. There are none if there are enough
    tasks for all workers, or if functions that hold the GIL may move to processes during the run,
    since divided stages do not move.
    """
    source, steps = plan.stage.source, plan.on_blocks[1:]
    if machine.workers < 2 or plan.stage.order is not None or not source.unit_count:
        return frozenset()
    called = [node for node in steps if node.calls is not None]
    atoms = source.atom_count
    unsure = any(node.calls.purity for node in called if node.calls is not None)
    if atoms is None or source.calls is not None or unsure:
        return frozenset()
    most = min(atoms, TASKS_PER_WORKER * machine.workers)
    if not all(isinstance(node, LiftedNode) for node in called):
        most = min(most, MOVING_TASKS)
    few = tasks_of(plan, machine.size_of(plan)) < most
    return frozenset(range(1, len(steps) + 1)) if few else frozenset()


@choice(source="OPTIMIZER 6; Ray Data, target block size")
def partitions_by_cost(plan: Plan, machine: MachineLimits) -> tuple[int, ...]:
    """Partitions of any size hold the same rows in the same order.

    Return the default size in bytes, and smaller ones, since larger ones would exceed the memory
    limit.
    """
    usual = machine.size_of(plan)
    smaller = (usual >> (2 * i) for i in range(1, SIZES))
    return (usual, *(() if machine.sized else (size for size in smaller if size >= LEAST_BYTES)))


@choice(source="OPTIMIZER 6; FastFlow, VLDB 16(5)")
def executor_by_cost(plan: Plan, machine: MachineLimits) -> tuple[str, ...]:
    """Functions that are proven pure return the same results in threads and in processes.

    Return the names of the drivers that may run the plan.
    """
    return machine.drivers[:1] if any(plan.beside) else machine.drivers


class Allowed(NamedTuple):
    """The choices that are allowed: where stages may begin, drivers, whether the size is fixed."""

    begins: frozenset[int]
    drivers: tuple[str, ...]
    sized: bool

    @property
    def any(self) -> bool:
        """True if there is more than one arrangement."""
        return bool(self.begins) or len(self.drivers) > 1


def allowed(plan: Plan, machine: MachineLimits, without: frozenset[str] = frozenset()) -> Allowed:
    """Return the choices for ``plan``, without those that ``without`` disables."""
    stages, sizes, executors = (
        each.name not in without for each in (stages_by_cost, partitions_by_cost, executor_by_cost)
    )
    begins = stages_by_cost.ways(plan, machine) if stages else frozenset[int]()
    drivers = executor_by_cost.ways(plan, machine) if executors else machine.drivers[:1]
    # threads pass on a partition at nearly no cost: its size alone is not worth a search
    sized = not sizes or not (begins or len(drivers) > 1)
    return Allowed(begins, drivers, sized)


def cut(plan: Plan, cuts: Sequence[int]) -> Plan:
    """Return ``plan`` with stages that begin at the block operators of indices ``cuts`` alone.

    All other parts of the plan stay the same objects. Steps whose rows are stored unit by unit stay
    where units are read.
    """
    steps = plan.on_blocks
    cuts = [each for each in cuts if each > settled_epochs(steps[1:])]
    ends = (*cuts, len(steps))
    links = tuple(Link(steps[begin:end]) for begin, end in zip(cuts, ends[1:], strict=True))
    before = tuple(link.steps for link in plan.links)
    if before == tuple(link.steps for link in links):
        return plan
    stage = dataclasses.replace(plan.stage, steps=steps[1 : ends[0]])
    return dataclasses.replace(plan, stage=stage, links=links)


def must_begin(plan: Plan) -> tuple[int, ...]:
    """Return the indices of block operators that begin a stage because of their resource needs."""
    begins, place = [], 1 + len(plan.stage.steps)
    for link in plan.links:
        begins.append(place)
        place += len(link.steps)
    return tuple(begins)


def tasks_of(plan: Plan, size: int) -> int:
    """Return the number of tasks of the first stage, for partitions of ``size`` bytes."""
    source = plan.stage.source
    units = source.unit_count
    return max(1, math.ceil(units / units_each(units, source.unit, size)))
