"""This file opens the lanes of a run: their jobs, drivers and budgets, over whatever flow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from dml.errors import DmlError
from dml.exec.blame import placed_later, traced
from dml.exec.budget import lane_demand
from dml.exec.lanes import Lane
from dml.exec.losses import DeferredLosses
from dml.exec.pace import MOST_ROWS, Cutting, Pace
from dml.exec.slice_input import Groups, OneByOne, SliceInput, Units
from dml.exec.sliced import SlicedFlow, Work
from dml.exec.slices import Arriving
from dml.exec.slicing import SliceJob
from dml.exec.unordered import UnorderedFlow
from dml.exec.work import Piece
from dml.expr.block import Block
from dml.expr.facts import Rows
from dml.expr.flow import UNBOUNDED, Flow, Opener, Position, Room
from dml.expr.node import Node
from dml.plan import Stage

if TYPE_CHECKING:
    from dml.exec.job import Job
    from dml.exec.stream import Streaming


# What stands between functions and a ``repeat`` that asks for all they give, of every pass.
PASSING = (
    *(Rows.SAME, Rows.FEWER, Rows.MORE, Rows.PERMUTED, Rows.REPEATED),
    *(Rows.GROUPED, Rows.REGROUPED, Rows.PACKED, Rows.WINDOWS),
)


class Passes:
    """The passes of ``repeat`` over a lane: the next begins while the last slices are made.

    ``above`` are the operators over the lane. Nothing begins early where one of them may not ask
    for all rows, or keeps them for later passes; nor over a ``source`` that a function gives, which
    may depend on what became of the pass before.
    """

    def __init__(self, source: Node | None = None, above: Sequence[Node] = ()) -> None:
        self.count, self.early = 1, dict[int, SlicedFlow]()
        if source is None or source.calls is not None:
            return
        if all(node.rows in PASSING for node in above):
            self.count = math.prod(max(1, getattr(node, "passes", 1)) for node in above)

    def open(self, opener: Opener, epoch: int, position: Position | None) -> Flow:
        """The lane's flow of ``epoch``, which may have begun."""
        early = self.early.pop(epoch, None)
        if early is not None and (position is not None or early.closed):
            early.close()
            early = None
        flow = cast("SlicedFlow", early or opener(epoch, position))
        if (epoch + 1) % self.count:
            flow.then = partial(self._begun, opener, epoch + 1)
        return flow

    def _begun(self, opener: Opener, epoch: int, pace: Pace) -> SlicedFlow | None:
        """The flow of the next pass; None where it cannot be opened, which is told in its turn."""
        try:
            flow = cast("SlicedFlow", opener(epoch, None))
        except Exception:  # noqa: BLE001 - whatever it is, it is raised in its turn
            return None
        flow.pace.follow(pace)
        self.early[epoch] = flow
        return flow


def open_lane(  # noqa: PLR0917 (an Opener, once the first are bound)
    run: Streaming,
    lane: Lane,
    below: Job | None,
    open_input: Opener,
    finishing: bool,  # noqa: FBT001 (bound)
    units: bool,  # noqa: FBT001
    epoch: int,
    position: Position | None,
) -> SlicedFlow:
    """The flow of a lane; ``below`` is the job that reads the units of its rows, if one does.

    With ``units`` a slice is all of one.
    """
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
    pace = Pace(cutting, width, max(1, lane.group_rows), 1 if lane.single else MOST_ROWS)
    try:
        below_it = open_input(epoch, lane.inner(position))
    except BaseException:
        feed.close()
        raise
    hearing = _Hearing(run, lane, below, DeferredLosses(run.allowance))
    taking = _taking(lane, job, cutting, _heard(below_it, job, hearing.deferred), units=units)
    work = Work(job, feed, taking, pace, hearing)
    loose = lane.free or "free" in (position or ())
    return UnorderedFlow(work, position) if loose else SlicedFlow(work, position)


def _heard(flow: Flow, job: SliceJob, deferred: DeferredLosses) -> Sequence[Any]:
    """The input of a lane; where losses are bounded it sets them aside and hands them on."""
    if not job.at.bounded:
        return (flow,)
    return Listening(flow, deferred, most=1 if job.below is None else UNBOUNDED), deferred.taken


def _taking(
    lane: Lane, job: SliceJob, cutting: Cutting, input_: Sequence[Any], *, units: bool
) -> SliceInput:
    room = Room(lane.nodes[0], job.sizes.atom_bytes)
    if units:
        return Units(*input_, room=room)
    if not lane.group_rows:
        return OneByOne(*input_, batched=lane.batched, patience_s=cutting.patience_s)
    return Groups(*input_, size=lane.group_rows, room=room, atoms=lane.atoms)


class Listening:
    """The input of a lane; what is lost below it is set aside, in front of the rows it is given.

    Operators that see the stream are asked for ``most`` rows, one, so that nothing is lost between.
    """

    def __init__(self, flow: Any, deferred: DeferredLosses, most: int) -> None:
        self.flow, self.deferred, self.most = flow, deferred, most
        self.position, self.close = flow.position, flow.close

    def pull(self, most: int) -> Block | None:
        """As the flow does."""
        pull: Callable[[], Block | None] = partial(self.flow.pull, min(most, self.most))
        return self.deferred.listening(pull)

    def pull_piece(self, room: Room) -> list[Block] | None:
        """As the flow does."""
        pull: Callable[[], list[Block] | None] = partial(self.flow.pull_piece, room)
        return self.deferred.listening(pull)

    @property
    def where(self) -> tuple[int, int]:
        """As the flow does."""
        found: tuple[int, int] = getattr(self.flow, "where", (0, 0))
        return found

    @property
    def wheres(self) -> list[tuple[int, int]]:
        """As the flow does."""
        found: list[tuple[int, int]] = self.flow.wheres
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Hearing:
    """Counts for a run what a lane loses, and says where its rows came from."""

    run: Streaming
    lane: Lane
    below: Job | None
    deferred: DeferredLosses

    def lost(self, piece: Piece, *, again: bool) -> DmlError | None:
        """Count what was lost, each with the place of its first row."""
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
        if place is None:  # who reads the units has told
            return error
        reading = self.below.reading
        return placed_later(error, reading.unit_at(place), reading.stage.source)
