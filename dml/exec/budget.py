"""This file divides the memory number of a run: the one place where its shares are decided.

What is counted is private and shared memory over all processes (dml/exec/memory.py). It stays at
most the number plus ``OVERHEAD_BYTES`` for each process: interpreter, libraries and what they
allocate for themselves. An empty pipeline measures 30 MiB, numba adds 20, a process that compiles
kernels takes 120; the rest is room for freed memory that allocators keep
(benchmarks/bench_memory.py).
"""

from __future__ import annotations

import dataclasses

from dml.exec.policy import Demand
from dml.expr.node import Node
from dml.expr.ops.batch import Batch
from dml.expr.ops.shuffle_all import ShuffleAll
from dml.expr.ops.shuffle_atoms import ShuffleAtoms
from dml.expr.ops.shuffle_window import ShuffleWindow
from dml.expr.sources.source import Unit
from dml.plan import Plan

MIB = 1 << 20
OVERHEAD_BYTES = 200 * MIB
# Operators over the stream that hold rows, and how their needs compare.
HOLDERS: dict[type[Node], int] = {Batch: 1, ShuffleWindow: 2, ShuffleAtoms: 2, ShuffleAll: 2}
# Parts of the number: all that hold rows together, by the heaviest of them; batches on their way.
HELD_SHARE = {0: 0.0, 1: 0.15, 2: 0.3}
DELIVERY_SHARE = 0.1
# Partitions are small enough for so many of them per worker, and no larger than caches like.
PARTITIONS_PER_WORKER = 6
MOST_TARGET, LEAST_TARGET = 16 * MIB, 256 << 10
# Units whose sizes are looked at.
SAMPLED = 16
# A unit is decoded at once if so many of them would fit into a worker's part of the stage: that is
# an eighth faster than atom by atom (benchmarks/dml_loader.py, w2).
WHOLES_PER_WORKER, MOST_WHOLE = 8, 64 * MIB
# More read-ahead than this per worker helps nobody, however large the machine.
MOST_PER_WORKER = 512 * MIB


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of each use.

    ``stage_bytes``: partitions stored, parked and in the making; ``target_bytes``: one of them.
    ``held_bytes``: one operator that holds rows of the stream. ``ahead_bytes``: batches made ahead
    of the consumer. ``whole_bytes``: a unit that is decoded at once.
    """

    limit_bytes: int
    stage_bytes: int
    target_bytes: int
    held_bytes: int
    ahead_bytes: int
    whole_bytes: int


def sized(unit: Unit, whole_bytes: int) -> Unit:
    """``unit``, marked to be decoded at once if it takes no more than ``whole_bytes``."""
    return dataclasses.replace(unit, at_once=unit.nbytes <= whole_bytes)


def working_bytes(plan: Plan, whole_bytes: int = 0) -> int:
    """The most that reading one unit takes beside its output, judged by some of the units."""
    source, columns = plan.stage.source, plan.stage.columns
    step = max(1, source.unit_count // SAMPLED)
    units = (sized(source.unit(i), whole_bytes) for i in range(0, source.unit_count, step))
    return max((source.working_bytes(unit, columns) for unit in units), default=0)


def demand_of(plan: Plan, budget: Budget) -> Demand:
    """What the core reserves for a slice: a partition, which ends with a block, and a decoder."""
    source = plan.stage.source
    step = max(1, source.unit_count // SAMPLED)
    units = (source.unit(i) for i in range(0, source.unit_count, step))
    block = max((unit.nbytes // max(1, unit.atoms) for unit in units), default=0)
    output = min(budget.target_bytes + block, budget.stage_bytes)
    return Demand(
        output_bytes=output, open_bytes=working_bytes(plan, budget.whole_bytes), bounded=True
    )


def divided(plan: Plan, limit_bytes: int, workers: int, target_bytes: int | None) -> Budget:
    """Shares of ``limit_bytes`` for a run of ``plan``; ``target_bytes`` None derives it."""
    holders = [HOLDERS.get(type(node), 0) for node in plan.stream]
    held_share = HELD_SHARE[max(holders, default=0)]
    stage = int(limit_bytes * (1 - held_share - DELIVERY_SHARE))
    stage = min(stage, workers * MOST_PER_WORKER)
    whole = min(MOST_WHOLE, stage // workers // WHOLES_PER_WORKER)
    working = working_bytes(plan, whole)
    if target_bytes is None:
        spare = (stage - workers * working) // (PARTITIONS_PER_WORKER * workers)
        target_bytes = max(LEAST_TARGET, min(MOST_TARGET, spare))
    return Budget(
        limit_bytes,
        stage,
        target_bytes,
        int(limit_bytes * held_share) // max(1, sum(count > 0 for count in holders)),
        int(limit_bytes * DELIVERY_SHARE),
        whole,
    )
