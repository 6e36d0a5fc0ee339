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

from dml.exec.memory.memory_shares import SAMPLED, Budget, demands_of, in_turn, refuse
from dml.exec.scheduler.baseline_policies import FUSED, as_one
from dml.exec.scheduler.policy import Demand
from dml.io.source import Source
from dml.physical.plan import Plan, units_each
from dml.verify.simulate.virtual_cluster import TaskTruth

MEASURED, HISTORY, GUESS = "measured", "earlier runs", "a table"

USUAL = "adaptive"
# A task of more partitions is run as a task of this many longer ones.
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
    policy : the name of the policy that chooses among runnable tasks
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
    ``over`` are the operators in the caller's thread. ``settling`` is True if schemas are unknown:
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


def model_of(plan: Plan, works: Sequence[ModelWork], budget: Budget, place: RunPlace) -> Model:
    """Return the model of ``plan``, whose operators do ``works``; its other inputs are left out.

    Raise PlanError for resources that ``place`` lacks, as a run there would.
    """
    demands = demands_of(plan, budget)
    demands = in_turn(demands) if place.in_turn else demands
    refuse(plan, demands, place.slots, budget.stage_bytes)
    if place.policy == FUSED:
        plan, demands = as_one(plan, demands, budget.stage_bytes)
    groups = _by_stage(plan, works)
    over = tuple(works[len(plan.on_blocks) :])
    tasks = _tasks(plan, works[0], budget.target_bytes)
    given, steps = tasks, list[ModelStage]()
    for demand, group in zip(demands, groups, strict=True):
        blocks = _blocks_each(plan, group, works[0], given)
        step = _step(demand, group, given, budget.target_bytes, place, blocks=blocks)
        given *= step.truth.slices
        steps.append(step)
    consumed = _consumed(plan, over, steps[-1], given, place)
    read = _stored_bytes(plan, works[0]) / (tasks * steps[0].truth.slices)
    settling = any(not node.schema.known for node in plan.on_blocks)
    return Model(tuple(steps), tasks, budget.stage_bytes, *consumed, read, over, settling)


def _by_stage(plan: Plan, works: Sequence[ModelWork]) -> list[tuple[ModelWork, ...]]:
    """Return the work of each stage's operators; the source is in the first stage."""
    rest = iter(works)
    sizes = (1 + len(plan.stage.steps), *(len(link.steps) for link in plan.links))
    return [tuple(itertools.islice(rest, size)) for size in sizes]


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
    demand: Demand,
    works: tuple[ModelWork, ...],
    given: int,
    target_bytes: int,
    place: RunPlace,
    *,
    blocks: int,
) -> ModelStage:
    """Return the model of the stage ``demand``, whose input is ``given`` tasks or partitions."""
    each_bytes = works[-1].bytes_out / given
    slices = max(1, min(_partitions(each_bytes, blocks, target_bytes), MOST_SLICES))
    seconds = math.fsum(work.seconds for work in works) / (given * slices) + place.partition_s
    nbytes = min(math.ceil(each_bytes / slices), demand.output_bytes)
    parked = demand.open_bytes if slices > 1 else 0
    known = dataclasses.replace(demand, seconds=seconds)
    return ModelStage(known, TaskTruth(seconds, nbytes, slices, parked), works)


def _partitions(nbytes: float, blocks: int, target_bytes: int) -> int:
    """Return the number of partitions for ``nbytes`` in ``blocks``, with whole blocks in each."""
    if not blocks:
        return round(nbytes / target_bytes)
    each = max(1, math.ceil(target_bytes * blocks / max(nbytes, 1.0)))
    return math.ceil(blocks / each)


def _consumed(
    plan: Plan, over: Sequence[ModelWork], last: ModelStage, partitions: int, place: RunPlace
) -> tuple[float, float, float, bool]:
    """Return ``consume_s``, ``after_s``, ``stepping_s`` and ``ahead`` of the ``Model``."""
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
    """Return the number of elements that the training loop takes: batches, or rows."""
    if not plan.batched:
        return rows
    each = next((node.batch_rows for node in plan.stream if node.batch_rows), 1)
    return math.ceil(rows / each)
