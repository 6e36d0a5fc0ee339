"""Open a plan as one ordered flow: a driver runs its stages, stream operators take the rows."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from time import perf_counter
from typing import Protocol, cast

from dml.data.block import Block
from dml.data.row_slicing import SETTLING_ROWS
from dml.errors import DmlError, ResumeMismatchError
from dml.events import Event
from dml.exec.delivery.checkpoint import unreached
from dml.exec.delivery.meter import Meter, Metered, Tallies
from dml.exec.slicing.lane_passes import LanePasses
from dml.exec.streams.plan_run import PlanRun, open_node
from dml.exec.tasks.coalesced_units import further, joined, placed
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import Firsts, Piece, ReadTask, TaskList
from dml.exec.tasks.skipped_rows import Allowance, discard
from dml.exec.tasks.slices import OnEvent, Outcome, PartitionFeed
from dml.exec.tasks.task import beside_rows
from dml.expr.batch_run import Between
from dml.expr.flow import WHOLE, Flow, GatherQuota, Opener, Position, untyped
from dml.expr.node import Node
from dml.physical.lanes import Lane, apart, fits, fits_units, flat, nested, other_needs, stage_lanes
from dml.physical.operators import (
    ClusterExchange,
    PhysicalOperator,
    SampleCheck,
    SharedStream,
    SliceSteps,
    coalesces,
    on_units,
    physical_tree,
)
from dml.physical.plan import units_each

START: Position = {"unit": 0, "atom": 0, "drop": 0}


class ExchangingCluster(Protocol):
    """A cluster whose workers can run stream operators that need all rows."""

    def exchange(self, run: Streaming, nodes: Sequence[Node], *, finishing: bool) -> Opener:
        """Return the opener of the output of ``nodes``, the first stream operators of ``run``."""


class Watching(Protocol):
    """Compares some output of a run with that of the plan as written, before it is delivered."""

    def watch(
        self, run: Streaming, job: Job, epoch: int, start: Position | None
    ) -> Callable[[Sequence[Piece]], None] | None:
        """Return a function that checks each partition of the stages at ``epoch``, or None."""

    def guarded(
        self, open_: Callable[[], Flow], epoch: int, position: Position | None, *, finishing: bool
    ) -> Flow:
        """Return the flow of ``open_``; it continues with the plan as written if the two differ."""

    def running(self, run: Streaming) -> Streaming:
        """Return ``run``, or the run that replaced it."""

    def event(self, run: str, at: float) -> Event:
        """Return the comparisons so far as an event at time ``at`` of the run named ``run``."""

    def report_differences(self, hear: Callable[[str, str], None]) -> None:
        """Call ``hear`` with a name and a text for each difference from the plan as written."""


class StageFlow:
    """The rows of one epoch of the last stage, in reading order; ``meter`` counts its partitions.

    ``check`` is called with each partition before any of its rows are delivered, and may raise.
    """

    def __init__(
        self,
        feed: PartitionFeed,
        position: Position | None,
        meter: Meter,
        lost: Callable[..., DmlError | None],
        check: Callable[[Sequence[Piece]], None] | None = None,
    ) -> None:
        self.feed, self.meter, self.lost, self.check = feed, meter, lost, check
        start = position or START
        self.pieces: deque[Piece] = deque()
        self.block: Block | None = None  # the current block, delivered up to row ``start``
        self.start = 0
        self.where: tuple[int, int] = (start["unit"], start["atom"])  # of the last piece
        self.place, self.atom = self.where
        self.drop: int = start["drop"]  # rows of the current atom delivered or skipped
        self.to_drop = self.drop
        self.resumed = bool(self.atom or self.drop)  # within an atom, which must exist
        self.error: DmlError | None = None
        self.ending = False
        # number of functions in the job, if lanes above have levels of their own in positions
        self.functions = 0
        self.wheres: list[tuple[int, int]] = []  # of the blocks of the last unit
        self.firsts: Firsts = ()  # rows before later units in the piece
        self.empty = 0
        self.unsettled = True

    def pull(self, most: int, inside: int | None = None) -> Block | None:
        """Return up to ``most`` rows of the current block; None if exhausted.

        Also return None at the end of the unit at place ``inside``, if that is given.
        """
        while self.block is None:
            if inside is not None and self.place != inside:
                return None
            self.place, self.empty = self.place + self.empty, 0
            if self.pieces:
                self._begin(self.pieces.popleft())
                continue
            started, cpu_s = self._waits()
            outcome = self.feed.next()
            if not self._received(outcome, started, cpu_s):
                return None
        return self._take_rows(self.block, most)

    def _take_rows(self, block: Block, most: int) -> Block:
        start, rows = self.start, block.ids.count
        stop = start + most
        if stop < rows:
            self.start = stop
            self.drop += most
            return block.slice(start, stop)
        self.block, self.start = None, 0
        self.drop += rows - start
        if self.ending:
            self._end_unit()
        return block.slice(start, rows) if start else block

    def _end_unit(self) -> None:
        # empty units are passed when more rows are requested
        full = bisect_left(self.firsts, self.drop)
        self.place, self.empty = self.place + 1 + full, len(self.firsts) - full
        self.atom, self.drop = 0, self.to_drop
        self.ending, self.firsts = False, ()

    def at_hand(self) -> tuple[Block, int] | None:
        """Return the current block and how many of its rows are left; None without a block."""
        block = self.block
        return None if block is None else (block, block.ids.count - self.start)

    def between(self) -> Between:
        """Return a function from n to the position after the next n rows."""
        return partial(further, self.place, self.atom, self.drop, self.firsts)

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """Return the blocks of all remaining rows of the current unit; None if exhausted."""
        place, out = self.place, list[Block]()
        self.wheres = []
        while (block := self.pull(WHOLE, place)) is not None:
            room.take(block)
            self.wheres.append(self.where)
            out.append(block)
        return out if self.place != place else out or None

    def _waits(self) -> tuple[float, float]:
        """Return the time and the thread's CPU time in seconds; raise the error of the flow."""
        if self.error is not None:
            raise self.error
        started = perf_counter()
        return started, self.meter.processor.at(started)

    def _received(self, outcome: Outcome | None, started: float, cpu_s: float) -> bool:
        """Check the next partition, and count its rows and the wait for it; return False for None.

        ``started`` and ``cpu_s`` are the values of ``_waits`` before the wait.
        """
        now = self.meter.waited(started, cpu_s)
        if outcome is None:
            if self.resumed or self.to_drop:
                raise unreached(self.to_drop)
            return False
        rows_bytes = outcome.held_bytes - beside_rows(outcome.value)
        self.meter.partition(outcome.rows, rows_bytes, now)
        if self.unsettled and outcome.rows:
            self.unsettled = False
            self.feed.settled()
        try:
            if self.check is not None:
                self.check(outcome.value)
        except DmlError as error:
            self._stopped(error)
            raise
        self.pieces = deque(outcome.value)
        return True

    def _begin(self, piece: Piece) -> None:
        """Make ``piece`` the current one, or raise its error."""
        self.resumed = False
        if piece.where != (self.place, self.atom):
            self.place, self.atom, self.drop = piece.place, piece.atom, self.to_drop
        self.where = piece.where
        error = self.lost(piece.losses, again=self.to_drop > 0) or piece.error
        if error is not None:
            raise self._stopped(error)
        self.ending, self.firsts = piece.ends, piece.firsts
        self.block = self._undropped(piece.block)
        if self.ending and self.block is None:
            self._end_unit()

    def _stopped(self, error: DmlError) -> DmlError:
        """Return ``error``, which ends the flow: later calls raise it again."""
        self.error = error
        self.feed.close()
        return error

    def _undropped(self, block: Block | None) -> Block | None:
        """Skip rows of ``block`` that an earlier run delivered; return None if none are left."""
        rows = 0 if block is None else block.n
        self.start = min(self.to_drop, rows)
        self.to_drop -= self.start
        return block if self.start < rows else None

    def position(self) -> Position:
        """Return the place of the unit, the atom in it, and how many rows of it were delivered."""
        found = placed(self.place, self.atom, self.drop, self.firsts)
        return {**found, "functions": self.functions} if self.functions else found

    def close(self) -> None:
        """Stop the driver, and drop the current rows."""
        self.block = None
        self.pieces.clear()
        self.feed.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Streaming(PlanRun):
    """A run of a plan, with everything that its flows need."""

    beside: tuple[tuple[Streaming, ...], ...] = ()
    watching: Watching | None = None
    cluster: ExchangingCluster | None = None

    @property
    def running(self) -> Streaming:
        """This run, or the run that replaced it because it differed from the plan as written."""
        return self if self.watching is None else self.watching.running(self)

    def hear(self, on_event: OnEvent) -> None:
        """Set ``on_event`` as the receiver of the drivers' events about long waits."""
        for each in self.all:
            each.listener["on_event"] = on_event

    @property
    def all(self) -> Iterator[Streaming]:
        """This run and the runs of all input plans, in the order of ``Plan.all``."""
        yield self
        for runs in self.beside:
            for run in runs:
                yield from run.all

    def flow(
        self, epoch: int, position: Position | None, *, finishing: bool = False, free: bool = False
    ) -> Flow:
        """Return the elements of ``epoch`` from ``position`` on.

        With ``finishing``, elements have the form in which they are delivered. With ``free``, they
        come in any order where possible; each element still comes once.
        """
        open_ = partial(self._flow, epoch, position, finishing=finishing, free=free)
        if self.watching is None:
            return open_()
        return self.watching.guarded(open_, epoch, position, finishing=finishing)

    def _flow(self, epoch: int, position: Position | None, *, finishing: bool, free: bool) -> Flow:
        try:
            opener = self.opener(position, finishing=finishing, free=free)
            if position is None:
                return opener(epoch, None)
            # opening repeats delivered rows, whose losses an earlier run has counted
            return self.allowance.heard(discard, partial(opener, epoch, position))
        except (KeyError, TypeError, ValueError) as error:
            if position is None:  # so no saved position is at fault
                raise
            raise ResumeMismatchError(
                "the saved position does not fit this pipeline", why=f"{type(error).__name__}"
            ) from error

    def opener(
        self, position: Position | None = None, *, finishing: bool = False, free: bool = False
    ) -> Opener:
        """Return the opener of the plan's flow at ``position``; see ``flow`` for the options."""
        return self._opener(self.tree(position, free=free), finishing=finishing)

    def tree(self, position: Position | None = None, *, free: bool = False) -> PhysicalOperator:
        """Return the operators that run the plan from ``position`` on, in any order if ``free``."""
        return physical_tree(self.plan, dataclasses.replace(self.choices, free=free), position)

    def _opener(self, operator: PhysicalOperator, *, finishing: bool) -> Opener:
        """Return the opener of the output flow of ``operator``."""
        number = operator.first - len(self.plan.on_blocks)
        source = None if any(self.beside) else self.plan.stage.source
        passes = LanePasses(source, self.plan.stream[max(0, number + len(operator.nodes)) :])
        if isinstance(operator, ClusterExchange) and self.cluster is not None:
            return self.cluster.exchange(self, operator.nodes, finishing=finishing)
        if number < 0:
            lanes = tuple(each.lane for each in operator.chain() if isinstance(each, SliceSteps))
            return partial(self._open_stage, lanes[::-1], passes, finishing=finishing)
        below = self._opener(operator.inputs[0], finishing=finishing)
        if isinstance(operator, SliceSteps):
            return partial(self._open_over, operator.lane, passes, below)
        if isinstance(operator, SharedStream) and self.tap is not None:
            return partial(self.tap, self, number, below)
        if isinstance(operator, SampleCheck):
            return below
        return partial(open_node, self, operator.nodes[0], below, number)

    def _open_over(
        self, lane: Lane, passes: LanePasses, opener: Opener, epoch: int, position: Position | None
    ) -> Flow:
        """Return the output flow of ``lane``, whose input is the flow that ``opener`` opens."""
        from dml.exec.slicing.open_lanes import open_lane  # noqa: PLC0415 - few runs have lanes

        made, number = opener, lane.first + len(lane.nodes) - len(self.plan.on_blocks)
        for each in (lane,) if fits(position, (lane,)) else apart(lane):
            made = partial(open_lane, self, each, None, made, False, False)  # noqa: FBT003 (bound)
        return Metered(passes.open(made, epoch, position), self.meter, number)

    def _reading(self, epoch: int, first: int | None, places: int | None) -> Job:
        """Return the job that reads ``places`` units and runs the steps before ordinal ``first``.

        None stands for all units, and for all steps.
        """
        at, plan = dataclasses.replace(self.at, epoch=epoch), self.plan
        stage = dataclasses.replace(plan.stage, steps=plan.on_blocks[1:first])
        made = Job(stage, at, self.sizes, self.whole_bytes)
        made.reading.places = made.reading.places if places is None else places
        return made

    def sliced(
        self,
        epoch: int,
        position: Position | None,
        passes: LanePasses,
        *,
        finishing: bool,
        places: int | None = None,
        lanes: Sequence[Lane] = (),
    ) -> Flow:
        """Return the rows of the first ``places`` units (None: all), with functions run on slices.

        ``lanes`` are those of the stages; () for the usual ones.
        """
        lanes = lanes or stage_lanes(self.plan)
        opener = partial(self._open_lanes, lanes, finishing=finishing, places=places)
        return Metered(passes.open(opener, epoch, position), self.meter, 0)

    def _open_lanes(
        self,
        lanes: Sequence[Lane],
        epoch: int,
        position: Position | None,
        *,
        finishing: bool,
        places: int | None,
    ) -> Flow:
        from dml.exec.slicing.open_lanes import open_lane  # noqa: PLC0415

        position = nested(position, lanes)
        if not fits(position, lanes):
            lanes = stage_lanes(self.plan, joined=False)
        job = self._reading(epoch, lanes[0].first if lanes else None, places)
        opener: Opener = partial(self._open_job, job)
        units = bool(self.plan.stream) and self.plan.stream[0].takes_units
        for lane in lanes:
            last = finishing and lane is lanes[-1]
            opener = partial(open_lane, self, lane, job, opener, last, units)
        return opener(epoch, position)

    def _settle(self, epoch: int) -> None:
        """Settle the result types of functions in later stages before the tasks of the epoch begin.

        The functions are called on the first rows, in order. A task of a later stage might get only
        some rows of the first unit, and infer other types from them.
        """
        if not self.plan.links or self.choices.whole_units:
            return
        nodes = [node for link in self.plan.links for node in link.steps if untyped(node, self.at)]
        if not nodes:
            return
        from dml.exec.tasks.rehearsal import refuse_twice  # noqa: PLC0415

        refuse_twice(self.plan.on_blocks)
        looking = dataclasses.replace(
            self, tallies=Tallies(), allowance=Allowance(), watching=None, beside=()
        )
        with (
            suppress(DmlError),  # the error is raised again at its place
            closing(looking.sliced(epoch, None, LanePasses(), finishing=False)) as flow,
        ):
            while any(untyped(node, self.at) for node in nodes) and flow.pull(1) is not None:
                pass

    def _open_job(self, job: Job, _epoch: int, position: Position | None) -> Flow:
        start, meter = position or START, Meter(0, self.meter.most_bytes)
        functions = sum(step.calls is not None for step in job.steps)
        if start["drop"] and start.get("functions", 0) != functions:
            raise other_needs(self.plan.operators[-1])
        flow = StageFlow(self._fed(job, start), position, meter, self.lost)
        flow.functions = functions
        return flow

    def job(self, epoch: int, *, finishing: bool) -> Job:
        """Return the job of the stages at ``epoch``."""
        at = dataclasses.replace(self.at, epoch=epoch)
        plan = self.plan
        spanning = coalesces(plan, self.choices)
        return Job(plan.stage, at, self.sizes, self.whole_bytes, finishing, plan.links, spanning)

    def _open_stage(
        self,
        lanes: Sequence[Lane],
        passes: LanePasses,
        epoch: int,
        position: Position | None,
        *,
        finishing: bool,
    ) -> Flow:
        """Return the rows of the last stage: of ``lanes``, or of tasks on whole units."""
        lanes = lanes or (() if fits_units(position) else stage_lanes(self.plan))
        if lanes:
            return self.sliced(epoch, position, passes, finishing=finishing, lanes=lanes)
        if position is None:
            self._settle(epoch)
        job, position = self.job(epoch, finishing=finishing), flat(position)
        if position is None and self._settles_by_count(job):
            from dml.exec.slicing.open_lanes import Relay  # noqa: PLC0415

            places, once = _settling(job, 0), LanePasses()
            first = self.sliced(epoch, None, once, finishing=finishing, places=places)
            return Relay(first, partial(self._open_units, job, {**START, "unit": places}))
        return self._open_units(job, position)

    def _settles_by_count(self, job: Job) -> bool:
        """Return whether a known number of source rows settles all types, which slices require."""
        units = dataclasses.replace(self.choices, whole_units=False)
        if on_units(self.plan, units) or not unsettled(job):
            return False
        steps = self.plan.on_blocks[1:]
        last = max(n for n, node in enumerate(steps) if untyped(node, self.at))
        return all(node.length(SETTLING_ROWS) == SETTLING_ROWS for node in steps[: last + 1])

    def _open_units(self, job: Job, position: Position | None) -> StageFlow:
        """Return the rows of the units from ``position`` on; one worker processes each unit."""
        start, check = position or START, None
        feed = self._fed(job, start)
        if self.watching is not None:
            check = self.watching.watch(self, job, job.at.epoch, position)
        return StageFlow(feed, position, self.meter, self.lost, check)

    def _fed(self, job: Job, start: Position) -> PartitionFeed:
        """Return the partitions of ``job`` from ``start`` on, or raise ResumeMismatchError.

        The error is raised if the unit of ``start`` has fewer atoms than ``start`` says.
        """
        place, atom = start["unit"], start["atom"]
        atoms = job.reading.unit_at(place).atoms if atom and place < job.reading.places else None
        if atoms is not None and atom > atoms:
            raise unreached(start["drop"])
        driven = partial(self._driven, job)
        feed: PartitionFeed = self.at.store.served(job, place, atom, self.tallies, driven)
        return feed

    def _driven(self, job: Job, unit: int, atom: int) -> PartitionFeed:
        """Start a driver for ``job`` at an atom of the unit at place ``unit``; return its feed."""
        units, unit_at = job.reading.places, job.reading.unit_at
        long = _settling(job, unit) if unsettled(job) else 0
        tasks = TaskList(unit, units, units_each(units, unit_at, self.target_bytes), atom, long)
        feed = self.open(
            cast("Sequence[ReadTask]", tasks),
            *(job, self.tallies),
            settling=unsettled(job),
            on_core=self.holding.begin,
            **self.reports(job),
        )
        return joined(feed, job.steps, spanning=job.spanning)


def _settling(job: Job, place: int) -> int:
    """Return how many units, from ``place`` on, have enough rows to settle the types."""
    rows = 0
    for number, each in enumerate(range(place, job.reading.places)):
        if rows >= SETTLING_ROWS or number == SETTLING_ROWS:
            return number
        found = job.reading.unit_at(each).rows
        rows += SETTLING_ROWS if found is None else found
    return job.reading.places - place


def unsettled(job: Job) -> bool:
    """Return whether a function of ``job`` has a result type that only its first rows settle."""
    return any(untyped(node, job.at) for node in job.steps)
