"""One run is split among ranks: batch g goes to rank g mod n, and none is lost.

All ranks of a split take elements from one engine, the iterator of the run. Elements for slow ranks
are queued, up to a number of elements and of bytes for all ranks together; then the other ranks
wait, too. A rank that is closed, or whose iterator is dropped, gives up its share of that epoch;
the other ranks continue.

A state belongs to a *common step* s: the position of the stream once every rank has its first s
elements. It can be saved at any moment, without waiting, and loaded into any number of ranks.
"""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from dml.errors import DmlError, PlanError, ResumeMismatchError, WorkerLostError
from dml.exec.delivery.checkpoint import SAME, sealed
from dml.exec.delivery.iterator import Elements, StreamMark
from dml.exec.delivery.prefetch import Element

# Garbage collection closes a rank without a notification: waiting ranks look again after this.
LOOK_S = 0.1
# Elements queued for slow ranks at most, all ranks together; their bytes are bounded as well.
LAG = 1024
TRY = "draw all ranks at once, each in a thread or process of its own; close() one that is done"

_log = logging.getLogger("dml")


class Patience:
    """The wait of a rank for one element; measures for how long the split makes no progress."""

    def __init__(self, seat: RankSeat, split: RankSplit) -> None:
        self.seat, self.split = seat, split
        self.moves, self.since = split.moves, 0.0

    def wait(self) -> None:
        """Wait briefly (the lock is held); raise a DmlError if all ranks waited for are gone."""
        split, now = self.split, monotonic()
        if split.moves != self.moves or not self.since or self.seat.run.pulling:
            self.moves, self.since = split.moves, now
        if now - self.since > split.watchdog_s:
            self._look(now - self.since)
            self.since = now
        split.changed.wait(min(LOOK_S, split.watchdog_s))

    def _look(self, waited_s: float) -> None:
        """Log the ranks that this rank waits for; raise a DmlError if all of them are gone."""
        slow = self._slow()
        names = ", ".join(f"rank {seat.rank}" for seat in slow) or "the epoch before"
        if not slow or not all(map(self._gone, slow)):
            text = "Stalled: rank %d waits for %s since %.0f s"
            _log.warning(text, self.seat.rank, names, waited_s)
            return
        raise self._error(slow, names, waited_s)

    def _slow(self) -> list[RankSeat]:
        """Return the shares of other ranks that must take elements, or close, to end the wait."""
        before = self.split.before(self.seat.run)
        open_ = [seat for run in before for seat in run.seats if not (seat.closed or seat.done)]
        mine = self.seat.rank
        return [seat for seat in (*self.split.holders(), *open_) if seat.rank != mine]

    def _gone(self, seat: RankSeat) -> bool:
        holder = seat.holder
        return holder is None or holder is threading.current_thread() or not holder.is_alive()

    def _error(self, slow: list[RankSeat], names: str, waited_s: float) -> DmlError:
        what = f"rank {self.seat.rank} cannot go on, as {names} takes nothing"
        why = f"nothing moved for {waited_s:.0f} s, and what may wait for slow ranks is made"
        if any(seat.holder is threading.current_thread() for seat in slow):
            return PlanError(what, why=f"{why}; they are drawn by this very thread", try_=TRY)
        return WorkerLostError(
            what, why=f"{why}; whoever drew there is gone, or never came", try_=TRY
        )


VERSION = 1
KEYS = {"split", "epoch", "at", "skip", "run", "check"}
START = StreamMark(None, over=False, nbytes=0), 0, 0


class RankSplit:
    """The state that ``n`` ranks share: one lock, and the runs that some rank is still in.

    ``begin`` opens the next iteration of the pipeline. At most one run computes elements at a time.
    """

    def __init__(
        self, n: int, begin: Callable[[], Elements], *, equal: str | None, watchdog_s: float
    ) -> None:
        self.n, self.begin, self.equal, self.watchdog_s = n, begin, equal, watchdog_s
        self.changed = threading.Condition(threading.Lock())
        self.runs: list[SharedRun] = []  # runs that are not over for every rank, oldest first
        self.numbers = [0] * n  # iterations that each rank has begun
        self.moves = 0  # grows with all progress, so that waiting ranks can see it

    def join(self, rank: int) -> RankSeat:
        """Return the share of ``rank`` in its next iteration, and give up its earlier shares."""
        with self.changed:
            number = self.numbers[rank]
            for run in self.runs:
                if run.number < number:
                    run.seats[rank].leave()
            if not self.runs or self.runs[-1].number < number:
                self.runs.append(SharedRun(self, number))
            self.numbers[rank] += 1
            seat = next(run.seats[rank] for run in self.runs if run.number == number)
            self.runs = [each for each in self.runs if not self._behind(each)]
            self.moved()
            return seat

    def _behind(self, run: SharedRun) -> bool:
        """Return True if every rank has left ``run`` and the run is over."""
        return run.number < min(self.numbers) - 1 and run.over()

    def moved(self) -> None:
        """Record progress and wake waiting ranks; the caller holds the lock."""
        self.moves += 1
        self.changed.notify_all()

    def before(self, run: SharedRun) -> list[SharedRun]:
        """Return the runs that must be over before ``run`` may begin."""
        return [each for each in self.runs if each.number < run.number and not each.over()]

    def ended(self, rank: int) -> bool:
        """Return True if the rank has seen the end of its last iteration, without an error."""
        last = self.numbers[rank] - 1
        runs = [run for run in self.runs if run.number == last and run.error is None]
        return any(run.seats[rank].done for run in runs)

    def holders(self) -> list[RankSeat]:
        """Return the shares (seats) of ranks that have queued elements."""
        return [seat for run in self.runs for seat in run.seats if seat.waiting()]

    def full(self, most_bytes: int) -> bool:
        """Return True if the queues of all ranks hold ``LAG`` elements or ``most_bytes`` bytes."""
        held = self.holders()
        count = sum(len(seat.queue) for seat in held)
        return count >= max(LAG, self.n) or sum(seat.nbytes for seat in held) >= most_bytes


class SharedRun:
    """One iteration by all ranks: a seat (share) for each rank, and the positions at each step.

    The *engine* is the iterator of the pipeline. The caller of any method holds the split's lock.
    """

    def __init__(self, split: RankSplit, number: int) -> None:
        self.split, self.number = split, number
        self.seats = [RankSeat(self, rank) for rank in range(split.n)]
        self.deal: All = DEALS[split.equal](split.n)
        self.engine: list[Elements] = []  # empty until it is opened
        weakref.finalize(self, self.engine.clear)  # at exit too, while it can still report
        self.loaded: dict[str, Any] | None = None
        self.start = 0  # elements of the epoch that were delivered before this run
        self.pulled = 0  # elements made; if negative, the number of elements to skip
        self.marks: dict[int, StreamMark] = {}  # by step, from ``oldest`` on
        self.oldest = 0
        self.latest: StreamMark | None = None
        self.pulling = self.ended = False
        self.rounds = 0  # steps of the longest rank, once the run has ended
        self.error: BaseException | None = None

    @property
    def elements(self) -> Elements:
        """The iterator of the pipeline, opened on first access; opening computes no element."""
        if not self.engine:
            for before in self.split.runs:  # each begins an epoch, so they open in order
                if before.number < self.number and not before.engine and not before.over():
                    before.open()
            self.open()
        return self.engine[0]

    def open(self) -> None:
        """Open the iterator of the pipeline, and record its position."""
        self.engine.append(self.split.begin())
        self._note()

    def over(self) -> bool:
        """Return True if no more elements will be made; end the run if all ranks have left."""
        if not self.ended and all(seat.closed for seat in self.seats) and not self.pulling:
            self.ended = True
            for engine in self.engine:
                engine.close()
        return self.ended

    def _note(self) -> None:
        """Record the stream's position, also by step if all ranks have equally many elements."""
        mark = self.elements.mark()
        self.latest = mark
        if self.pulled >= 0 and self.pulled % self.split.n == 0:
            self.marks[self.pulled // self.split.n] = mark

    def load(self, state: dict[str, Any]) -> None:
        """Resume from the validated ``state``; if one was loaded before, check that both agree."""
        if self.loaded is not None:
            _agree(state, self.loaded)
            return
        self.elements.load_state_dict(state["run"])
        self.loaded, self.start, self.pulled = state, state["at"], -state["skip"]
        self.marks.clear()
        self._note()

    def pull(self) -> None:
        """Make one element and queue it for its rank; the lock is released while it is made."""
        elements, split = self.elements, self.split
        element: Element | None = None
        error: BaseException | None = WorkerLostError("the rank that made an element was stopped")
        self.pulling = True
        split.changed.release()
        try:
            element, error = next(elements, None), None
        except Exception as caught:  # noqa: BLE001 - each rank that it concerns raises it in turn
            error = caught
        finally:
            split.changed.acquire()
            self.pulling = False
            self._came(element, error)
            split.moved()

    def _came(self, element: Element | None, error: BaseException | None) -> None:
        if element is None:
            self._end(error)
            return
        self.pulled += 1
        self._note()
        if self.pulled > 0:
            nbytes = 0 if self.latest is None else self.latest.nbytes
            self._give(self.deal.dealt(self.pulled - 1, element, nbytes))

    def _give(self, dealt: Iterator[tuple[int, Element, int]]) -> None:
        for rank, element, nbytes in dealt:
            self.seats[rank].put(element, nbytes)

    def _end(self, error: BaseException | None) -> None:
        """End the run, by ``error`` if not None; queue the elements that were held back."""
        count = max(0, self.pulled)
        self._give(self.deal.rest(count, failed=error is not None))
        self.ended, self.error = True, error
        self.rounds = self.deal.rounds(count)
        if error is None:
            self.pulled = self.rounds * self.split.n
            self._note()

    def mark(self, step: int) -> tuple[StreamMark, int]:
        """Return a position of the stream, and the number of elements from there to ``step``.

        The position is that of ``step`` if it is recorded, else the latest.
        """
        if step in self.marks:
            return self.marks[step], 0
        assert self.latest is not None  # noqa: S101 - opening the engine notes a place
        return self.latest, step * self.split.n - self.pulled

    def forget(self) -> None:
        """Drop the positions that all ranks have passed."""
        lowest = min((seat.step for seat in self.seats if not seat.closed), default=0)
        while self.oldest < lowest:
            self.marks.pop(self.oldest, None)
            self.oldest += 1


class RankSeat:
    """The *seat* of a rank: its share of one run, with a queue of elements; for several threads."""

    def __init__(self, run: SharedRun, rank: int) -> None:
        self.run, self.rank = run, rank
        self.queue: deque[tuple[Element, int]] = deque()
        self.nbytes = self.step = 0
        self.holder: threading.Thread | None = None  # the thread that drew last
        self.agreed = self.closed = self.done = False
        self.kept: tuple[StreamMark, int, int] | None = None  # the position at which the rank left

    @property
    def epoch(self) -> int:
        """The epoch of the run."""
        with self.run.split.changed:
            return self.run.elements.epoch

    def waiting(self) -> bool:
        """Return True if the rank has queued elements."""
        return bool(self.queue) and not self.closed

    def put(self, element: Element, nbytes: int) -> None:
        """Queue an element for the rank; the caller holds the lock."""
        if not self.closed:
            self.queue.append((element, nbytes))
            self.nbytes += nbytes

    def draw(self) -> Element:
        """Return the next element, made now if none is queued; raise StopIteration at the end."""
        run, split = self.run, self.run.split
        with split.changed:
            self.holder = threading.current_thread()
            self._agree()
            patience = Patience(self, split)
            while not self.waiting():
                if self._finished():
                    raise StopIteration
                if run.pulling or split.before(run) or split.full(run.elements.ahead_bytes):
                    patience.wait()
                else:
                    run.pull()
            element, nbytes = self.queue.popleft()
            self.nbytes -= nbytes
            self.step += 1
            run.forget()
            split.moved()
            return element

    def _agree(self) -> None:
        if self.run.loaded is not None and not self.agreed:
            raise ResumeMismatchError(
                f"rank {self.rank} begins at the start of its epoch",
                why=f"another rank goes on from a state of epoch {self.run.loaded['epoch']}",
                try_="load the state on every rank before any of them draws",
            )

    def _finished(self) -> bool:
        """Return True if the rank gets no more elements; raise the run's error, if any, once."""
        run = self.run
        if self.closed or self.done:
            return True
        if not run.ended:
            return False
        self.done = True
        if run.error is not None:
            raise run.error
        self.step = run.rounds
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the position at this rank's step, for any number of ranks, as plain JSON data."""
        with self.run.split.changed:
            elements = self.run.elements
            mark, skip, at = self.kept or self._place()
        whole = elements.state_dict(mark)
        found = {"split": VERSION, "epoch": elements.epoch, "at": at, "skip": skip, "run": whole}
        return sealed(found)

    def _place(self) -> tuple[StreamMark, int, int]:
        """Return a position of the stream, and two numbers of elements.

        Both count up to the rank's step: from that position, and from the start of the epoch.
        """
        run = self.run
        return *run.mark(self.step), run.start + self.step * run.split.n

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state that some rank of a split has saved; every rank must load one.

        Raise ResumeMismatchError if ranks load states of different steps or epochs. Raise PlanError
        if the run has started at another step.
        """
        _check(state)
        run = self.run
        with run.split.changed:
            here = (run.elements.epoch, run.start + self.step * run.split.n)
            if here == (state["epoch"], state["at"]) and self.step:
                self.agreed = True
                return
            if self.step or self.closed or (run.loaded is None and run.pulled):
                raise PlanError(
                    f"rank {self.rank} cannot go on from a state now",
                    why=f"its run has started: it stands at element {here[1]} of epoch {here[0]}",
                    try_="load the states on all ranks before any of them draws",
                )
            run.load(state)
            self.agreed = True
            run.split.moved()

    def step_of(self, state: dict[str, Any]) -> int | None:
        """Return the step of this run at which ``state`` was taken; None if of another run."""
        _check(state)
        run = self.run
        with run.split.changed:
            step, rest = divmod(state["at"] - run.start, run.split.n)
            return None if rest or state["epoch"] != run.elements.epoch else step

    def leave(self) -> None:
        """Give up the rest of the share; take no lock, since garbage collection may call this."""
        if not self.closed:
            self.kept = self._place() if self.run.latest is not None else START
        self.closed = True

    def close(self) -> None:
        """Give up the rest of the share; ``state_dict`` still returns the position reached."""
        with self.run.split.changed:
            self.leave()
            self.queue.clear()
            self.run.over()
            self.run.split.moved()


def _check(state: Any) -> None:
    if not isinstance(state, dict) or set(state) != KEYS or state["split"] != VERSION:
        raise ResumeMismatchError(
            "this is not the state of a rank",
            why=f"it is a {type(state).__name__} without the keys of one, or of another version",
            try_="pass what state_dict() of a rank returned",
        )
    if sealed(state)["check"] != state["check"] or not _possible(**state):
        raise ResumeMismatchError(
            "the saved state is damaged",
            why="its contents do not give the check sum that was saved with them, or no ranks have"
            " ever been at such a place",
            try_="restore an older state; states are not meant to be edited",
        )


def _possible(epoch: Any, at: Any, skip: Any, run: Any, **_: Any) -> bool:
    """Return True if the fields of a state have the right types, and its numbers fit together.

    The ranks have taken ``at`` elements, the last ``skip`` of them after the position of the run.
    """
    counts = all(type(each) is int and each >= 0 for each in (epoch, at, skip))
    return counts and skip <= at and isinstance(run, dict) and run.get("epoch") == epoch


def _agree(state: dict[str, Any], other: dict[str, Any]) -> None:
    """Raise ResumeMismatchError unless both states are of the same step of the same run."""
    for key, mine, theirs in (
        *((key, state[key], other[key]) for key in ("epoch", "at")),
        *((key, state["run"].get(key), other["run"].get(key)) for key in SAME),
    ):
        if mine != theirs:
            word = {"at": "step", "epoch": "epoch"}.get(key, SAME.get(key, key))
            raise ResumeMismatchError(
                f"ranks go on from states of another {word}",
                why=f"this one has {mine!r}, the one that was loaded before has {theirs!r}",
                try_="load states that all ranks saved after the same step",
            )


Dealt = Iterator[tuple[int, Element, int]]  # rank, element, its bytes


class All:
    """Deals element g to rank g mod n; the first ranks get one more if the count is uneven.

    Subclasses may hold elements back until they know where the stream ends.
    """

    def __init__(self, n: int) -> None:
        self.n = n

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield (rank, element, bytes) of the elements to deliver once element ``g`` is made."""
        yield g % self.n, element, nbytes

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """Yield the elements held back when the stream ends, or fails, after ``count`` elements."""
        yield from ()

    def rounds(self, count: int) -> int:
        """Return how many of ``count`` elements the rank with the most elements gets."""
        return -(-count // self.n)


class DropRemainder(All):
    """Deals whole rounds of one element per rank, and drops an incomplete last round."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.round: list[tuple[int, Element, int]] = []

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield all elements of a round if element ``g`` completes the round, else none."""
        self.round.append((g % self.n, element, nbytes))
        if len(self.round) == self.n:
            whole, self.round = self.round, []
            yield from whole

    def rounds(self, count: int) -> int:
        """Return how many of ``count`` elements each rank gets."""
        return count // self.n


class PadRemainder(All):
    """Repeats the last element of the stream for each rank that would lack one.

    Each element is held back until the next one is made: the last one must be copied before a
    rank can change it.
    """

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.last: tuple[int, Element, int] | None = None

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield the element before element ``g``, and hold back element ``g``."""
        if self.last is not None:
            yield self.last
        self.last = (g % self.n, element, nbytes)

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """Yield the last element and, unless ``failed``, a copy for each rank that lacks one."""
        if self.last is None:
            return
        rank, element, nbytes = self.last
        short = () if failed else range(rank + 1, self.n)
        copies = [(each, copy.deepcopy(element), nbytes) for each in short]
        yield self.last
        yield from copies


DEALS: dict[str | None, type[All]] = {None: All, "drop": DropRemainder, "pad": PadRemainder}
