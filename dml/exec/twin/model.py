"""This file makes of a plan, and of what its operators take, stages that the virtual cluster runs.

What is kept: stages, tasks and partitions with their real sizes, the memory number, slots, pools of
a stage, the caller's thread. All partitions of a stage are taken to be alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dml.exec.baselines import FUSED, as_one
from dml.exec.budget import SAMPLED, Budget, demands_of, in_turn, refuse
from dml.exec.policy import Demand
from dml.exec.virtual import Truth
from dml.expr.sources.source import Source
from dml.plan import Plan, units_each

MEASURED, HISTORY, GUESS = "measured", "earlier runs", "a table"

USUAL = "adaptive"
# A task of more partitions is run as one of so many longer ones.
MOST_SLICES = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What one operator is taken to do in a pass, all workers together.

    ``seconds`` hold a slot; ``cpu_s`` of them a core, and ``locked_s`` Python's lock. ``sigma`` is
    how far off their logarithm may be, ``basis`` what they rest on, ``runs`` how many runs showed
    them.
    """

    title: str
    seconds: float
    rows_out: float
    bytes_out: float
    cpu_s: float = 0.0
    locked_s: float = 0.0
    sigma: float = 0.0
    basis: str = GUESS
    runs: float = 0.0


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a run is thought to be.

    Parameters
    ----------
    slots : resource -> amount
    cores : cores that there are, of which a worker has one while it computes
    in_turn : everything is done in the caller's thread
    shares_lock : only one worker at a time is in Python
    start_s, partition_s, byte_s : seconds until workers work, of handing on a partition in its
        slot, and of each of its bytes in the caller's thread
    storage_bytes_s : bytes a second that storage gives, to all workers together
    step_s : seconds that the training loop holds an element
    ahead_from_s : elements of which each takes the caller's thread longer than so many seconds are
        made ahead of the training loop, in a thread of their own
    policy : what runs next where several tasks could, by name
    """

    slots: Mapping[str, float]
    cores: float
    in_turn: bool = False
    shares_lock: bool = False
    start_s: float = 0.0
    partition_s: float = 0.0
    byte_s: float = 0.0
    storage_bytes_s: float = math.inf
    step_s: float = 0.0
    ahead_from_s: float = math.inf
    policy: str = USUAL


@dataclasses.dataclass(frozen=True)
class Step:
    """A stage of the model: what its tasks ask for, what they do, and the operators in them."""

    demand: Demand
    truth: Truth
    works: tuple[Work, ...]

    @property
    def title(self) -> str:
        """The operator that takes most."""
        return max(self.works, key=lambda each: each.seconds).title


@dataclasses.dataclass(frozen=True)
class Model:
    """A plan's stages, ``tasks`` of the first, and the caller's thread.

    The caller works ``consume_s`` on every partition and, once it has them all, ``after_s`` more;
    ``stepping_s`` of the two together is the training loop; ``ahead`` if elements are made while it
    holds others. ``read_bytes`` are what a slice of the first stage has from storage. ``over`` are
    the operators in the caller's thread. Where types are unknown, the first partition is made
    before any other (``settling``).
    """

    steps: tuple[Step, ...]
    tasks: int
    limit_bytes: int
    consume_s: float
    after_s: float
    stepping_s: float
    ahead: bool
    read_bytes: float
    over: tuple[Work, ...]
    settling: bool = False

    @property
    def besides_s(self) -> float:
        """Seconds at the begin and the end in which workers have nothing to do."""
        alone = math.fsum(step.truth.seconds for step in self.steps) if self.settling else 0.0
        return alone + self.after_s

    @property
    def partitions(self) -> int:
        """Partitions that the last stage gives."""
        return self.tasks * math.prod(step.truth.slices for step in self.steps)

    def slices(self, stage: int) -> int:
        """Slices of ``stage``, all tasks together."""
        return self.tasks * math.prod(step.truth.slices for step in self.steps[: stage + 1])


def model_of(plan: Plan, works: Sequence[Work], budget: Budget, place: Place) -> Model:
    """The model of ``plan`` (without those beside it) whose operators do ``works``.

    Raises PlanError for what ``place`` lacks, as a run there would.
    """
    demands = demands_of(plan, budget)
    demands = in_turn(demands) if place.in_turn else demands
    refuse(plan, demands, place.slots, budget.stage_bytes)
    if place.policy == FUSED:
        plan, demands = as_one(plan, demands, budget.stage_bytes)
    groups = _by_stage(plan, works)
    over = tuple(works[len(plan.on_blocks) :])
    tasks = _tasks(plan, works[0], budget.target_bytes)
    given, steps = tasks, list[Step]()
    for demand, group in zip(demands, groups, strict=True):
        blocks = _blocks_each(plan, group, works[0], given)
        step = _step(demand, group, given, budget.target_bytes, place, blocks=blocks)
        given *= step.truth.slices
        steps.append(step)
    limit = budget.stage_bytes
    consumed = _consumed(plan, over, steps[-1], given, place)
    read = _stored_bytes(plan, works[0]) / (tasks * steps[0].truth.slices)
    settling = any(not node.schema.known for node in plan.on_blocks)
    return Model(tuple(steps), tasks, limit, *consumed, read, over, settling)


def _by_stage(plan: Plan, works: Sequence[Work]) -> list[tuple[Work, ...]]:
    """The works of each stage, the source's with those of the first."""
    first = 1 + len(plan.stage.steps)
    found, place = [tuple(works[:first])], first
    for link in plan.links:
        found.append(tuple(works[place : place + len(link.steps)]))
        place += len(link.steps)
    return found


def _tasks(plan: Plan, read: Work, target_bytes: int) -> int:
    """Tasks of the first stage: as many as there are, or as what is read of them has."""
    source = plan.stage.source
    units = source.unit_count
    tasks = max(1, math.ceil(units / units_each(units, source.unit, target_bytes)))
    return max(1, math.ceil(tasks * _share(source, read) - 1e-6))


def _share(source: Source, read: Work) -> float:
    """Which part of a source is read; more than one is passes. 1 where nobody knows its rows."""
    return read.rows_out / source.row_count if source.row_count else 1.0


def _stored_bytes(plan: Plan, read: Work) -> float:
    """Bytes that come from storage, judged by some of the units; 0 of what lies in memory."""
    source, columns = plan.stage.source, plan.stage.columns
    step = max(1, source.unit_count // SAMPLED)
    sizes = [
        source.stored_bytes(source.unit(i), columns) for i in range(0, source.unit_count, step)
    ]
    return sum(sizes) / max(1, len(sizes)) * source.unit_count * _share(source, read)


def _blocks_each(plan: Plan, group: tuple[Work, ...], read: Work, given: int) -> int:
    """Blocks that a task makes: one of an atom, more where there are more rows. 0: nobody knows."""
    atoms = plan.stage.source.atom_count
    if not atoms:
        return 0
    asked = atoms * _share(plan.stage.source, read)
    grown = group[-1].rows_out / max(read.rows_out, 1.0)
    return max(1, math.ceil(asked * max(1.0, grown) / given - 1e-6))


def _step(
    demand: Demand,
    works: tuple[Work, ...],
    given: int,
    target_bytes: int,
    place: Place,
    *,
    blocks: int,
) -> Step:
    """A stage that is ``given`` so many units or partitions."""
    each_bytes = works[-1].bytes_out / given
    slices = max(1, min(_partitions(each_bytes, blocks, target_bytes), MOST_SLICES))
    seconds = math.fsum(work.seconds for work in works) / (given * slices) + place.partition_s
    nbytes = min(math.ceil(each_bytes / slices), demand.output_bytes)
    parked = demand.open_bytes if slices > 1 else 0
    known = dataclasses.replace(demand, seconds=seconds)
    return Step(known, Truth(seconds, nbytes, slices, parked), works)


def _partitions(nbytes: float, blocks: int, target_bytes: int) -> int:
    """Into how many partitions so many bytes are cut: each ends with a block."""
    if not blocks:
        return round(nbytes / target_bytes)
    each = max(1, math.ceil(target_bytes * blocks / max(nbytes, 1.0)))
    return math.ceil(blocks / each)


def _consumed(
    plan: Plan, over: Sequence[Work], last: Step, partitions: int, place: Place
) -> tuple[float, float, float, bool]:
    """Seconds of the caller for a partition, at the end, in training; if that is done meanwhile."""
    waiting = [i for i, node in enumerate(plan.stream) if node.waits]
    first = waiting[-1] + 1 if waiting else 0
    before = math.fsum(work.seconds for work in over[:first])
    above = math.fsum(work.seconds for work in over[first:])
    elements = _elements(plan, (over or last.works)[-1].rows_out)
    stepping, ahead = place.step_s * elements, above > place.ahead_from_s * elements
    delivering = max(above, stepping) if ahead else above + stepping
    handed = place.byte_s * last.works[-1].bytes_out
    if waiting:
        return (handed + before) / partitions, delivering, stepping, ahead
    return (handed + delivering) / partitions, 0.0, stepping, ahead


def _elements(plan: Plan, rows: float) -> float:
    """Elements that the training loop takes: batches, or rows."""
    if not plan.batched:
        return rows
    sizes = [getattr(node, "n", None) for node in plan.stream if node.batched]
    each = next((size for size in sizes if isinstance(size, int) and size > 0), 1)
    return math.ceil(rows / each)
