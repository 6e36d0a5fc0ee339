"""Define the options of a run of a plan, and its counters of losses, rows and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, Unpack

from dml.errors import DmlError
from dml.exec.delivery.meter import Meter, Tallies
from dml.exec.memory.memory_report import Holding
from dml.exec.slicing.slice_sizes import Cutting
from dml.exec.tasks.error_row import traced
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import PartitionSizes
from dml.exec.tasks.skipped_rows import Allowance, Loss, Losses
from dml.exec.tasks.slices import OnEvent, Options, PartitionFeed, Tasks
from dml.expr.flow import UNBOUNDED, At, Flow, Opener, Position
from dml.expr.nested_pipelines import Nested, unopened
from dml.physical.plan import Plan


class Open(Protocol):
    """A function that starts a driver; all options but those of the call are set already."""

    def __call__(
        self, tasks: Tasks, job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> PartitionFeed:
        """Begin ``tasks`` of ``job``, counted in ``tallies``; return the feed of partitions."""


class StreamTaps(Protocol):
    """Opens the parts of a run that are shared with other runs."""

    def tap(
        self,
        run: Any,
        number: int,
        open_input: Opener,
        epoch: int,
        position: Position | None,
    ) -> Flow | None:
        """Return the flow of operator ``number`` over the stream of ``run``; None if not shared."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlanRun:
    """How a plan is run: options that affect the timing of a run, never its results.

    ``stage_bytes`` bounds the memory of the stages, ``atom_bytes`` that of an atom in one task. A
    unit of at most ``whole_bytes`` is decoded at once. ``kept_bytes`` is memory for caches and
    tees. ``beside`` has, for each stream operator, the runs of its inputs after the first.
    ``cutting`` is None if no lanes are used.
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
    taps: StreamTaps | None = None
    cutting: Cutting | None = dataclasses.field(default_factory=Cutting)
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
    def listener(self) -> dict[str, OnEvent]:
        """A dict that is empty, or has the receiver of events about long waits as "on_event"."""
        return {}

    @cached_property
    def meter(self) -> Meter:
        """The meter of rows and time at each step between the stages and the consumer."""
        return Meter(len(self.plan.stream), self.stage_bytes + self.kept_bytes)

    def lost(self, losses: Sequence[Loss], *, again: bool = False) -> DmlError | None:
        """Count losses of operators in delivered rows; return an error if they are too many.

        With ``again``, an earlier run delivered the rows that follow the losses.
        """
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
