"""Define the options and counters of a run of a plan, and open single operators of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias, Unpack

from dml.data.block import Block
from dml.errors import DmlError, InternalError, PlanError
from dml.exec.delivery.meter import Meter, Metered, Tallies
from dml.exec.memory.memory_report import Holding
from dml.exec.slicing.slice_sizes import Cutting
from dml.exec.tasks.error_row import traced
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import PartitionSizes
from dml.exec.tasks.row_loss import in_place
from dml.exec.tasks.skipped_rows import Allowance, Loss, Losses
from dml.exec.tasks.slices import Options, PartitionFeed, Reports, Tasks
from dml.expr.flow import (
    UNBOUNDED,
    At,
    BatchFlow,
    Blockwise,
    Flow,
    LocalFlow,
    Opener,
    Position,
    settling,
)
from dml.expr.nested_pipelines import Nested, unopened
from dml.expr.node import Node
from dml.physical.operators import RunChoices
from dml.physical.plan import Plan

# Calls of the deepest operators take up to 6 of Python's 1000 frames, and the caller has some.
DEEPEST = 120


class Open(Protocol):
    """A function that starts a driver; all options but those of the call are set already."""

    def __call__(
        self, tasks: Tasks, job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> PartitionFeed:
        """Begin ``tasks`` of ``job``, counted in ``tallies``; return the feed of partitions."""


StreamTap: TypeAlias = "Callable[[Any, int, Opener, int, Position | None], Flow]"
"""A function that opens the shared operator of a number in a run, as other runs may have opened it.

Its arguments are the run, the number, the opener of the operator's input, the epoch, the position.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class PlanRun:
    """How a plan is run: options that affect the timing of a run, never its results.

    ``stage_bytes`` bounds the memory of the stages, ``atom_bytes`` that of an atom in one task. A
    unit of at most ``whole_bytes`` is decoded at once. ``kept_bytes`` is memory for caches and
    tees. ``beside`` has, for each stream operator, the runs of its inputs after the first.
    ``choices`` shape the tree of operators. ``tap`` opens the places that are shared.
    """

    plan: Plan
    at: At
    open: Open
    target_bytes: int
    tallies: Tallies
    stage_bytes: int = UNBOUNDED
    whole_bytes: int = 0
    atom_bytes: int = UNBOUNDED
    beside: tuple[tuple[Any, ...], ...] = ()
    kept_bytes: int = 0
    allowance: Allowance = dataclasses.field(default_factory=Allowance)
    tap: StreamTap | None = None
    cutting: Cutting = dataclasses.field(default_factory=Cutting)
    choices: RunChoices = dataclasses.field(default_factory=RunChoices)
    nested: Nested = unopened

    @cached_property
    def losses(self) -> Losses:
        """The rows lost to errors of functions."""
        return Losses(self.allowance, self.plan.operators)

    @cached_property
    def holding(self) -> Holding:
        """The memory accounts of the drivers."""
        return Holding()

    @cached_property
    def listener(self) -> dict[str, Any]:
        """Receivers of the drivers' reports: of long waits "on_event", of slices "on_slice"."""
        return {}

    def reports(self, job: Job) -> Reports:
        """Return the options by which a driver of ``job`` reports to the receivers."""
        hears = self.listener.get("on_slice")
        on_slice = None if hears is None else partial(hears, job)
        return {"on_event": self.listener.get("on_event"), "on_slice": on_slice}

    @cached_property
    def meter(self) -> Meter:
        """The meter of rows and time at each step between the stages and the consumer."""
        return Meter(len(self.plan.stream), self.stage_bytes + self.kept_bytes)

    def lost(self, losses: Sequence[Loss], *, again: bool = False) -> DmlError | None:
        """Count losses of operators in delivered rows; return an error if they are too many.

        With ``again``, an earlier run delivered the rows that follow the losses.
        """
        if not losses:
            return None
        if any(loss.timed for loss in losses):
            self.at.keep.refuse()
        # with a loss limit, the earlier run has counted these losses
        return None if again and self.at.bounded else self.losses.add(losses)

    def lost_over(self, number: int, error: DmlError, rows: int) -> None:
        """Count a loss of stream operator ``number``; raise the error if there are too many."""
        traced(error, self.plan, number)
        ordinal = len(self.plan.on_blocks) + number
        loss = Loss.of(ordinal, error, rows)._replace(what=error.what, at=error.at)
        found = self.lost((loss,))
        if found is not None:
            raise found

    @property
    def sizes(self) -> PartitionSizes:
        """Target bytes of a partition, and most bytes of the whole stage and of one task's atom."""
        return PartitionSizes(self.target_bytes, self.stage_bytes, self.atom_bytes)


def _run(node: Any, at: At, block: Block) -> Iterator[Block]:
    """Yield the output blocks of ``node`` for one block; errors name the operator."""
    try:
        yield from in_place(node, block, at)
    except DmlError as error:
        raise error.under(node.label()) from error.__cause__


def open_node(  # noqa: PLR0917 (an Opener, once the first four are bound)
    run: PlanRun,
    node: Node,
    open_input: Opener,
    number: int,
    epoch: int,
    position: Position | None,
) -> Flow:
    """Return the output flow of ``node``, which is stream operator ``number`` of ``run``."""
    lost = partial(run.lost_over, number)
    at = dataclasses.replace(run.at, epoch=epoch, lost=lost, nested=run.nested)
    merged: Any = node
    if len(node.inputs) > 1:
        others = (each.opener() for each in run.beside[number])
        flow: Flow = merged.merge((open_input, *others), epoch, position, at)
    elif node.opens_flow:
        flow = merged.flow(open_input, epoch, position, at)
    elif not node.runs_blocks:
        raise InternalError(f"{node.title()} cannot be executed", why=f"operator {number}")
    elif node.inputs[0].batched:
        flow = BatchFlow(partial(_run, node, at), open_input, epoch, position)
    else:
        work = Blockwise(partial(_run, node, at), partial(settling, node, at))
        flow = LocalFlow(work, open_input, epoch, position)
    return Metered(flow, run.meter, number + 1)


def refuse_depth(node: Node) -> None:
    """Raise PlanError if more than ``DEEPEST`` stream operators lie one above the other."""
    depths: dict[int, int] = {}
    for each in node.walk():
        below = max((depths[id(child)] for child in each.inputs), default=0)
        depths[id(each)] = below + (bool(each.inputs) and not each.rows.local)
        if depths[id(each)] > DEEPEST:
            raise PlanError(
                f"more than {DEEPEST} operators see the stream one above the other",
                at=each.label(),
                why="each waits for the one below it, and Python bounds how deep calls may go",
                try_="ds.mix(*others) of many inputs at once, or .write_parquet(...) half way",
            )
