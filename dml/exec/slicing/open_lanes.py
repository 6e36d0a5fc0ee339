"""The lanes of a run are opened over any flow, with their jobs, drivers and budgets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from dml.data.block import Block
from dml.errors import DmlError
from dml.exec.delivery.meter import Tallies
from dml.exec.memory.memory_shares import lane_demand
from dml.exec.slicing.lanes import Lane
from dml.exec.slicing.slice_input import GroupTaker, OneByOne, SliceInput, Units
from dml.exec.slicing.slice_sizes import MOST_ROWS, Cutting, SlicePace
from dml.exec.slicing.slice_worker import SliceJob
from dml.exec.slicing.sliced_flow import LaneWork, SlicedFlow
from dml.exec.tasks.error_row import placed_later, traced
from dml.exec.tasks.partition import PartitionSizes, Piece
from dml.exec.tasks.skipped_rows import Allowance, DeferredLosses, Loss
from dml.exec.tasks.slices import Arriving
from dml.expr.facts import Rows
from dml.expr.flow import UNBOUNDED, At, Flow, GatherQuota, Opener, Position
from dml.expr.node import Node
from dml.physical.plan import Plan, Stage

if TYPE_CHECKING:
    from dml.exec.tasks.job import Job


# Operators between functions and a ``repeat`` that request all rows of every pass.
PASSING = (
    *(Rows.SAME, Rows.FEWER, Rows.MORE, Rows.PERMUTED, Rows.REPEATED),
    *(Rows.GROUPED, Rows.REGROUPED, Rows.PACKED, Rows.WINDOWS),
)


class LanePasses:
    """The passes of ``repeat`` over a lane: the next begins while the last slices are made.

    ``above`` are the operators over the lane. No pass begins early where one of them may not
    request all rows, or keeps them for later passes; nor over a ``source`` with a user's function,
    which may depend on results of the pass before.
    """

    def __init__(self, source: Node | None = None, above: Sequence[Node] = ()) -> None:
        self.count, self.early = 1, dict[int, SlicedFlow]()
        if source is None or source.calls is not None:
            return
        if all(node.rows in PASSING for node in above):
            self.count = math.prod(max(1, node.passes) for node in above)

    def open(self, opener: Opener, epoch: int, position: Position | None) -> Flow:
        """The lane's flow of ``epoch``, which may have begun already."""
        early = self.early.pop(epoch, None)
        if early is not None and (position is not None or early.closed):
            early.close()
            early = None
        flow = cast("SlicedFlow", early or opener(epoch, position))
        if (epoch + 1) % self.count:
            flow.then = partial(self._begun, opener, epoch + 1)
        return flow

    def _begun(self, opener: Opener, epoch: int, pace: SlicePace) -> SlicedFlow | None:
        """The flow of the next pass; None if opening fails, which is tried again in its turn."""
        try:
            flow = cast("SlicedFlow", opener(epoch, None))
        except Exception:  # noqa: BLE001 - whatever it is, it is raised in its turn
            return None
        flow.pace.follow(pace)
        self.early[epoch] = flow
        return flow


class LaneRun(Protocol):
    """A run as its lanes need it."""

    @property
    def plan(self) -> Plan:
        """The plan that is run."""

    @property
    def at(self) -> At:
        """The epoch, seed and kernels with which blocks are computed."""

    @property
    def open(self) -> Callable[..., Any]:
        """Opens a driver."""

    @property
    def tallies(self) -> Tallies:
        """Counts the work of workers."""

    @property
    def atom_bytes(self) -> int:
        """Bytes that may be gathered of an atom."""

    @property
    def allowance(self) -> Allowance:
        """How many rows may be lost."""

    @property
    def cutting(self) -> Cutting | None:
        """How slices are cut."""

    @property
    def sizes(self) -> PartitionSizes:
        """Bytes of a partition, and of all of them."""

    @property
    def listener(self) -> Any:
        """Options for drivers that tell of events."""

    @property
    def holding(self) -> Any:
        """The bytes that stages hold."""

    def lost(self, losses: Sequence[Loss], *, again: bool = False) -> DmlError | None:
        """Count the rows that operators lost; return the error if these are too many."""


def open_lane(  # noqa: PLR0917 (an Opener, once the first are bound)
    run: LaneRun,
    lane: Lane,
    below: Job | None,
    open_input: Opener,
    finishing: bool,  # noqa: FBT001 (bound)
    units: bool,  # noqa: FBT001
    epoch: int,
    position: Position | None,
) -> SlicedFlow:
    """The flow of a lane over the job ``below``, if it reads units; ``units``: one a slice."""
    cutting = run.cutting or Cutting()
    at = dataclasses.replace(run.at, epoch=epoch, hold_bytes=run.atom_bytes)
    stage = Stage(run.plan.stage.source, (), (), lane.nodes)
    job = SliceJob(stage, at, run.sizes, finishing=finishing, lane=lane, below=below)
    demand = lane_demand(lane, cutting.most_bytes, run.sizes.most_bytes)
    feed: Any = run.open(
        Arriving(),
        job,
        run.tallies,
        stages=(demand,),
        on_event=run.listener.get("on_event"),
        on_core=run.holding.beside,
    )
    width = min(cutting.workers, demand.max_parallel or cutting.workers)
    pace = SlicePace(cutting, width, max(1, lane.group_rows), 1 if lane.single else MOST_ROWS)
    try:
        below_it = open_input(epoch, lane.inner(position))
    except BaseException:
        feed.close()
        raise
    hearing = _Hearing(run, lane, below, DeferredLosses(run.allowance))
    taking = _taking(lane, job, cutting, _heard(below_it, job, hearing.deferred), units=units)
    work = LaneWork(job, feed, taking, pace, hearing)
    if not lane.free and "free" not in (position or ()):
        return SlicedFlow(work, position)
    from dml.exec.slicing.unordered_flow import UnorderedFlow  # noqa: PLC0415

    return UnorderedFlow(work, position)


def _heard(flow: Flow, job: SliceJob, deferred: DeferredLosses) -> Sequence[Any]:
    """The input of a lane; where losses are limited they are set aside and passed on with rows."""
    if not job.at.bounded:
        return (flow,)
    return Listening(flow, deferred, most=1 if job.below is None else UNBOUNDED), deferred.taken


def _taking(
    lane: Lane, job: SliceJob, cutting: Cutting, input_: Sequence[Any], *, units: bool
) -> SliceInput:
    room = GatherQuota(lane.nodes[0], job.sizes.atom_bytes)
    if units:
        return Units(*input_, room=room)
    if not lane.group_rows:
        return OneByOne(*input_, batched=lane.batched, patience_s=cutting.patience_s)
    return GroupTaker(*input_, size=lane.group_rows, room=room, atoms=lane.atoms)


class Listening:
    """The input of a lane; losses below it are set aside, in front of the rows that follow them.

    Operators over the stream are pulled for ``most`` rows, one, so that no loss lies in between.
    """

    def __init__(self, flow: Any, deferred: DeferredLosses, most: int) -> None:
        self.flow, self.deferred, self.most = flow, deferred, most
        self.position, self.close = flow.position, flow.close

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows of the flow."""
        pull: Callable[[], Block | None] = partial(self.flow.pull, min(most, self.most))
        return self.deferred.listening(pull)

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """The blocks of the flow's next unit."""
        pull: Callable[[], list[Block] | None] = partial(self.flow.pull_piece, room)
        return self.deferred.listening(pull)

    @property
    def where(self) -> tuple[int, int]:
        """Place and atom of the last rows of the flow."""
        found: tuple[int, int] = getattr(self.flow, "where", (0, 0))
        return found

    @property
    def wheres(self) -> list[tuple[int, int]]:
        """Place and atom of each block of the flow's last unit."""
        found: list[tuple[int, int]] = self.flow.wheres
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Hearing:
    """Counts the losses of a lane for a run, and adds the origin of rows to errors."""

    run: LaneRun
    lane: Lane
    below: Job | None
    deferred: DeferredLosses

    def lost(self, piece: Piece, *, again: bool) -> DmlError | None:
        """Count losses, each with the place of its first row."""
        place = partial(self.placed, place=piece.place)
        error: DmlError | None = None
        for loss in piece.losses:
            if loss.ordinal < 0:
                losses, told = self.deferred.told.pop(-loss.ordinal)
                found: DmlError | None = None if again else self.run.allowance.add(losses, told)
            else:
                found = self.run.lost((loss.placed(place),), again=again)
            error = error or found
        return error

    def placed(self, error: DmlError, place: int | None) -> DmlError:
        """The error with the file and row, as far as they are known."""
        if self.below is None:
            return traced(error, self.run.plan, self.lane.first - len(self.run.plan.on_blocks))
        if place is None:  # the job that reads the units has added it
            return error
        reading = self.below.reading
        return placed_later(error, reading.unit_at(place), reading.stage.source)
