"""This file divides the memory number of a run: the one place where its shares are decided.

What is counted is private and shared memory over all processes (dml/exec/memory.py). It stays at
most the number plus ``OVERHEAD_BYTES`` for each process: interpreter, libraries and what they
allocate for themselves. An empty pipeline measures 30 MiB, numba adds 20, a process that compiles
kernels takes 120; the rest is room for freed memory that allocators keep
(benchmarks/bench_memory.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from dml.errors import MemoryContractError, PlanError
from dml.exec.lanes import Lane, stream_lanes
from dml.exec.policy import Demand, require
from dml.expr.amounts import bytes_text
from dml.expr.cutting import CALLS
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.expr.sources.source import Unit
from dml.plan import Link, Plan, Stage

MIB = 1 << 20
OVERHEAD_BYTES = 200 * MIB
# Parts of the number: all that hold rows together, by the heaviest of them; batches on their way.
HELD_SHARE = {0: 0.0, 1: 0.15, 2: 0.3}
DELIVERY_SHARE = 0.1
# What caches keep, of the number of each plan that has one; the others divide the rest.
KEPT_SHARE = 0.5
# Partitions are small enough for so many of them per worker, and no larger than caches like.
PARTITIONS_PER_WORKER = 6
MOST_TARGET, LEAST_TARGET = 16 * MIB, 256 << 10
# Rows of a flow that are worth a task, however small partitions are to be.
LEAST_SLICE = 64 << 10
# Units whose sizes are looked at.
SAMPLED = 16
# A unit is decoded at once if so many of them would fit into a worker's part of the stage: that is
# an eighth faster than atom by atom (benchmarks/dml_loader.py, w2).
WHOLES_PER_WORKER, MOST_WHOLE = 8, 64 * MIB
# More read-ahead than this per worker helps nobody, however large the machine.
MOST_PER_WORKER = 512 * MIB
# Bytes of one value of a row as Python has it: the object, and its place in a dict.
CELL_BYTES = 100
# What a slice may have in hand beside what is counted of it: the block it makes once more, as who
# made it had it, or as it is packed for another process. Of ``OVERHEAD_BYTES``, for six threads.
HAND_BYTES = 8 * MIB
# What a block costs beside its rows: its own objects, and those of a column. Measured: 1.2 KiB and
# 200 bytes, so that a million partitions of a row each are no little thing.
BLOCK_BYTES, COLUMN_BYTES = 1024, 256
# Stands for the number of columns where only a run can tell.
MANY_COLUMNS = 32
# The name of a stage, for messages.
NAME_LETTERS = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of each use.

    ``stage_bytes``: partitions stored, parked and in the making; ``target_bytes``: one of them.
    ``atom_bytes``: what a task may gather of an atom that comes in several blocks.
    ``held_bytes``: one operator that holds rows of the stream. ``ahead_bytes``: batches made ahead
    of the consumer. ``whole_bytes``: a unit that is decoded at once.
    """

    limit_bytes: int
    stage_bytes: int
    target_bytes: int
    atom_bytes: int
    held_bytes: int
    ahead_bytes: int
    whole_bytes: int

    @property
    def hold_bytes(self) -> int:
        """What an operator over the stream may have in hand; where none gathers, as a task."""
        return self.held_bytes or self.atom_bytes

    def slice_bytes(self, workers: int) -> int:
        """Rows that one worker takes of a flow: a partition, and no less than is worth a task."""
        most = self.stage_bytes // (2 * PARTITIONS_PER_WORKER * workers)  # given and made
        return max(self.target_bytes, min(LEAST_SLICE, most))


def sized(unit: Unit, whole_bytes: int) -> Unit:
    """``unit``, marked to be decoded at once if it takes no more than ``whole_bytes``."""
    return dataclasses.replace(unit, at_once=unit.nbytes <= whole_bytes)


def working_bytes(plan: Plan, whole_bytes: int = 0) -> int:
    """The most that reading one unit takes beside its output, judged by some of the units.

    Kept with the source: every run asks twice.
    """
    source, columns = plan.stage.source, plan.stage.columns
    held: dict[tuple[object, ...], int] = source.__dict__.setdefault("_working_bytes", {})
    key = columns, whole_bytes
    if key not in held:
        step = max(1, source.unit_count // SAMPLED)
        units = (sized(source.unit(i), whole_bytes) for i in range(0, source.unit_count, step))
        held[key] = max((source.working_bytes(unit, columns) for unit in units), default=0)
    return held[key]


def fits(plan: Plan, budget: Budget) -> None:
    """Raise MemoryContractError, as a run would, where reading one unit takes more than there is.

    Judged by some of the units.
    """
    working = working_bytes(plan, budget.whole_bytes)
    if working > budget.stage_bytes:
        raise too_large(plan.stage, working, budget.stage_bytes)


def too_large(stage: Stage, working: int, most_bytes: int, place: str = "") -> MemoryContractError:
    """The error of a unit at ``place`` that takes ``working`` bytes, of the ``most_bytes``."""
    return MemoryContractError(
        f"one {stage.source.unit_name} does not fit into the memory number",
        at="; ".join(filter(None, (stage.source.label(), place))),
        why=f"reading it takes {bytes_text(working)} for pages and one atom of its"
        f" {len(stage.columns)} columns; the stage may hold {bytes_text(most_bytes)}",
        try_=f"a larger memory_limit=, fewer num_workers= or columns, {stage.source.to_shrink}",
    )


def calls_bytes(node: Node, rows: int = CALLS, schemas: Mapping[str, Schema] | None = None) -> int:
    """What a user's function holds of so many rows as Python rows, in and out.

    Those of batches hold none; children of rows are handed on as they come. ``schemas`` are those
    that have settled.
    """
    if node.calls is None or node.by_atom:
        return 0
    below = node.inputs[0]
    known = below.schema if schemas is None else schemas.get(below.digest.hex(), below.schema)
    held = min(rows, CALLS) * (1 if node.rows is Rows.MORE else 2)
    return held * (len(known) or MANY_COLUMNS) * CELL_BYTES


def demands_of(plan: Plan, budget: Budget) -> tuple[Demand, ...]:
    """What the core reserves for a slice of each stage: a partition, which ends with a block.

    A task of the first stage has a decoder beside it, one of a later stage the memory asked for.
    """
    source = plan.stage.source
    step = max(1, source.unit_count // SAMPLED)
    units = (source.unit(i) for i in range(0, source.unit_count, step))
    block = max((unit.nbytes // max(1, unit.atoms or 1) for unit in units), default=0)
    output = min(budget.target_bytes + block, budget.stage_bytes)
    working = working_bytes(plan, budget.whole_bytes)
    first = Demand(output_bytes=output, open_bytes=working, bounded=True)
    return (first, *(_demand(link, output) for link in plan.links))


def _demand(link: Link, output_bytes: int) -> Demand:
    return _asked(link.steps, link.needs, output_bytes, link.needs.memory)


def lane_demand(lane: Lane, target_bytes: int, most_bytes: int) -> Demand:
    """What the core reserves for a slice of a lane, and for what it is given."""
    output = min(2 * target_bytes, most_bytes)
    return _asked(lane.nodes, lane.needs, output, lane.needs.memory)


def _asked(steps: Sequence[Node], needs: Needs, output_bytes: int, open_bytes: int) -> Demand:
    amounts = (("cpu", needs.num_cpus), ("gpu", needs.num_gpus), *needs.resources)
    return Demand(
        name=" > ".join(node.title() for node in steps)[:NAME_LETTERS],
        resources=tuple((name, amount) for name, amount in amounts if amount),
        output_bytes=output_bytes,
        open_bytes=open_bytes,
        max_parallel=needs.concurrency,
        bounded=True,
    )


def in_turn(demands: Sequence[Demand]) -> tuple[Demand, ...]:
    """The same in one thread: each slice has it, and all processors that there are, to itself."""
    alone = [{**dict(demand.resources), "cpu": 1.0} for demand in demands]
    pairs = zip(demands, alone, strict=True)
    return tuple(dataclasses.replace(each, resources=tuple(has.items())) for each, has in pairs)


def refuse(
    plan: Plan, demands: Sequence[Demand], slots: Mapping[str, float] | None, most_bytes: int
) -> None:
    """Raise PlanError, at the user's line, for a need that this run could never meet.

    ``slots`` None are those of a cluster, which its driver knows; ``most_bytes`` are those of all
    stages.
    """
    lanes = [(lane.nodes, lane_demand(lane, 0, most_bytes)) for lane in stream_lanes(plan).values()]
    linked = [(link.steps, demand) for link, demand in zip(plan.links, demands[1:], strict=True)]
    for steps, demand in (*linked, *lanes):
        where = steps[0].label()
        _offered(demand, slots, where)
        if demand.open_bytes > most_bytes:
            raise PlanError(
                f"stage {demand.name!r} needs memory={demand.open_bytes}",
                at=where,
                why=f"all stages together may hold {most_bytes} bytes of memory_limit",
                try_="a larger memory_limit=, or less memory= for the stage",
            )


def _offered(demand: Demand, slots: Mapping[str, float] | None, where: str) -> None:
    try:
        require((demand,) if slots is not None else (), slots or {})
    except PlanError as error:
        raise error.located(where) from None


def kept_bytes(plan: Plan, limit_bytes: int) -> int:
    """What the caches over the stages of ``plan`` may keep of its part of the memory number."""
    caching = any(node.keeps_in_memory for node in plan.stream)
    return int(limit_bytes * KEPT_SHARE) if caching else 0


def divided(plan: Plan, limit_bytes: int, workers: int, target_bytes: int | None) -> Budget:
    """Shares of ``limit_bytes`` for a run of ``plan``; ``target_bytes`` None derives it."""
    usable = limit_bytes - kept_bytes(plan, limit_bytes)
    holders = [node.gathers for node in plan.stream]
    held_share = HELD_SHARE[max(holders, default=0)]
    stage = int(usable * (1 - held_share - DELIVERY_SHARE))
    stage = min(stage, workers * MOST_PER_WORKER)
    whole = min(MOST_WHOLE, stage // workers // WHOLES_PER_WORKER)
    working = working_bytes(plan, whole)
    if target_bytes is None:
        asked = workers * working + sum(link.needs.memory for link in plan.links)
        spare = (stage - asked) // (PARTITIONS_PER_WORKER * workers * (1 + len(plan.links)))
        target_bytes = max(LEAST_TARGET, min(MOST_TARGET, spare))
    return Budget(
        limit_bytes,
        stage,
        target_bytes,
        stage // workers,
        int(usable * held_share) // max(1, sum(count > 0 for count in holders)),
        int(usable * DELIVERY_SHARE),
        whole,
    )


def objects_bytes(blocks: int, columns: int) -> int:
    """What ``blocks`` that have ``columns`` columns together take beside their rows."""
    return blocks * BLOCK_BYTES + columns * COLUMN_BYTES
