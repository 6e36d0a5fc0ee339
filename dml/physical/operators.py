"""The operators that run a plan, as a tree: the executor opens it, and ``explain`` prints it.

A node of the tree runs some neighbouring operators of the pipeline in one place: in tasks that read
units, in tasks of a later stage, on slices of ordered rows, in order in the consuming process, or
on the workers of a cluster. Only the plan and ``RunChoices`` decide the tree, and no tree has other
rows, so a position fits every tree of its plan in which functions lie in the same lanes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import ClassVar

from dml.data.row_slicing import row_bytes
from dml.expr.facts import Rows
from dml.expr.flow import Position
from dml.expr.node import Node
from dml.physical.lanes import STAGE, Lane, freed_lanes, keeps_units, stage_lanes, stream_lanes
from dml.physical.plan import Plan, Stage

# Units in one block if all rows are kept, and if some may be lost: more would not stay in a
# processor's cache, and batches would be copied (benchmarks/bench_delivery.py).
UNITS, FILTERED = 2, 4


@dataclasses.dataclass(frozen=True, slots=True)
class RunChoices:
    """The choices of a run that shape its tree; none of them affects a value.

    Parameters
    ----------
    sliced : False if functions over the stream run in order, one row or batch after the other
    whole_units : True if functions of the stages run on whole units, in the tasks of the stages
    looks : True if entries of other caches had rows of the stages when the run began
    exchanged : number of the first stream operators that workers of a cluster run
    free : True if elements may be delivered in any order
    shared : digests of the nodes whose rows several runs share
    samples : number of samples of an epoch that are compared with the plan as written
    """

    sliced: bool = True
    whole_units: bool = False
    looks: bool = False
    exchanged: int = 0
    free: bool = False
    shared: frozenset[bytes] = frozenset()
    samples: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class PhysicalOperator:
    """Operators of the pipeline, ``nodes``, that run in one place on the rows of ``inputs``.

    ``first`` is the ordinal of ``nodes[0]`` in ``Plan.operators``.
    """

    kind: ClassVar[str]
    by_workers: ClassVar[bool] = True
    """False if one process runs the operator, in the order of the rows."""

    nodes: tuple[Node, ...]
    first: int
    inputs: tuple[PhysicalOperator, ...] = ()

    def chain(self) -> Iterator[PhysicalOperator]:
        """Yield this operator and those below it on the first input, down to the scan."""
        yield self
        if self.inputs:
            yield from self.inputs[0].chain()


@dataclasses.dataclass(frozen=True, eq=False)
class SourceScan(PhysicalOperator):
    """The source, whose units are read in the order of ``stage``."""

    kind = "scan"

    stage: Stage = dataclasses.field(kw_only=True)


class LateScan(SourceScan):
    """A scan that decodes the filter's columns first, and the others only if a row passes."""

    kind = "late scan"


@dataclasses.dataclass(frozen=True, eq=False)
class Coalesce(PhysicalOperator):
    """Reads up to ``units`` neighbouring small units as one block."""

    kind = "coalesce"

    units: int = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True, eq=False)
class TaskSteps(PhysicalOperator):
    """Row-local operators that run on blocks, in the tasks of stage ``number``, counted from 1."""

    kind = "block"

    number: int = dataclasses.field(kw_only=True)


class UnitCache(TaskSteps):
    """A cache whose entry has a part for each unit: stored parts are read, and others are filled.

    The tasks of the first stage run it. The operators below it run only for units that no entry of
    the store has; their rows are added to the part while they pass.
    """

    kind = "cache"


class UnitLookup(TaskSteps):
    """Operators of a stage whose output is first looked up in entries of other caches, in epoch 0.

    They run for the units, and the columns, that no entry has; nothing is stored.
    """


@dataclasses.dataclass(frozen=True, eq=False)
class SliceSteps(PhysicalOperator):
    """Row-local operators that run on slices of the ordered rows: those of ``lane``."""

    kind = "slices"

    lane: Lane = dataclasses.field(kw_only=True)


class Ordered(PhysicalOperator):
    """An operator that reads its input in order, in the consuming process."""

    kind = "stream"
    by_workers = False


class Merge(Ordered):
    """An operator that reads several inputs in order."""

    kind = "merge"


class SharedStream(Ordered):
    """A place below which the rows are computed once for several runs."""

    kind = "shared"


class ClusterExchange(PhysicalOperator):
    """Operators that need all rows, which the workers of a cluster run in two rounds."""

    kind = "exchange"


@dataclasses.dataclass(frozen=True, eq=False)
class SampleCheck(PhysicalOperator):
    """Compares ``samples`` samples of an epoch's rows with those of the plan as written."""

    kind = "check"
    by_workers = False

    samples: int = dataclasses.field(kw_only=True)


def physical_tree(
    plan: Plan,
    choices: RunChoices,
    position: Position | None = None,
    beside: Sequence[Sequence[PhysicalOperator]] = (),
) -> PhysicalOperator:
    """Return the operators that run ``plan`` from ``position`` on, the last one first.

    ``choices`` are the run's choices for this plan; ``beside`` has, for each stream operator, the
    trees of its further inputs, or nothing if these are opened by runs of their own.
    """
    blocks = len(plan.on_blocks)
    done, stream = choices.exchanged, plan.stream
    over = stream_lanes(plan, done) if choices.sliced else {}
    staged = () if done or on_units(plan, choices) else stage_lanes(plan)
    if choices.free and not choices.samples:
        over |= freed_lanes(plan, over, staged, position)
    if (free := over.pop(STAGE, None)) is not None:
        staged = (*staged[:-1], free)
    made = _stages(plan, choices, staged)
    if done:
        made = ClusterExchange(stream[:done], blocks, (made,))
    while done < len(stream):
        lane = over.get(done)
        if lane is None:
            node, inputs = stream[done], (made, *(beside[done] if beside else ()))
            merges = len(node.inputs) > 1
            kind = SharedStream if node.digest in choices.shared else Merge if merges else Ordered
            made = kind((node,), blocks + done, inputs)
        else:
            made = SliceSteps(lane.nodes, lane.first, (made,), lane=lane)
        done += len(made.nodes)
    if choices.samples:
        return SampleCheck((), blocks + done, (made,), samples=choices.samples)
    return made


def on_units(plan: Plan, choices: RunChoices) -> bool:
    """Return whether functions of the stages run on whole units, not on slices of rows.

    Rows that a cache stores for each unit, and rows that are compared, are made unit by unit.
    """
    whole = choices.whole_units or choices.looks or choices.samples > 0
    return whole or keeps_units(plan)


def coalesces(plan: Plan, choices: RunChoices) -> bool:
    """Return whether blocks may have rows of several units, since they are cut into batches."""
    # rows that are compared with the plan as written must come atom by atom
    return not choices.samples and bool(plan.stream) and plan.stream[0].regroups


def coalesced_units(stage: Stage) -> int:
    """Return how many units one block of the stage's output may have: 1 if units are read alone.

    Units must be adjacent in memory, and steps process rows one by one, without calling functions.
    """
    if stage.order is not None or not stage.source.side_by_side or not stage.steps:
        return 1
    for node in stage.steps:
        called = node.calls is not None and not node.proven
        if called or node.skips or node.by_atom or node.rows not in (Rows.SAME, Rows.FEWER):
            return 1
    if row_bytes(stage.steps[-1].schema) is None:
        return 1
    return UNITS if all(node.rows is Rows.SAME for node in stage.steps) else FILTERED


def stage_tree(stage: Stage, *, spanning: bool = False, looks: bool = False) -> PhysicalOperator:
    """Return the operators that the tasks of the first stage run, the last one first.

    ``spanning`` permits blocks with rows of several units. With ``looks``, entries of other caches
    may have the rows of the last operator.
    """
    scan = LateScan if stage.predicate and stage.first else SourceScan
    made: PhysicalOperator = scan((stage.source,), 0, stage=stage)
    if spanning and (units := coalesced_units(stage)) > 1:
        made = Coalesce((), 1, (made,), units=units)
    in_units = stage.order is None or stage.order.takes_units  # not a permutation of all rows
    first, looked = 1, looks and in_units
    for nodes in _parted(stage.steps):
        last = first + len(nodes) > len(stage.steps)
        kind: type[TaskSteps] = UnitLookup if last and looked else TaskSteps
        kind = UnitCache if nodes[0].rows is Rows.STORED else kind
        made = kind(nodes, first, (made,), number=1)
        first += len(nodes)
    return made


def _parted(steps: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
    """Yield the steps in groups; each cache of units is a group of its own."""
    for stored, some in groupby(steps, lambda step: step.rows is Rows.STORED):
        nodes = tuple(some)
        yield from ((node,) for node in nodes) if stored else (nodes,)


def _stages(plan: Plan, choices: RunChoices, lanes: Sequence[Lane]) -> PhysicalOperator:
    """Return the operators up to the last stage; ``lanes`` run their last steps, if there are any.

    Without lanes, the tasks of the stages run all steps.
    """
    steps = plan.on_blocks[1 : lanes[0].first] if lanes else plan.stage.steps
    spanning = coalesces(plan, choices) and not (plan.links or lanes)
    stage = dataclasses.replace(plan.stage, steps=steps)
    made = stage_tree(stage, spanning=spanning, looks=choices.looks)
    for number, link in enumerate(() if lanes else plan.links, 2):
        first = made.first + len(made.nodes)
        made = TaskSteps(link.steps, first, (made,), number=number)
    for lane in lanes:
        made = SliceSteps(lane.nodes, lane.first, (made,), lane=lane)
    return made
