"""Open the lanes of a run over any flow, with their jobs, drivers and budgets."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from dml.data.block import Block
from dml.errors import DmlError
from dml.exec.memory.memory_shares import lane_demand
from dml.exec.slicing.slice_input import GroupTaker, OneByOne, SliceInput, Units
from dml.exec.slicing.slice_sizes import LONG_S, MOST_ROWS, Cutting, SlicePace
from dml.exec.slicing.slice_worker import SliceJob
from dml.exec.slicing.sliced_flow import Hearing, LanePart, LaneWork, SlicedFlow
from dml.exec.streams.plan_run import PlanRun
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.skipped_rows import DeferredLosses
from dml.exec.tasks.slices import Arriving
from dml.expr.batch_run import Between
from dml.expr.flow import UNBOUNDED, Flow, GatherQuota, Opener, Position
from dml.physical.lanes import Lane, other_needs
from dml.physical.plan import Stage

# Most spans in a position of an unordered flow: with this many, only the oldest slice is delivered.
MOST_SPANS = 64
# Part of the most bytes of rows in progress that may wait for the oldest slice of an unordered flow
WAITING_PART = 4
ALL = -1


def open_lane(  # noqa: PLR0917 (an Opener, once the first are bound)
    run: PlanRun,
    lane: Lane,
    below: Job | None,
    open_input: Opener,
    finishing: bool,  # noqa: FBT001 (bound)
    units: bool,  # noqa: FBT001
    epoch: int,
    position: Position | None,
) -> SlicedFlow:
    """Return the output flow of ``lane`` from ``position`` on; ``open_input`` opens its input.

    ``below`` is the job that reads the input's units, or None. With ``units``, each slice is one
    unit; with ``finishing``, rows have the form in which they are delivered.
    """
    cutting = run.cutting
    at = dataclasses.replace(run.at, epoch=epoch, hold_bytes=run.atom_bytes)
    stage = Stage(run.plan.stage.source, (), (), lane.nodes)
    job = SliceJob(stage, at, run.sizes, finishing=finishing, lane=lane, below=below)
    demand = lane_demand(lane, cutting.most_bytes, run.sizes.most_bytes)
    feed: Any = run.open(
        *(Arriving(), job, run.tallies),
        stages=(demand,),
        on_core=run.holding.beside,
        **run.reports(job),
    )
    width = min(cutting.workers, demand.max_parallel or cutting.workers)
    pace = SlicePace(cutting, width, max(1, lane.group_rows), 1 if lane.single else MOST_ROWS)
    try:
        below_it = open_input(epoch, lane.inner(position))
    except BaseException:
        feed.close()
        raise
    hearing = Hearing(run, lane, below, DeferredLosses(run.allowance))
    taking = _taking(lane, job, cutting, _heard(below_it, job, hearing.deferred), units=units)
    work = LaneWork(job, feed, taking, pace, hearing)
    free = lane.free or "free" in (position or ())
    return UnorderedFlow(work, position) if free else SlicedFlow(work, position)


def _heard(flow: Flow, job: SliceJob, deferred: DeferredLosses) -> Sequence[Any]:
    """Return the arguments of SliceInput: a lane's input and, if losses are limited, ``heard``."""
    if not job.at.bounded:
        return (flow,)
    return Listening(flow, deferred, most=1 if job.below is None else UNBOUNDED), deferred.drain


def _taking(
    lane: Lane, job: SliceJob, cutting: Cutting, input_: Sequence[Any], *, units: bool
) -> SliceInput:
    room = GatherQuota(lane.nodes[0], job.sizes.atom_bytes)
    if units:
        return Units(*input_, room=room)
    if not lane.group_rows:
        return OneByOne(*input_, batched=lane.batched, patience_s=cutting.patience_s)
    return GroupTaker(*input_, size=lane.group_rows, room=room, atoms=lane.atoms)


class FlowOver:
    """A flow that passes on the rows, places and positions of another flow, ``flow``."""

    def __init__(self, flow: Any) -> None:
        self.flow = flow

    @property
    def where(self) -> tuple[int, int]:
        """Place of the unit and number of the atom of the last rows; (0, 0) without units."""
        found: tuple[int, int] = getattr(self.flow, "where", (0, 0))
        return found

    @property
    def wheres(self) -> list[tuple[int, int]]:
        """Place of the unit and number of the atom for each block of the last ``pull_piece``."""
        found: list[tuple[int, int]] = self.flow.wheres
        return found

    def position(self) -> Position:
        """Return the position of the flow."""
        found: Position = self.flow.position()
        return found

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()


class Relay(FlowOver):
    """The rows of one flow, then those of another flow, which is opened after the first ends."""

    def __init__(self, first: Flow, rest: Callable[[], Flow]) -> None:
        super().__init__(first)
        self.rest: Callable[[], Flow] | None = rest

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows of the current flow; None at the end of both."""
        block: Block | None = self.flow.pull(most)
        return self.flow.pull(most) if block is None and self._next() else block

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """Return the blocks of the current flow's next unit; None once both flows have ended."""
        blocks: list[Block] | None = self.flow.pull_piece(room)
        return self.flow.pull_piece(room) if blocks is None and self._next() else blocks

    def _next(self) -> bool:
        """Close the first flow and open the second; return False if that was done before."""
        if self.rest is None:
            return False
        self.flow.close()
        self.flow, self.rest = self.rest(), None
        return True


class Listening(FlowOver):
    """The input of a lane; each pull collects losses of operators below the lane in ``deferred``.

    A pull has at most ``most`` rows: 1 from a stream operator, so that no loss lies inside a block.
    """

    def __init__(self, flow: Any, deferred: DeferredLosses, most: int) -> None:
        super().__init__(flow)
        self.deferred, self.most = deferred, most

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows of the flow, and collect its losses."""
        pull: Callable[[], Block | None] = partial(self.flow.pull, min(most, self.most))
        return self.deferred.listening(pull)

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """Return the blocks of the flow's next unit, and collect its losses."""
        pull: Callable[[], list[Block] | None] = partial(self.flow.pull_piece, room)
        return self.deferred.listening(pull)


class Done(NamedTuple):
    """Input rows [``start``, ``stop``); ``given`` of their outputs were delivered, or ``ALL``."""

    start: int
    stop: int
    given: int = ALL


class OvertakingError(Exception):
    """Ends the wait for a slice, since rows of later slices may be delivered now."""


class UnorderedFlow(SlicedFlow):
    """The output rows of a lane in the order in which slices complete; each row comes once.

    A position is the input's position before the oldest slice that is not wholly delivered, with a
    list of later ranges of input rows (*spans*) whose output was delivered. A resumed run skips the
    spans without calling functions; it computes a partly delivered span again as one slice. Rows
    are in order until types have settled, and until a run has passed the position of an ordered run
    at which it resumed. A lane that is not ``free`` can resume there, too, and then stays in order.
    """

    def __init__(self, work: LaneWork, position: Position | None) -> None:
        super().__init__(work, position)
        saved = (position or {}).get("free")
        if saved is not None and saved["sections"] != self.lane.sections:
            raise other_needs(self.lane.nodes[-1])
        # spans of the saved position that are not reached yet, and spans that this run delivered
        self.saved = deque(Done(*each) for each in saved["given"]) if saved else deque[Done]()
        self.done: list[Done] = []
        self.place = self.origin = 0  # input rows taken; and the base at the last pull
        self.behind = 0  # the last of the taken rows that lie behind the input's position
        self.current: LanePart | None = None
        # the oldest part, since when the consumer waits for it, and whether others may overtake it
        self.head: LanePart | None = None
        self.head_since, self.overtaking = 0.0, False
        self.switched = not self.lane.free

    # Output

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, or one batch; None if exhausted."""
        self.origin = self._base
        return super().pull(most)

    def inside(self, before: Position, rows: int) -> Between:
        """Return a function from n to the position after n of the last ``rows`` delivered rows.

        ``before`` is the flow's position before these rows.
        """
        part = self.current
        if part is None or not part.loose:
            return partial(_dropping, before)
        start, first = part.start - self.origin, part.given - rows
        spans = [Done(*each) for each in before.get("free", {}).get("given", ())]
        others = [each for each in spans if each.start != start]
        current = Done(start, start + part.rows, first)
        return partial(_giving, before, self.lane.sections, others, current)

    def position(self) -> Position:
        """Return the input's position before the oldest slice, with later delivered spans."""
        base, parts = self._base, self.parts
        partly = [
            Done(part.start, part.start + part.rows, part.given + part.skip)
            for part in parts
            if part.loose and part.given + part.skip
        ]
        before = parts[0].before if parts else self.taking.after
        bound = not parts or not parts[0].loose
        outer = self.lane.outer(before, self.given + self.skip if bound else 0)
        spans = [*self.done, *partly, *self.saved]
        # rows before the base are behind the input's position
        found = [Done(max(a - base, 0), b - base, given) for a, b, given in spans]
        return _with_spans(outer, self.lane.sections, found)

    @property
    def _base(self) -> int:
        """Number of the input row from which the spans in a position are counted."""
        return self.parts[0].start if self.parts else self.place - self.behind

    def _ready(self) -> LanePart | None:
        """Return the oldest part with output, or None; an error waits for all parts before it."""
        self._switch()
        first = self.parts[0] if self.parts else None
        free = self.lane.free and len(self.done) < MOST_SPANS
        if first is None or not first.loose or not free:
            self.current = super()._ready()
            return self.current
        able = [part for part in self.parts if part.pieces]
        usual = (part for part in able if part is first or part.pieces[0].error is None)
        found = next(usual, None)
        self.current = found if found is first or self._may_overtake(first, able) else None
        return self.current

    def _may_overtake(self, first: LanePart, able: Sequence[LanePart]) -> bool:
        """Return whether the ``able`` parts may be delivered before ``first``, which is not ready.

        They may once ``first`` has been the oldest part for a while, if workers have nothing else
        to do, or if the rows that wait, which are in no account, have many bytes. Rows in order
        have places in their batch, and are not copied once more.
        """
        if first is not self.head:
            self.head, self.head_since, self.overtaking = first, perf_counter(), False
        idle = len(self.running) < self.pace.workers
        many = sum(part.nbytes for part in able) > self.pace.most_bytes // WAITING_PART
        self.overtaking |= idle or many or perf_counter() - self.head_since > LONG_S
        return self.overtaking

    def _receive(self) -> None:
        with suppress(OvertakingError):
            super()._receive()

    def _more(self) -> None:
        super()._more()
        if self._ready() is not None:
            raise OvertakingError

    def _switch(self) -> None:
        """Deliver slices in order of completion once all gates are open and none stops a slice."""
        if not self.switched and self._gate() is None:
            self.switched = all(part.gate is None for part in self.running.values())
            if self.switched:
                self.feed.unordered()

    def _gave(self, count: int) -> None:
        if self.current is not None and self.current.loose:
            self.current.given += count
        else:
            super()._gave(count)

    def _unskipped(self, block: Block | None) -> Block | None:
        part = self.current
        if part is None or not part.loose:
            return super()._unskipped(block)
        self.skip = part.skip
        left = super()._unskipped(block)
        part.skip, self.skip = self.skip, 0
        return left

    def _pass(self, unit: Position | None = None) -> None:
        """Remove the parts that are wholly delivered, and record their input rows as spans."""
        super()._pass(unit)
        over = [part for part in self.parts if part.loose and part.over and not part.pieces]
        for part in over:
            self.parts.remove(part)
            self._handed_on(part)
            self.done.append(Done(part.start, part.start + part.rows))
        if over:
            base = self._base
            self.done = joined([span for span in self.done if span.stop > base])

    def _passed(self, part: LanePart) -> bool:
        return super()._passed(part) and not part.loose

    # Input

    def _take(self, rows: int) -> tuple[LanePart, list[Piece]] | None:
        """Return the next rows whose output no run delivered, or a partly delivered slice.

        The result is a part and its pieces; None at the end of the input or at an error.
        """
        if not self._read_over():
            return None
        loose = self._gate() is None and not self.skip
        span = self.saved[0] if self.saved else None
        again = span is not None and span.start == self.place
        if span is not None:
            rows = span.stop - self.place if again else min(rows, span.start - self.place)
        start = self.place
        found = self._taken(rows)
        if found is None:
            return None
        part, pieces = found
        while again and part.rows < rows and (more := self._taken(rows - part.rows)) is not None:
            part.rows += more[0].rows
            pieces += more[1]
        if again:
            part.skip = self.saved.popleft().given
        part.start, part.loose = start, loose
        return part, pieces

    def _taken(self, rows: int) -> tuple[LanePart, list[Piece]] | None:
        """Return the next rows, delivered or not, and advance ``place``; None if there are none."""
        found = super()._take(rows)
        if found is not None:
            part = found[0]
            self.place += part.rows
            self.behind = part.rows if self.taking.after is part.before else 0
        return found

    def _end(self, error: DmlError | None) -> None:
        number = len(self.parts)
        super()._end(error)
        for part in list(self.parts)[number:]:
            part.start = self.place - self.behind

    def _read_over(self) -> bool:
        """Discard the next input rows if a resumed run delivered them; return False at the end."""
        while self.saved and self.saved[0].start == self.place and self.saved[0].given == ALL:
            span = self.saved[0]
            while self.place < span.stop:
                if self._taken(span.stop - self.place) is None:
                    return False
            self.done.append(self.saved.popleft())
        return True


def joined(spans: list[Done]) -> list[Done]:
    """Return ``spans`` in ascending order, with adjoining ones merged."""
    out: list[Done] = []
    for span in sorted(spans):
        if out and out[-1].stop == span.start:
            span = Done(out.pop().start, span.stop)  # noqa: PLW2901
        out.append(span)
    return out


# Defined at module level, since chunks that refer to these functions are sent to other processes.


def _dropping(before: Position, rows: int) -> Position:
    return {**before, "drop": before["drop"] + rows}


def _giving(
    before: Position, sections: Any, others: list[Done], current: Done, rows: int
) -> Position:
    more = current._replace(given=current.given + rows)
    return _with_spans(before, sections, [*others, more])


def _with_spans(outer: Position, sections: Any, spans: list[Done]) -> Position:
    """Return position ``outer`` with ``spans``, each as a list [start, stop, outputs delivered]."""
    if not spans:
        return outer
    given = [list(span) for span in sorted(spans)]
    return {**outer, "free": {"sections": sections, "given": given}}
