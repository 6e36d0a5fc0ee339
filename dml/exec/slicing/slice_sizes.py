"""Slices are sized here: how many rows of a flow one worker takes at a time, and how many wait.

Slices aim at a fixed time of work, by measurements of this run; the first slices are a row each, so
that the first results come early. The sizes never change the output.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

# Seconds of work of one slice, and of all slices under way for each worker.
AIM_S, AHEAD_S = 0.05, 0.2
# Slices under way for each worker; rows of a slice at most, and how fast slices grow.
PER_WORKER, MOST_ROWS, GROWTH = 2, 16384, 4
# Seconds that the input may take to give the rows of one slice, but for the first of them.
PATIENCE_S = 0.02
# Weight of the newest slice where it took less time a row than those before.
NEWEST = 0.3
# Seconds of work that are worth a slice, and do not block Python's lock for long.
SHORT_S = 0.005
# Where rows take so long, closing a run stops between two of them.
SLOW_S = 0.001


@dataclasses.dataclass(frozen=True, eq=False)
class Cutting:
    """Parameters by which the slices of a run are cut.

    Parameters
    ----------
    workers : slices that can run at once
    most_bytes : of the rows of one slice, but for its last row
    draw : None; or returns the rows of the next slice, for tests in which cuts are drawn at random
    units : True if functions right above a source are called where a unit is read, for all of it
    ahead : False if the consumer's thread makes the rows: then no more rows than it requests
    """

    workers: int = 2
    most_bytes: int = 4 << 20
    draw: Callable[[], int] | None = None
    units: bool = False
    ahead: bool = True

    @property
    def patience_s(self) -> float:
        """Seconds after which a slice ends early where its input is slow."""
        return PATIENCE_S if self.draw is None else math.inf


class SlicePace:
    """Decides how many rows the next slice has, and whether another slice is started yet."""

    def __init__(
        self, cutting: Cutting, workers: int, least: int = 1, most: int = MOST_ROWS
    ) -> None:
        self.cutting, self.workers, self.least, self.most = cutting, workers, least, most
        self.row_s: float | None = None
        self.row_bytes = 0.0
        self.handed = self.last = 0

    def follow(self, other: SlicePace) -> None:
        """Adopt the measurements of ``other``, for the same rows in another pass."""
        self.row_s, self.row_bytes = other.row_s, other.row_bytes
        self.handed, self.last = other.handed, other.last

    def measured(self, rows: int, seconds: float, nbytes: int) -> None:
        """Record a slice: its rows, bytes and seconds."""
        if not rows:
            return
        each = seconds / rows
        if self.row_s is None or each > self.row_s:
            self.row_s = each if self.row_s is None else (self.row_s + each) / 2
        else:
            self.row_s += NEWEST * (each - self.row_s)
        self.row_bytes = max(nbytes / rows, 0.9 * self.row_bytes)

    def rows(self, under_way: int) -> int:
        """Rows of the next slice, with ``under_way`` rows under way."""
        if self.cutting.draw is not None:
            return max(1, min(self.cutting.draw(), self.most))
        if self.row_s is None:
            return self.least
        wanted = int(AIM_S / max(self.row_s, 1e-9))
        if self.row_bytes:
            wanted = min(wanted, int(self.cutting.most_bytes // self.row_bytes))
        # bound by the rows delivered so far: a consumer of few rows has few made
        most = min(self.most, GROWTH * max(self.least, self.last), self.room(under_way))
        self.last = max(1, min(wanted, max(most, 1)))
        whole = self.last // self.least * self.least
        return max(self.least, whole)

    def room(self, rows: int) -> int:
        """How many more rows may be under way, beside ``rows``."""
        most = PER_WORKER * self.workers * self.least + self.handed
        return most - rows

    def admits(self, slices: int, rows: int, unfinished: int, *, waiting: bool) -> bool:
        """True if another slice may start beside ``slices`` with ``rows`` rows together.

        ``unfinished`` of them are not made yet. While the consumer is ``waiting`` for the first of
        them, finished ones do not count: one slow row must not hold up the rest.
        """
        if not slices:
            return True
        if (unfinished if waiting else slices) >= PER_WORKER * self.workers:
            return False
        if self.room(rows) < self.least and self.cutting.draw is None:
            return False
        if self.row_s is None or not self.last:
            return True
        under_way = unfinished * self.last * self.row_s
        return unfinished < self.workers or under_way < AHEAD_S * self.workers

    @property
    def short_rows(self) -> int:
        """Number of rows that are just worth a slice."""
        return int(SHORT_S / max(self.row_s or 0.0, 1e-9))

    @property
    def slow(self) -> bool:
        """True if rows take so long that a slice is to be stopped between two of them."""
        return self.row_s is None or self.row_s >= SLOW_S


@dataclasses.dataclass(slots=True, eq=False)
class Spent:
    """Rows of a slice, and the time spent on them: see ``Outcome``."""

    rows: int
    seconds: float = 0.0
    cpu_s: float = 0.0
    others_s: float = 0.0
    beside: int = 1
    share_s: float = 0.0


class Width:
    """Decides how many slices of a lane run at once in threads of one process.

    Threads that hold Python's lock take turns: together they use the processor time of one thread.
    Where measurements show that, slices run one at a time for a moment, then at once again. They
    run one at a time from then on if they only computed, were as fast, and still take turns: many
    threads that contend for the lock would starve the training loop. The second measurement is for
    functions whose first calls wait for something to load, which looks like taking turns; two
    slices at once are as conclusive as many, and leave more to the loop.

    A slice that ran alone is taken to have waited for the lock only, while other threads of the
    process computed, if all of them together used no more than one processor.
    """

    def __init__(self, most: int) -> None:
        self.most, self.decided = most, most < 2
        self.trying = self.alone = False
        self.alone_s: float | None = None  # of a row on a processor, where slices ran one at a time
        self._begin()

    def _begin(self) -> None:
        self.slices = self.rows = 0
        self.share_s = self.cpu_s = self.seconds = 0.0
        # of the best slice, as other threads have the lock at times: seconds per processor second
        self.waiting = math.inf

    def measured(self, spent: Spent) -> int | None:
        """Record a slice; returns how many may run at once, if that changes."""
        if self.decided or not spent.rows or (spent.beside > 1) is self.trying:
            return None
        self.slices, self.seconds = self.slices + 1, self.seconds + spent.seconds
        self.share_s, self.cpu_s = self.share_s + spent.share_s, self.cpu_s + spent.cpu_s
        self.rows += spent.rows
        self.waiting = min(self.waiting, spent.seconds / max(_locked_s(spent), 1e-9))
        if self.slices < LOOKED_AT and not self._again_long:
            return None
        if self.seconds < LOOKED_AT_S:
            return None
        return self._tried() if self.trying else self._seen()

    @property
    def _again_long(self) -> bool:
        """True if the second measurement, of two slices at once, has lasted long enough."""
        return self.alone_s is not None and self.slices > 1 and self.seconds > LONG_AGAIN_S

    def given_up(self, waited_s: float, slice_s: float) -> int | None:
        """How many slices may run at once now, if running one at a time delays the consumer.

        It has waited long for a slice that takes ``slice_s``: that slice may wait for other ones.
        """
        if not self.trying or waited_s < max(LONG_S, HELD_UP * slice_s):
            return None
        self.trying = False
        self._begin()
        return self.most

    def _tried(self) -> int:
        """Judge slices that ran one at a time; returns how many may run at once."""
        self.decided, self.trying = self.waiting > COMPUTING, False
        self.alone_s = self.cpu_s / self.rows
        self._begin()
        return self.most if self.decided else min(2, self.most)

    def _seen(self) -> int | None:
        """Judge slices that ran at once; returns how many may run at once, if that changes."""
        low, high = TAKING_TURNS
        turns = low < self.cpu_s / max(self.share_s, 1e-9) < high
        together_s = self.share_s / self.rows
        if turns and self.alone_s is None:
            self.trying = True
            self._begin()
            return 1
        self.decided = True
        self.alone = turns and self.alone_s is not None and self.alone_s <= NO_SLOWER * together_s
        if self.alone_s is None:
            return None
        return 1 if self.alone else self.most


def _locked_s(spent: Spent) -> float:
    """Seconds in which a slice held Python's global lock, or waited for threads holding it."""
    alone = spent.cpu_s + spent.others_s <= ONE_PROCESSOR * spent.seconds
    return spent.cpu_s + (min(spent.others_s, LOCKED * spent.cpu_s) if alone else 0.0)


# Seconds of a wait after which the consumer comes first, whatever that costs; multiples of
# a slice's time after which measuring one at a time is given up.
LONG_S, HELD_UP = 0.1, 4
# Slices, and seconds of them, that are measured before a decision; seconds of the second
# measurement that are enough, however few slices they are.
LOOKED_AT, LOOKED_AT_S, LONG_AGAIN_S = 6, 0.06, 0.15
# Processors used together by threads that take turns; ratio of elapsed to
# processor time of a slice that only computes; ratio of a slice's processor time
# alone to its part of the time together.
TAKING_TURNS, COMPUTING, NO_SLOWER = (0.4, 1.25), 1.25, 1.15
# Processors that threads use together at most if each waits for the lock; multiple of a
# slice's processor time that it may have waited for the lock.
ONE_PROCESSOR, LOCKED = 1.1, 1.0
