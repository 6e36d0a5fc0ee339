"""Run the operators of a lane over an ordered flow: slices in parallel, output rows in order.

The consumer's thread takes slices of the input and gives them to workers. The output is delivered
in the order of the slices. A position consists of the input's position before the oldest slice that
is not wholly delivered, and the number of outputs of that slice that were delivered: a resumed run
computes these outputs again and drops them. Slice boundaries never change the output. Slices wait
at a *gate* until the result types of a function have settled (type_gates.py).
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from time import perf_counter

from dml.data.block import Block
from dml.errors import DmlError
from dml.exec.delivery.checkpoint import unreached
from dml.exec.drivers.promotion import MovingFeed
from dml.exec.drivers.sync import SyncFeed
from dml.exec.slicing.slice_input import SliceInput
from dml.exec.slicing.slice_sizes import LONG_S, PER_WORKER, SlicePace, Spent, Width, last_run
from dml.exec.slicing.slice_worker import Slice, SliceJob
from dml.exec.slicing.type_gates import Gate
from dml.exec.streams.plan_run import PlanRun
from dml.exec.tasks.error_row import placed_later, traced
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.skipped_rows import DeferredLosses
from dml.expr.facts import Rows
from dml.expr.flow import GatherQuota, Position, untyped
from dml.physical.lanes import Lane

# Number of rows in progress for each worker at which one slow row may hold up the rest.
FAR = 64
# Operators that return at most one row for each.
AT_MOST_ONE = (Rows.SAME, Rows.FEWER)


@dataclasses.dataclass(slots=True, eq=False)
class LanePart(Spent):
    """Consecutive input rows that the lane processes as one task, and the time spent on them.

    ``before`` is the input's position before these rows, ``start`` the index of the first one since
    the flow was opened. An earlier run delivered ``skip`` of their outputs, this run ``given``. A
    ``loose`` part may be delivered before earlier parts. ``number`` is the number of its task,
    which got ``task_rows`` rows; ``gate`` is the gate where the part stops, or None: the pieces
    ``waiting`` have reached it, and it has processed the first ``seen`` of them. ``pieces`` await
    delivery. The task of an ``arrived`` part has ended at its gate; a part that is ``over`` gets no
    more ``pieces``.
    """

    before: Position = dataclasses.field(kw_only=True)
    start: int = 0
    skip: int = 0
    given: int = 0
    loose: bool = False
    number: int = -1
    task_rows: int = 0
    gate: Gate | None = None
    seen: int = 0
    pieces: deque[Piece] = dataclasses.field(default_factory=deque)
    waiting: list[Piece] = dataclasses.field(default_factory=list)
    over: bool = False
    arrived: bool = False
    nbytes: int = 0
    given_bytes: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Hearing:
    """Counts the losses of a lane for a run, and adds the origin of rows to errors."""

    run: PlanRun
    lane: Lane
    below: Job | None
    deferred: DeferredLosses

    def lost(self, piece: Piece, *, again: bool) -> DmlError | None:
        """Count the losses of ``piece``; return an error if there are too many, else None.

        With ``again``, an earlier run delivered the rows after these losses, and has counted them.
        """
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
        """Return ``error`` with its origin: the unit at ``place`` (None if the input raised it)."""
        if self.below is None:
            return traced(error, self.run.plan, self.lane.first - len(self.run.plan.on_blocks))
        if place is None:  # the job that reads the units has added the place
            return error
        reading = self.below.reading
        return placed_later(error, reading.unit_at(place), reading.stage.source)


@dataclasses.dataclass(frozen=True, eq=False)
class LaneWork:
    """What a flow needs to run a lane: job, driver, input, slice sizes, counter of losses."""

    job: SliceJob
    feed: SyncFeed | MovingFeed
    taking: SliceInput
    pace: SlicePace
    hearing: Hearing


class SlicedFlow:
    """The output rows of a lane, in order."""

    def __init__(self, work: LaneWork, position: Position | None) -> None:
        self.job, self.feed, self.taking, self.pace = work.job, work.feed, work.taking, work.pace
        self.lane: Lane = work.job.lane
        self.hearing, pace = work.hearing, work.pace
        self.earlier = last_run(self.lane.nodes[-1].digest)
        self.width = Width(pace.workers, self.earlier)
        # elsewhere a slice of rows that became slow would be much to repeat for a lost worker
        pace.expected_s = self.earlier.row_s if self.feed.threaded else None
        nodes = enumerate(self.lane.nodes)
        self.gates = [Gate(node, number) for number, node in nodes if untyped(node, self.job.at)]
        self.parts, self.running = deque[LanePart](), dict[int, LanePart]()
        self.rest: Block | None = None
        self.where: tuple[int, int] = (0, 0)
        self.wheres: list[tuple[int, int]] = []
        self.skip: int = 0 if position is None else position["drop"]
        self.given = self.rows = self.given_bytes = 0
        self.taken = -self.skip  # input rows taken beyond those that an earlier run delivered
        # when the wait for the next result began, and when the one before ended
        self.since = self.back = perf_counter()
        self.asked = 1
        self.ended = self.failing = self.closed = False
        # a function that begins the next pass; and the next pass, once it has begun
        self.then: Callable[[SlicePace], SlicedFlow | None] | None = None
        self.next_pass: SlicedFlow | None = None
        self.error: DmlError | None = None
        self.input_error: DmlError | None = None

    # Output of the flow

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, or one batch; None if exhausted."""
        self.asked = most
        block = self.rest or self._next_block()
        if block is None:
            return None
        if self.lane.batched or block.n <= most:
            self.rest = None
        else:
            self.rest, block = block.slice(most, block.n), block.slice(0, most)
        self._gave(1 if self.lane.batched else block.n)
        if self.rest is None:
            self._pass()
        return block

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """Return the output blocks for the next unit, perhaps none; None if exhausted."""
        if not self.parts:
            self._fill()
        if not self.parts:
            return None
        out, before = list[Block](), self.parts[0].before
        self.wheres = []
        while self.parts and self.parts[0].before is before:
            block, self.rest = self.rest or self._next_block(before), None
            if block is None:
                break
            room.take(block)
            out.append(block)
            self.wheres.append(self.where)
            self._gave(block.n)
            self._pass(before)
        return out

    def position(self) -> Position:
        """Return the input's position before the oldest part, and how many outputs were delivered.

        The outputs include those of an earlier run that this run has yet to drop.
        """
        parts: Sequence[LanePart] = self.parts
        if self.given and self.lane.single and self.lane.batched:
            # a batch is the whole output of a part, also before its task has reported its end
            given = parts[0].before
            parts = [part for part in parts if part.before is not given]
            return self.lane.outer(parts[0].before if parts else self.taking.after, self.skip)
        if not parts:
            return self.lane.outer(self.taking.after, self.given + self.skip)
        return self.lane.outer(parts[0].before, self.given + self.skip)

    def close(self) -> None:
        """Stop the flow; slices of this process end at their next block, slow ones at a call."""
        if self.next_pass is not None and (self.parts or not self.ended):
            self.next_pass.close()  # its rows are not needed
        self.closed = True
        self.job.halt.set()
        self.rest = None
        self.parts.clear()
        self.running.clear()
        self.feed.close()
        self.taking.close()

    def _next_block(self, before: Position | None = None) -> Block | None:
        """Return the next rows that no earlier run delivered, or raise the error in their place.

        Return None at the end, or, if ``before`` is the position before a unit, after its output.
        """
        while (piece := self._next_piece(before)) is not None:
            self.where = piece.where
            error = self.hearing.lost(piece, again=self.skip > 0) if piece.losses else None
            if error is None and piece.error is not None:
                place = None if piece.error is self.input_error else piece.place
                error = self.hearing.placed(piece.error, place)
            if error is not None:
                self.error = error
                self.feed.close()
                raise error
            block = self._unskipped(piece.block)
            if block is not None:
                return block
        if self.skip and before is None:
            raise unreached(self.skip)
        return None

    def _unskipped(self, block: Block | None) -> Block | None:
        """Return ``block`` without rows that an earlier run delivered; None if none are left."""
        if block is None or not self.skip:
            return block.bare() if block is not None and block.n else None
        count = 1 if self.lane.batched else block.n
        dropped = min(self.skip, count)
        self.skip -= dropped
        self._gave(dropped)
        if dropped == count:
            return None
        return block.slice(dropped, block.n)

    def _gave(self, count: int) -> None:
        """Add ``count`` to the delivered outputs of the current part."""
        self.given += count

    # Results of parts

    def _next_piece(self, before: Position | None) -> Piece | None:
        if self.error is not None:
            raise self.error
        while True:
            self._pass(before)
            if before is not None and (not self.parts or self.parts[0].before is not before):
                return None
            if (part := self._ready()) is not None:
                return part.pieces.popleft()
            self._fill()
            if self.running:
                self._receive()
            elif (gate := self._gate()) is not None and self.parts:
                gate.settle(self.job.at)  # there are no other rows
                self._through(gate)
            elif not self.parts:
                return None

    def _ready(self) -> LanePart | None:
        """Return the oldest part if it has pieces to deliver, else None."""
        return self.parts[0] if self.parts and self.parts[0].pieces else None

    def _pass(self, unit: Position | None = None) -> None:
        """Remove the oldest parts, as far as they are wholly delivered.

        ``unit`` is the position before a unit if only parts of that unit may be removed: a unit
        without output counts, too, and not as part of the unit before it.
        """
        while self.parts and self._passed(self.parts[0]):
            if unit is not None and self.parts[0].before is not unit:
                return
            part = self.parts.popleft()
            self._handed_on(part)
            before = self.parts[0].before if self.parts else self.taking.after
            if before is not part.before:
                self.given = 0

    def _passed(self, part: LanePart) -> bool:
        """Return whether ``part`` is wholly delivered, and nothing of later parts was."""
        return part.over and not part.pieces

    def _handed_on(self, part: LanePart) -> None:
        """Update the totals for ``part``, which is wholly delivered."""
        self.rows -= part.rows
        self.given_bytes -= part.given_bytes
        self.pace.handed += part.rows

    def _receive(self) -> None:
        """Wait for the next result of the driver, and process it."""
        self.since = perf_counter()
        outcome = self.feed.next(self._more)
        away_s, self.back = self.since - self.back, perf_counter()
        self.pace.waited(self.back - self.since, away_s)
        number = next(iter(self.running)) if outcome is None else self.feed.at[0]
        part = self.running[number]
        pieces: list[Piece] = []
        done = outcome is None or outcome.done
        if outcome is not None:
            exact = self.lane.free or self.lane.single  # no position may lie after the last row
            pieces = [piece for piece in outcome.value if not exact or _tells(piece)]
            part.seconds += outcome.seconds
            part.cpu_s += outcome.cpu_s
            part.others_s += outcome.others_s
            part.beside = max(1, outcome.beside)
            part.share_s += outcome.share_s
            part.nbytes += sum(each.block.nbytes for each in pieces if each.block is not None)
        self.failing |= any(each.error is not None for each in pieces)
        if done:
            del self.running[number]
            self.feed.forget(number)
            self.pace.measured(part, max(part.nbytes, part.given_bytes))
            self.earlier.row_s = self.pace.row_s
            self._look_at(part)
        if part.gate is None:
            part.pieces.extend(pieces)
            part.over = done
        else:
            self._come(part, pieces, done=done)

    def _look_at(self, part: LanePart) -> None:
        """Decide from the ended slice ``part`` how many slices the workers get at once."""
        feed = self.feed
        if not feed.threaded:
            return
        decided, width = self.width.decided, self.width.measured(part)
        if self.width.alone and not decided:
            feed.alone()
        elif width is not None:
            feed.narrow(width if width < self.width.most else None)
        if self._alone:
            self.pace.workers = 1 if self.width.alone else self.pace.workers
            return
        if self.width.decided:  # slices that wait do not hold the GIL
            feed.unlocked()
        self.pace.workers = max(self.pace.least_workers, feed.parallel)

    def _come(self, part: LanePart, pieces: list[Piece], *, done: bool) -> None:
        """Add output of ``part`` at its gate: the pieces wait there, or continue if it is open."""
        part.waiting += pieces
        part.arrived = done
        if part.gate is not None and part.gate.open:
            self._go_on(part, part.gate)
        while (gate := self._gate()) is not None and self._opened(gate):
            self._through(gate)

    def _opened(self, gate: Gate) -> bool:
        """Return whether ``gate`` is open after processing the pieces that have reached it.

        The gate reads pieces in order of parts, once all earlier parts have arrived entirely.
        """
        for part in self.parts:
            if part.gate is None:
                continue
            if part.gate is not gate:
                break
            new, part.seen = part.waiting[part.seen :], len(part.waiting)
            gate.take(new, self.job.at)
            if gate.open or not part.arrived:
                break
        return gate.open

    def _through(self, gate: Gate) -> None:
        """Continue all parts that wait at ``gate``, which is open."""
        for part in [part for part in self.parts if part.gate is gate]:
            self._go_on(part, gate)

    def _go_on(self, part: LanePart, gate: Gate) -> None:
        """Pass the pieces of ``part`` through its open ``gate``: to delivery, or to a new part."""
        pieces, part.waiting = gate.typed(part.waiting, self.job.at), []
        failed = any(each.error is not None for each in pieces)
        self.failing |= failed
        if gate.index + 1 == len(self.lane.nodes):
            part.pieces.extend(map(self.job.finish, pieces))
        else:
            self._further(part, pieces, gate.index + 1)
        if part.arrived:
            part.over, part.gate = True, None

    def _further(self, part: LanePart, pieces: list[Piece], begin: int) -> None:
        """Start operators ``begin`` and later for pieces that passed a gate, as a new part."""
        some = any(each.block or each.error for each in pieces)
        given = deque[Piece](() if some else pieces)
        further = LanePart(0, before=part.before, pieces=given, over=not some)
        self.parts.insert(self.parts.index(part), further)
        if some:
            self._start(further, pieces, begin)

    # Input of the workers

    def _more(self) -> None:
        """Give workers more slices: a task has ended while the consumer waits for another task."""
        waited_s = perf_counter() - self.since
        slice_s = next(iter(self.running.values())).rows * (self.pace.row_s or 0.0)
        if self.width.given_up(waited_s, slice_s):
            self.feed.narrow(None)
        # alone: the consumer waits for the only slice
        if not self._alone and not self.pace.output_first(waited_s, ready=self.feed.ready):
            self._fill(waited_s)

    def _fill(self, waited_s: float = 0.0) -> None:
        """Give slices to workers until enough are in progress, or the input is much slower."""
        while not (self.ended or self.failing) and self._wanted(waited_s):
            begun = perf_counter()
            self._give(waited_s)
            if self.running:
                self.pace.took(perf_counter() - begun, self.parts[-1].rows)
                if self.pace.output_first(0.0, ready=self.feed.ready):
                    break
        if self.ended and not self.failing and self.feed.unfinished < self.pace.workers:
            self._go_ahead()

    def _go_ahead(self) -> None:
        """Begin the next pass of ``repeat`` on workers that have no more slices in this pass."""
        if self.lane.needs.concurrency and (self.feed.unfinished or self._gate()):
            return  # both passes together would exceed ``concurrency``
        if self.then is not None:
            self.next_pass, self.then = self.then(self.pace), None
        if self.next_pass is not None and not self.next_pass.closed:
            try:
                self.next_pass.begin()
            except Exception:  # noqa: BLE001 - it is opened again, and fails, in its turn
                self.next_pass.close()

    def begin(self) -> None:
        """Give slices to workers before the first rows are requested."""
        self._fill()

    def _wanted(self, waited_s: float) -> bool:
        gate, unfinished = self._gate(), self.feed.unfinished
        few = unfinished < (1 if self._alone else max(1, self.pace.workers))
        if gate is not None:
            if gate.batches and self.running and not self.pace.cutting.ahead:
                return False
            if gate.batches or waited_s < LONG_S:
                light = not self._heavy
                return few and light and gate.wants(self._unseen(gate), len(self.running))
        if self._alone:
            return few
        if len(self.parts) >= PER_WORKER * self.pace.least_workers and self._full:
            return False
        rows = self._under_way(waited_s)
        return self.pace.admits(len(self.parts), rows, unfinished, waiting=waited_s > 0)

    @property
    def _alone(self) -> bool:
        """Whether slices run one at a time, since functions hold the GIL or may do so."""
        return (self.width.alone or self.width.trying) and self.feed.threaded

    @property
    def _heavy(self) -> bool:
        """Whether workers have so many bytes of unprocessed input that they get no more for now.

        While a gate is closed, this bounds the input bytes; the gate counts rows and results only.
        """
        given = sum(part.given_bytes for part in self.running.values())
        least = self.pace.least_workers
        return given >= least * self.pace.cutting.most_bytes and len(self.running) >= least

    def _under_way(self, waited_s: float) -> int:
        """Return how many rows are taken and not delivered; fewer of them count after a long wait.

        If the consumer has waited ``LONG_S`` seconds for a slice, only rows of other unfinished
        slices count, so that one slow row does not hold up the rest.
        """
        if waited_s < LONG_S or self._far:
            return self.rows
        newest = islice(reversed(self.running.values()), max(0, self.feed.unfinished - 1))
        return sum(part.rows for part in newest)

    def _gate(self) -> Gate | None:
        """Return the first closed gate, or None if all gates are open."""
        while self.gates and self.gates[0].open:
            self.gates.pop(0)
        return self.gates[0] if self.gates else None

    def _settles_together(self, gate: Gate) -> bool:
        """Return whether slices may have several of the rows that open ``gate``.

        Not below another closed gate, which their results would wait for behind the rest of the
        slice, nor where more rows than they have reach the gate. Where functions skip rows, the
        losses of a whole slice would count, although a later operator may need its first rows only.
        """
        nodes = self.lane.nodes
        if len(self.gates) > 1 or any(node.skips for node in nodes):
            return False
        return all(node.rows in AT_MOST_ONE for node in nodes[: gate.index])

    def _unseen(self, gate: Gate) -> int:
        """Return the rows of tasks that end at ``gate``, and whose results it has not all read."""
        return sum(
            part.task_rows
            for part in self.parts
            if part.gate is gate and not (part.arrived and part.seen == len(part.waiting))
        )

    @property
    def _far(self) -> bool:
        """Whether so many rows are in progress that one slow row may hold up the rest."""
        return self.rows >= FAR * self.pace.workers or self._full

    @property
    def _full(self) -> bool:
        """Whether rows in progress have as many bytes as they may, as input or as expected output.

        That bound is the same however many slices run at once.
        """
        expected = self.pace.row_bytes * self.rows
        return max(expected, self.given_bytes) >= self.pace.most_bytes

    def _give(self, waited_s: float) -> None:
        """Take the next rows and give them to a worker, or record the end of the input."""
        rows = self._next_rows(self._under_way(waited_s))
        last = len(self.parts)
        if (taken := self._take(rows)) is None:
            return
        part, pieces = taken
        part.given_bytes = sum(each.block.nbytes for each in pieces if each.block is not None)
        self.parts.insert(last, part)  # an error of the input, if it came meanwhile, is behind it
        self.rows += part.rows
        self.given_bytes += part.given_bytes
        self._start(part, pieces, 0, self.taken)
        self.taken += part.rows

    def _next_rows(self, under_way: int) -> int:
        """Return how many rows the next slice has if ``under_way`` rows are in progress."""
        gate = self._gate()
        if gate is not None:
            most = gate.most_rows(self._unseen(gate))
            if self._settles_together(gate):
                return self.pace.settling_rows(most, under_way, len(self.running))
            return min(self.pace.rows(under_way), most)
        rows = self.pace.rows(under_way)
        if self._alone or not self.pace.cutting.ahead:
            return min(rows, max(self.asked, self.pace.short_rows))
        return rows

    def _take(self, rows: int) -> tuple[LanePart, list[Piece]] | None:
        """Return the next rows as a part, and their pieces; None at the input's end or error."""
        try:
            taken = self.taking.take(max(rows, self.pace.least))
        except DmlError as error:
            self._end(error)
            self.input_error, self.failing = error, True
            return None
        if taken is None:
            self._end(None)
            self.ended = True
            return None
        before, pieces = taken
        return LanePart(self._count(pieces), before=before), pieces

    def _end(self, error: DmlError | None) -> None:
        """Append a last part with the remaining losses of the input and ``error``, if any."""
        last = Piece(*self.taking.where, error=error, losses=self.taking.heard())
        if last.losses or error is not None:
            after = self.taking.after
            self.parts.append(LanePart(0, before=after, pieces=deque([last]), over=True))

    def _count(self, pieces: Sequence[Piece]) -> int:
        blocks = (piece.block for piece in pieces if piece.block is not None)
        return len(pieces) if self.lane.batched else sum(block.n for block in blocks)

    def _start(
        self, part: LanePart, pieces: Sequence[Piece], begin: int, first: int | None = None
    ) -> None:
        """Let a worker run ``pieces`` from operator ``begin`` to the next with unsettled types."""
        gate = self._gate()
        part.gate, part.task_rows = gate, self._count(pieces)
        end = len(self.lane.nodes) if gate is None else gate.index + 1
        target_bytes = self.pace.divided(self.job.sizes.target_bytes)
        task = Slice(pieces, begin, end, gate is not None, self.pace.slow, first, target_bytes)
        part.number = self.feed.give(task)
        self.running[part.number] = part


def _tells(piece: Piece) -> bool:
    """Return whether a piece has rows, results, losses or an error."""
    rows = piece.block is not None and piece.block.n > 0
    return bool(rows or piece.losses) or piece.error is not None or piece.returned is not None
