"""Make a model of a run from a plan and its operators' work: stages for the virtual cluster.

The model has stages, tasks and partitions with their real sizes, the memory limit, slots, pools
(limits on the concurrent slices of a stage), and the caller's thread. All partitions of a stage are
assumed to be alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dml.exec.delivery.prefetch_depth import DEPTHS
from dml.exec.memory.memory_shares import (
    SAMPLED,
    Budget,
    demands_of,
    in_turn,
    lane_demand,
    refuse,
)
from dml.exec.scheduler.baseline_policies import FUSED, as_one
from dml.exec.scheduler.policy import Demand
from dml.exec.slicing.slice_sizes import Cutting
from dml.expr.node import Node
from dml.io.source import Source
from dml.physical.lanes import Lane
from dml.physical.operators import RunChoices, SliceSteps, TaskSteps, physical_tree
from dml.physical.plan import Plan, units_each
from dml.verify.simulate.virtual_cluster import TaskTruth

# The logarithm of a larger number overflows in exp().
MOST_LOG = 700.0
MEASURED, HISTORY, GUESS = "measured", "earlier runs", "a table"

USUAL = "adaptive"
# A task of more partitions, and slices of ordered rows, are simulated as this many longer ones.
MOST_SLICES = 500


@dataclasses.dataclass(frozen=True, slots=True)
class ModelWork:
    """The assumed work of one operator in a pass, all workers together.

    The operator holds a slot for ``seconds``, a core for ``cpu_s`` of them, and the GIL for
    ``locked_s``. ``sigma`` is the standard deviation of the logarithm of ``seconds``, ``basis`` the
    source of the figures, ``runs`` the number of runs behind them.
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

    def times(self, factor: float) -> ModelWork:
        """Return this work, which takes ``factor`` times as long for the same rows."""
        seconds, cpu_s, locked_s = self.seconds, self.cpu_s, self.locked_s
        return dataclasses.replace(
            self, seconds=factor * seconds, cpu_s=factor * cpu_s, locked_s=factor * locked_s
        )


@dataclasses.dataclass(frozen=True)
class RunPlace:
    """The resources of a simulated run.

    Parameters
    ----------
    slots : resource -> amount
    cores : number of cores, of which a worker uses one while it computes
    in_turn : everything is done in the caller's thread
    shares_lock : only one worker at a time runs Python code
    start_s : seconds until workers start
    partition_s, byte_s : seconds to pass on a partition, in its slot, and seconds in the caller's
        thread for each byte of it
    storage_bytes_s : bytes a second from storage, for all workers together
    step_s : seconds that the training loop holds an element
    ahead_from_s : if an element takes the caller's thread more seconds than this, elements are made
        ahead of the training loop, in a thread of their own
    depth : chunks that may wait there, if there is memory for so many
    variation : squared coefficient of variation of the seconds that they take
    policy : the name of the policy that chooses among runnable tasks
    slice_s : seconds of work of one slice of ordered rows
    at_once : slices of a stage that run at once where a run has found that more than one worker per
        core pays, by the stage's name
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
    depth: int = DEPTHS[-1]
    variation: float = 0.0
    policy: str = USUAL
    slice_s: float = Cutting().aim_s
    at_once: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def wide(self) -> RunPlace:
        """This place, with as many slots for processors as slices of any stage may run at once."""
        if not self.at_once:
            return self
        most = max(self.slots.get("cpu", 0.0), *self.at_once.values())
        return dataclasses.replace(self, slots={**self.slots, "cpu": most})

    def bounded(self, demand: Demand) -> Demand:
        """Return ``demand``, of which no more slices run at once than ``at_once`` or slots say."""
        if not self.at_once:
            return demand
        usual = max(1, int(self.slots.get("cpu", 1.0)))
        most = max(usual, self.at_once.get(demand.name, 0))
        return dataclasses.replace(demand, max_parallel=min(most, demand.max_parallel or most))


@dataclasses.dataclass(frozen=True)
class ModelStage:
    """A stage of the model: the demands of its tasks, their true costs, and their operators."""

    demand: Demand
    truth: TaskTruth
    works: tuple[ModelWork, ...]

    @property
    def title(self) -> str:
        """The title of the operator that takes the most seconds."""
        return max(self.works, key=lambda each: each.seconds).title


@dataclasses.dataclass(frozen=True)
class Model:
    """A plan's stages, the number of ``tasks`` of the first stage, and the caller's thread.

    The caller's thread works ``consume_s`` on every partition and, after the last one, ``after_s``
    more; ``stepping_s`` of all that is the training loop. ``ahead`` is True if the next elements
    are made while the loop holds one. A slice of the first stage reads ``read_bytes`` from storage.
    ``over`` are the operators in the caller's thread, ``late`` those on slices of the rows that a
    sort or a full shuffle outputs. ``settling`` is True if schemas are unknown:
    then the first partition is made before any other.
    """

    steps: tuple[ModelStage, ...]
    tasks: int
    limit_bytes: int
    consume_s: float
    after_s: float
    stepping_s: float
    ahead: bool
    read_bytes: float
    over: tuple[ModelWork, ...]
    settling: bool = False
    late: tuple[ModelWork, ...] = ()

    @property
    def besides_s(self) -> float:
        """The seconds at the start and the end of the run in which workers are idle."""
        alone = math.fsum(step.truth.seconds for step in self.steps) if self.settling else 0.0
        return alone + self.after_s

    @property
    def partitions(self) -> int:
        """The number of partitions that the last stage outputs."""
        return self.tasks * math.prod(step.truth.slices for step in self.steps)

    def slices(self, stage: int) -> int:
        """Return the number of slices of ``stage``, all tasks together."""
        return self.tasks * math.prod(step.truth.slices for step in self.steps[: stage + 1])


def model_of(
    plan: Plan,
    works: Sequence[ModelWork],
    budget: Budget,
    place: RunPlace,
    choices: RunChoices | None = None,
) -> Model:
    """Return the model of ``plan``, whose operators do ``works``; its other inputs are left out.

    ``choices`` are those of the run. Raise PlanError for resources that ``place`` lacks, as a run
    there would.
    """
    demands = demands_of(plan, budget)
    demands = in_turn(demands) if place.in_turn else demands
    refuse(plan, demands, place.slots, budget.stage_bytes)
    if place.policy == FUSED:
        plan, demands = as_one(plan, demands, budget.stage_bytes)
    parts = plan, demands, works, budget, choices or RunChoices()
    staged, late, over = _by_place(*parts, place=place)
    tasks = given = _tasks(plan, works[0], budget.target_bytes)
    steps = list[ModelStage]()
    for group, above in itertools.zip_longest(staged, staged[1:]):
        blocks = _blocks_each(plan, group.works, works[0], given)
        least = 1 if above is None else math.ceil(above.slices / given)
        step = _step(group, given, budget.target_bytes, place, blocks=blocks, least=least)
        given *= step.truth.slices
        steps.append(step)
    late_s = math.fsum(each.seconds_at(place) for each in late)
    elements = _elements(plan, works[len(plan.operators) - 1].rows_out)
    room = budget.ahead_bytes * elements / max(works[len(plan.operators) - 1].bytes_out, 1.0)
    near = dataclasses.replace(place, depth=max(1, min(place.depth, int(room))))
    consumed = _consumed(over, steps[-1], given, near, late_s=late_s, elements=elements)
    read = _stored_bytes(plan, works[0]) / (tasks * steps[0].truth.slices)
    unknown = any(not node.schema.known for node in plan.on_blocks)
    settling = unknown and all(each.slices == 1 for each in staged)  # slices settle side by side
    caller = tuple(work for _, work in over)
    after = tuple(work for each in late for work in each.works)
    return Model(tuple(steps), tasks, budget.stage_bytes, *consumed, read, caller, settling, after)


class _Group(NamedTuple):
    """Operators that run in the same tasks: their demand, works, and number of slices.

    ``slices`` is 1 unless the operators run on slices of ordered rows, which may be cut anywhere.
    """

    demand: Demand
    works: tuple[ModelWork, ...]
    slices: int = 1

    def at(self, place: RunPlace) -> _Group:
        """Return this group with no more slices at once than ``place`` allows."""
        return self._replace(demand=place.bounded(self.demand))

    def seconds_at(self, place: RunPlace) -> float:
        """Return the seconds of all slices on the slots of ``place``, with no other work there."""
        slots = place.wide.slots
        wide = 1.0 if place.in_turn else min(self.demand.parallel(slots), self.slices)
        return math.fsum(work.seconds for work in self.works) / max(1.0, wide)


def _by_place(
    plan: Plan,
    demands: Sequence[Demand],
    works: Sequence[ModelWork],
    budget: Budget,
    choices: RunChoices,
    *,
    place: RunPlace,
) -> tuple[list[_Group], list[_Group], list[tuple[Node, ModelWork]]]:
    """Return the groups that run beside the reading, those after it, and the rest in order.

    Groups run after the reading if an operator below them waits for all rows. The rest are the
    operators in the caller's thread, with their works.
    """
    # more, shorter slices would make the forecast slower, and no better
    most = max(MOST_SLICES, int(2 * place.wide.slots.get("cpu", 1.0)))
    staged, late = [_Group(demands[0], (works[0],))], list[_Group]()
    over = list[tuple[Node, ModelWork]]()
    waits = False
    for each in reversed(list(physical_tree(plan, choices).chain())):
        own = tuple(works[each.first : each.first + len(each.nodes)])
        if isinstance(each, SliceSteps):
            demand = lane_demand(each.lane, budget.target_bytes, budget.stage_bytes)
            before = works[each.first - 1].rows_out
            slices = min(most, _slices(plan, each.lane, own, before, place.slice_s))
            group = _Group(demand, own, slices)
            (late if waits else staged).append(group)
        elif isinstance(each, TaskSteps) and each.number > 1:
            staged.append(_Group(demands[each.number - 1], own))
        elif isinstance(each, TaskSteps):
            staged[0] = _Group(demands[0], (*staged[0].works, *own))
        elif each.first >= len(plan.on_blocks):
            over += zip(each.nodes, own, strict=True)
            waits = waits or any(node.waits for node in each.nodes)
    return [each.at(place) for each in staged], [each.at(place) for each in late], over


def _slices(plan: Plan, lane: Lane, works: Sequence[ModelWork], rows: float, slice_s: float) -> int:
    """Return the number of slices of ``lane`` over ``rows`` rows, cut by time as in a run."""
    elements = _elements(plan, rows) if lane.batched else rows / max(1, lane.group_rows)
    wanted = math.fsum(work.seconds for work in works) / slice_s
    return max(1, min(math.ceil(elements), math.ceil(wanted)))


def _tasks(plan: Plan, read: ModelWork, target_bytes: int) -> int:
    """Return the number of tasks of the first stage, for the part of the source that is read."""
    source = plan.stage.source
    units = source.unit_count
    tasks = max(1, math.ceil(units / units_each(units, source.unit, target_bytes)))
    return max(1, math.ceil(tasks * _share(source, read) - 1e-6))


def _share(source: Source, read: ModelWork) -> float:
    """Return the share of ``source`` that is read, above 1 for several passes; 1 if unknown."""
    return read.rows_out / source.row_count if source.row_count else 1.0


def _stored_bytes(plan: Plan, read: ModelWork) -> float:
    """Estimate the bytes read from storage, from a sample of units; 0 for sources in memory."""
    source, columns = plan.stage.source, plan.stage.columns
    step = max(1, source.unit_count // SAMPLED)
    sizes = [
        source.stored_bytes(source.unit(i), columns) for i in range(0, source.unit_count, step)
    ]
    return sum(sizes) / max(1, len(sizes)) * source.unit_count * _share(source, read)


def _blocks_each(plan: Plan, group: tuple[ModelWork, ...], read: ModelWork, given: int) -> int:
    """Return the number of blocks of one of ``given`` tasks, at least one; 0 if unknown."""
    atoms = plan.stage.source.atom_count
    if not atoms:
        return 0
    asked = atoms * _share(plan.stage.source, read)
    grown = group[-1].rows_out / max(read.rows_out, 1.0)
    return max(1, math.ceil(asked * max(1.0, grown) / given - 1e-6))


def _step(
    group: _Group, given: int, target_bytes: int, place: RunPlace, *, blocks: int, least: int
) -> ModelStage:
    """Return the model of a stage, whose input is ``given`` tasks or partitions.

    A task has at least ``least`` slices, so that the slices above it can run side by side.
    """
    demand, works, _ = group
    each_bytes = works[-1].bytes_out / given
    slices = max(least, min(_partitions(each_bytes, blocks, target_bytes), MOST_SLICES))
    seconds = math.fsum(work.seconds for work in works) / (given * slices) + place.partition_s
    nbytes = min(math.ceil(each_bytes / slices), demand.output_bytes)
    parked = demand.open_bytes if slices > 1 else 0
    known = dataclasses.replace(demand, seconds=seconds)
    if least > 1 or group.slices > 1:  # slices, of which a run soon knows how large they are
        known = dataclasses.replace(known, output_bytes=2 * nbytes)
    return ModelStage(known, TaskTruth(seconds, nbytes, slices, parked), works)


def _partitions(nbytes: float, blocks: int, target_bytes: int) -> int:
    """Return the number of partitions for ``nbytes`` in ``blocks``, with whole blocks in each."""
    if not blocks:
        return round(nbytes / target_bytes)
    each = max(1, math.ceil(target_bytes * blocks / max(nbytes, 1.0)))
    return math.ceil(blocks / each)


def _consumed(
    over: Sequence[tuple[Node, ModelWork]],
    last: ModelStage,
    partitions: int,
    place: RunPlace,
    *,
    late_s: float,
    elements: float,
) -> tuple[float, float, float, bool]:
    """Return ``consume_s``, ``after_s``, ``stepping_s`` and ``ahead`` of the ``Model``.

    ``late_s`` are the seconds of slices above an operator that waits for all rows; the training
    loop takes ``elements``.
    """
    waiting = [i for i, (node, _) in enumerate(over) if node.waits]
    first = waiting[-1] + 1 if waiting else 0
    before = math.fsum(work.seconds for _, work in over[:first])
    above = max(late_s, math.fsum(work.seconds for _, work in over[first:]))
    stepping, ahead = place.step_s * elements, above > place.ahead_from_s * elements
    waits = 1.0
    if ahead:  # one more chunk is made, and has no room yet; the loop takes even steps
        waits = empty_probability(place.depth + 1, stepping / above, place.variation / 2)
    delivering = stepping + waits * above
    handed = place.byte_s * last.works[-1].bytes_out
    if waiting:
        return (handed + before) / partitions, delivering, stepping, ahead
    return (handed + delivering) / partitions, 0.0, stepping, ahead


def empty_probability(size: float, ratio: float, variation: float = 1.0) -> float:
    """Return the probability that a consumer finds a buffer for ``size`` elements empty.

    ``ratio`` is the rate of the producer divided by that of the consumer. ``variation`` is the mean
    of their squared coefficients of variation: 1 for exponential times (the queue M/M/1/k of
    tf.data, Murray et al., VLDB 2021, 3.3.2), and 0 for times that are all the same, for which a
    buffer is empty only as far as the producer is slower.
    """
    if not size or not ratio:
        return 1.0
    if not variation:
        return max(0.0, 1.0 - ratio)
    places = 1.0 + size / variation
    log = math.log1p(ratio - 1.0) if 0.5 < ratio < 2.0 else math.log(ratio)
    if places * log > MOST_LOG:
        return 0.0
    return math.expm1(log) / math.expm1(places * log) if log else 1.0 / places


def _elements(plan: Plan, rows: float) -> float:
    """Return the number of elements that the training loop takes: batches, or rows."""
    if not plan.batched:
        return rows
    each = next((node.batch_rows for node in plan.stream if node.batch_rows), 1)
    return math.ceil(rows / each)
