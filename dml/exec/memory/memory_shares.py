"""A budget divides the memory limit of a run among its consumers; all shares are decided here.

Private and shared memory of all processes is counted (dml/exec/memory/memory_meter.py). It stays at
most the limit plus ``OVERHEAD_BYTES`` for each process: interpreter, libraries and their own
allocations. An empty pipeline measures 30 MiB, numba adds 20 MiB, a process that compiles kernels
takes 120 MiB; the rest is for freed memory that allocators keep (benchmarks/bench_memory.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter

from dml.base.amounts import bytes_text
from dml.data.row_slicing import CALLS
from dml.data.schema import Schema
from dml.errors import MemoryContractError, PlanError
from dml.exec.scheduler.policy import Demand, require
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.io.source import Source, Unit
from dml.physical.lanes import Lane, stream_lanes
from dml.physical.plan import Plan, Stage

MIB = 1 << 20
OVERHEAD_BYTES = 200 * MIB
# Parts of the limit for all operators that hold rows, by the largest ``gathers`` of a node; and for
# batches being delivered.
HELD_SHARE = {0: 0.0, 1: 0.15, 2: 0.3}
DELIVERY_SHARE = 0.1
# The part of a plan's limit for its caches, if it has any; the other uses divide the rest.
KEPT_SHARE = 0.5
# The part of the bytes of stages, at most, for large images, sounds and videos while they are
# decoded; smaller limits have no such part, since a large image would exceed them by itself.
TURNS_SHARE, TURNS_FROM = 0.7, 256 * MIB
SLOW = attrgetter("slow")
# Partitions are so small that this many fit per worker, and no larger than suits processor caches.
PARTITIONS_PER_WORKER = 6
MOST_TARGET, LEAST_TARGET = 16 * MIB, 256 << 10
# Bytes of rows of a flow that are worth a task, however small partitions are.
LEAST_SLICE = 64 << 10
# Number of units that are sampled for the sizes of units.
SAMPLED = 16
# A unit is decoded in one go if so many fit into a worker's part of ``stage_bytes``: it takes an
# eighth less time than atom by atom (benchmarks/dml_loader.py, w2).
WHOLES_PER_WORKER, MOST_WHOLE = 8, 64 * MIB
# More bytes of read-ahead than this per worker do not help, however large the machine.
MOST_PER_WORKER = 512 * MIB
# Bytes of one value of a row as a Python object, with its place in a dict.
CELL_BYTES = 100
# Bytes of a slice that are not accounted: a second copy of its block, in the form of its producer
# or serialized for another process. They are in ``OVERHEAD_BYTES``, for six threads.
HAND_BYTES = 8 * MIB
# Bytes of a block without its rows: the block's own objects, and those of each column. Measured:
# 1.2 KiB and 200 bytes, which matters for a million partitions of one row each.
BLOCK_BYTES, COLUMN_BYTES = 1024, 256
# Number of columns that is assumed where only a run can tell.
MANY_COLUMNS = 32
# Most letters of a stage's name in messages.
NAME_LETTERS = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Bytes for each use of memory.

    ``stage_bytes``: all partitions that are stored, parked or being made; ``target_bytes``: one
    partition. ``atom_bytes``: what a task may gather of an atom that comes in several blocks.
    ``held_bytes``: one operator that holds rows of the stream; 0 if none does. ``ahead_bytes``:
    prefetched batches. ``whole_bytes``: the largest unit that is decoded in one go.
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
        """Bytes that a stream operator may hold; ``atom_bytes`` if no operator gathers rows."""
        return self.held_bytes or self.atom_bytes

    def slice_bytes(self, workers: int) -> int:
        """Return the size of a flow's slices, in bytes: a partition, or the least worth a task."""
        most = self.stage_bytes // (2 * PARTITIONS_PER_WORKER * workers)  # input and output
        return max(self.target_bytes, min(LEAST_SLICE, most))


def sized(unit: Unit, whole_bytes: int) -> Unit:
    """Return ``unit``, marked to be decoded in one go if it has at most ``whole_bytes``."""
    return dataclasses.replace(unit, at_once=unit.nbytes <= whole_bytes)


def working_bytes(plan: Plan, whole_bytes: int = 0) -> int:
    """Return the most temporary memory, in bytes, that reading one of some sampled units takes.

    Units of up to ``whole_bytes`` are decoded at once. The source caches the result.
    """
    source, columns = plan.stage.source, plan.stage.columns
    held: dict[tuple[object, ...], int] = source.memo.setdefault("working_bytes", {})
    key = columns, whole_bytes
    if key not in held:
        units = _sampled(source, whole_bytes)
        held[key] = max((source.working_bytes(unit, columns) for unit in units), default=0)
    return held[key]


def _sampled(source: Source, whole_bytes: int) -> list[Unit]:
    """Return units spread over ``source``; those of up to ``whole_bytes`` are decoded at once."""
    step = max(1, source.unit_count // SAMPLED)
    return [sized(source.unit(i), whole_bytes) for i in range(0, source.unit_count, step)]


def fits(plan: Plan, budget: Budget) -> None:
    """Raise MemoryContractError, as a run would, if a sampled unit exceeds ``stage_bytes``."""
    working = working_bytes(plan, budget.whole_bytes)
    if working > budget.stage_bytes:
        raise too_large(plan.stage, working, budget.stage_bytes)


def too_large(stage: Stage, working: int, most_bytes: int, place: str = "") -> MemoryContractError:
    """Return the error for a unit that takes ``working`` bytes; ``most_bytes`` are allowed."""
    return MemoryContractError(
        f"one {stage.source.unit_name} does not fit into the memory number",
        at="; ".join(filter(None, (stage.source.label(), place))),
        why=f"reading it takes {bytes_text(working)} for pages and one atom of its"
        f" {len(stage.columns)} columns; the stage may hold {bytes_text(most_bytes)}",
        try_=f"a larger memory_limit=, fewer num_workers= or columns, {stage.source.to_shrink}",
    )


def calls_bytes(node: Node, rows: int = CALLS, schemas: Mapping[str, Schema] | None = None) -> int:
    """Return the bytes of the Python objects for ``rows`` input and output rows of a function.

    At most ``CALLS`` rows are objects at once. Only the input counts if the function makes several
    rows of one, since they are passed on one by one. The result is 0 if ``node`` has no function of
    rows. ``schemas`` are the settled ones, by digest.
    """
    if node.calls is None or node.by_atom:
        return 0
    below = node.inputs[0]
    known = below.schema if schemas is None else schemas.get(below.digest.hex(), below.schema)
    held = min(rows, CALLS) * (1 if node.rows is Rows.MORE else 2)
    return held * (len(known) or MANY_COLUMNS) * CELL_BYTES


def demands_of(plan: Plan, budget: Budget) -> tuple[Demand, ...]:
    """Return the demand of a task of each stage; its output is a partition and one atom more.

    The first stage's task also needs memory to decode a unit, the others their declared memory.
    """
    source = plan.stage.source
    units = _sampled(source, budget.whole_bytes)
    block = max((unit.nbytes // max(1, unit.atoms or 1) for unit in units), default=0)
    output = min(budget.target_bytes + block, budget.stage_bytes)
    working = working_bytes(plan, budget.whole_bytes)
    # arrays in this process and expressions wait for nothing but processors and Python's lock
    waits = not source.side_by_side or any(step.calls is not None for step in plan.stage.steps)
    waits = waits and not any(map(_constructs, plan.stage.steps))
    first = Demand(output_bytes=output, open_bytes=working, bounded=True, may_wait=waits)
    return (first, *(_demand(link.steps, link.needs, output) for link in plan.links))


def lane_demand(lane: Lane, target_bytes: int, most_bytes: int) -> Demand:
    """Return the demand of a lane's slice; its output bytes include the slice's input."""
    output = min(2 * target_bytes, most_bytes)
    return _demand(lane.nodes, lane.needs, output, divides=True)


def _demand(
    steps: Sequence[Node], needs: Needs, output_bytes: int, *, divides: bool = False
) -> Demand:
    amounts = (("cpu", needs.num_cpus), ("gpu", needs.num_gpus), *needs.resources)
    return Demand(
        name=" > ".join(node.title() for node in steps)[:NAME_LETTERS],
        resources=tuple((name, amount) for name, amount in amounts if amount),
        output_bytes=output_bytes,
        open_bytes=needs.memory,
        max_parallel=needs.concurrency,
        bounded=True,
        divides=divides,
        may_wait=needs.undeclared and (bool(needs.concurrency) or not any(map(_constructs, steps))),
    )


def _constructs(node: Node) -> bool:
    """Return whether each concurrent call of ``node`` constructs an instance of a user's class."""
    return node.calls is not None and node.calls.stateful


def in_turn(demands: Sequence[Demand]) -> tuple[Demand, ...]:
    """Return ``demands`` for a run in one thread: each slice takes the only CPU slot."""
    alone = []
    for demand in demands:
        resources = {**dict(demand.resources), "cpu": 1.0}
        alone.append(dataclasses.replace(demand, resources=tuple(resources.items())))
    return tuple(alone)


def refuse(
    plan: Plan, demands: Sequence[Demand], slots: Mapping[str, float] | None, most_bytes: int
) -> None:
    """Raise PlanError, at the user's line, for a need that this run could never meet.

    ``slots`` is None for a cluster, whose resources are checked by its driver; ``most_bytes`` is
    the memory of all stages together.
    """
    lanes = [(lane.nodes, lane_demand(lane, 0, most_bytes)) for lane in stream_lanes(plan).values()]
    linked = [(link.steps, demand) for link, demand in zip(plan.links, demands[1:], strict=True)]
    for steps, demand in (*linked, *lanes):
        where = steps[0].label()
        try:
            require((demand,) if slots is not None else (), slots or {})
        except PlanError as error:
            raise error.located(where) from None
        if demand.open_bytes > most_bytes:
            raise PlanError(
                f"stage {demand.name!r} needs memory={demand.open_bytes}",
                at=where,
                why=f"all stages together may hold {most_bytes} bytes of memory_limit",
                try_="a larger memory_limit=, or less memory= for the stage",
            )


def kept_bytes(plan: Plan, limit_bytes: int) -> int:
    """Return the part of ``limit_bytes`` for caches in memory; 0 if ``plan`` has none."""
    caching = any(node.keeps_in_memory for node in plan.stream)
    return int(limit_bytes * KEPT_SHARE) if caching else 0


def divided(plan: Plan, limit_bytes: int, workers: int, target_bytes: int | None) -> Budget:
    """Return a run's shares of ``limit_bytes``; a ``target_bytes`` of None is derived from them."""
    usable = limit_bytes - kept_bytes(plan, limit_bytes)
    holders = [node.gathers for node in plan.stream]
    held_share = HELD_SHARE[max(holders, default=0)]
    stage = int(usable * (1 - held_share - DELIVERY_SHARE))
    if limit_bytes >= TURNS_FROM and any(map(SLOW, plan.operators)):
        from dml.base.memory_turns import MOST_BYTES  # noqa: PLC0415 - few programs need it

        stage -= min(MOST_BYTES, int(stage * TURNS_SHARE))
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
    """Return the bytes of ``blocks`` block objects without rows; they have ``columns`` in all."""
    return blocks * BLOCK_BYTES + columns * COLUMN_BYTES
