"""Choose how many rows of a flow make one slice, and how many slices may be in progress.

Sizes are chosen for a fixed time of work per slice, from measurements of this run. The first slices
have one row each, so that the first results come early; those after them may have more, as the rows
that settle types are delivered together. The sizes never change the output.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache

# Seconds of work of one slice, and of all slices in progress for each worker.
AIM_S, AHEAD_S = 0.05, 0.2
# Slices in progress for each worker; most rows of a slice; factor by which slices grow at most.
PER_WORKER, MOST_ROWS, GROWTH = 2, 65536, 4
# Seconds that the input may take for the rows of one slice, except for the first row.
PATIENCE_S = 0.02
# If a slice takes less than this part of the time in which its rows came, its output is awaited
# before further rows.
STARVED = 0.1
# Weight of the newest slice in the mean seconds per row, if the slice was faster than the mean.
NEWEST = 0.3
# Lanes of which it is remembered what their last run found out.
LANES = 1024
# Seconds of processor time of a slice, at most LONGER times as long as others, if slices together
# use BUSY processors. Each slice costs about a millisecond of Python, for which threads compete:
# slices that wait for processors or for Python's lock would become smaller, and make that worse.
COMPUTING_S, LONGER, BUSY = 0.04, 4, 0.75
# Seconds of work that are worth a slice, and do not hold the GIL for long; on a cluster, whose
# scheduler takes several milliseconds of processor time to hand a slice on.
SHORT_S, CLUSTER_SHORT_S = 0.005, 0.05
# Part of the time below which a consumer that does something else is taken for one that waits.
IDLE = 0.25
# If rows take at least so many seconds each, closing a run stops a slice between two of them.
SLOW_S = 0.001


@dataclasses.dataclass(frozen=True, eq=False)
class Cutting:
    """The options for cutting a flow into slices.

    Parameters
    ----------
    workers : slices that can run at once
    most_bytes : most bytes of the rows of one slice, estimated from finished slices
    draw : None, or a function that returns the number of rows of the next slice, for tests
    ahead : False if the consumer's thread runs the functions, on few more rows than it requests
    short_s : least seconds of work that are worth handing a slice to a worker
    """

    workers: int = 2
    most_bytes: int = 4 << 20
    draw: Callable[[], int] | None = None
    ahead: bool = True
    short_s: float = SHORT_S

    @classmethod
    def of(cls, executor: str, workers: int = 2, most_bytes: int = 4 << 20) -> Cutting:
        """Return the options of a run on ``executor``."""
        short_s = CLUSTER_SHORT_S if executor == "distributed" else SHORT_S
        return cls(workers, most_bytes, ahead=executor != "sync", short_s=short_s)

    @property
    def aim_s(self) -> float:
        """Seconds of work of one slice."""
        return max(AIM_S, 2 * self.short_s)

    @property
    def patience_s(self) -> float:
        """Seconds of waiting for input after which a slice ends early; infinite with ``draw``."""
        return PATIENCE_S if self.draw is None else math.inf


class SlicePace:
    """Decides how many rows the next slice has, and whether another slice may start.

    ``workers`` slices run at once, at first ``least_workers``. However many run, the rows in
    progress take no more bytes than ``least_workers`` slices may take.
    """

    def __init__(
        self, cutting: Cutting, workers: int, least: int = 1, most: int = MOST_ROWS
    ) -> None:
        self.cutting, self.least, self.most = cutting, least, most
        self.workers = self.least_workers = workers
        self.row_s: float | None = None
        self.expected_s: float | None = None  # seconds of a row in the run before
        # whether the rows of the last slice came slowly; in how many seconds, if it takes far less
        self.slow_input, self.starving_s = False, 0.0
        self.row_cpu_s = self.used = 0.0  # processors that the slices use together
        self.row_bytes = 0.0
        self.away = 1.0  # part of the time in which the consumer does not wait for slices
        self.handed = self.last = 0

    def follow(self, other: SlicePace) -> None:
        """Copy the measurements of ``other``, the pace of another pass over the same rows."""
        self.row_s, self.row_bytes = other.row_s, other.row_bytes
        self.row_cpu_s, self.used = other.row_cpu_s, other.used
        self.handed, self.last = other.handed, other.last

    def measured(self, spent: Spent, nbytes: int) -> None:
        """Record a finished slice; ``nbytes`` is the larger of its input and its output."""
        rows = spent.rows
        if not rows:
            return
        each, cpu_s = spent.seconds / rows, spent.cpu_s / rows
        self.row_cpu_s += (1.0 if self.row_s is None else NEWEST) * (cpu_s - self.row_cpu_s)
        used = min(spent.cpu_s / max(spent.share_s, 1e-9), float(self.workers))
        self.used += NEWEST * (used - self.used)
        if self.row_s is None or each > self.row_s:
            self.row_s = each if self.row_s is None else (self.row_s + each) / 2
        else:
            self.row_s += NEWEST * (each - self.row_s)
        self.row_bytes = max(nbytes / rows, 0.9 * self.row_bytes)

    def waited(self, waited_s: float, away_s: float) -> None:
        """Record that the consumer waited for a slice, after it had done something else."""
        self.away += NEWEST * (away_s / max(waited_s + away_s, 1e-9) - self.away)

    def rows(self, under_way: int) -> int:
        """Return the number of rows of the next slice if ``under_way`` rows are in progress."""
        if self.cutting.draw is not None:
            return max(1, min(self.cutting.draw(), self.most))
        if self.row_s is None:
            return self.least
        wanted = self._rows_in(self.cutting.aim_s)
        if self.used > BUSY:
            computing = int(COMPUTING_S / max(self.row_cpu_s, 1e-9))
            wanted = max(wanted, min(computing, self._rows_in(LONGER * self.cutting.aim_s)))
        # bounded by the rows delivered so far: for a consumer of few rows, few are computed
        most = min(self.most, GROWTH * max(self.least, self.last), self.room(under_way))
        self.last = max(1, min(wanted, max(most, 1)))
        whole = self.last // self.least * self.least
        return max(self.least, whole)

    def room(self, rows: int) -> int:
        """Return how many rows may start in addition to ``rows`` rows that are in progress."""
        most = PER_WORKER * self.workers * self.least + self.handed
        return most - rows

    def admits(self, slices: int, rows: int, unfinished: int, *, waiting: bool) -> bool:
        """Return whether a slice may start in addition to ``slices`` slices with ``rows`` rows.

        ``unfinished`` of these slices have not completed. While the consumer is ``waiting`` for the
        first slice, only unfinished slices count, so that one slow row does not hold up the rest.
        """
        if not slices:
            return True
        if (unfinished if waiting else slices) >= PER_WORKER * self.workers:
            return False
        if self.room(rows) < self.least and self.cutting.draw is None:
            return False
        if self.row_s is None or not self.last:
            return True
        slice_s = self.last * self.row_s
        ahead_s = max(AHEAD_S, PER_WORKER * slice_s) if self.used > BUSY else AHEAD_S
        return unfinished < self.workers or unfinished * slice_s < ahead_s * self.workers

    def took(self, taken_s: float, rows: int) -> None:
        """Record that the ``rows`` rows of a slice took ``taken_s`` seconds to come."""
        slice_s = rows * (self.row_s or self.expected_s or 0.0)
        self.slow_input = taken_s > self.cutting.patience_s
        self.starving_s = taken_s if self.slow_input and slice_s < taken_s * STARVED else 0.0

    def output_first(self, waited_s: float, *, ready: bool) -> bool:
        """Return whether output is delivered before more rows of a slow input are awaited.

        The output is ``ready``, or will be far sooner than the rows. The consumer has waited for it
        for ``waited_s`` seconds.
        """
        return (self.slow_input and ready) or waited_s < self.starving_s

    def divided(self, nbytes: int) -> int:
        """Return the part of ``nbytes`` for one slice if more than ``least_workers`` slices run."""
        return nbytes * self.least_workers // max(self.least_workers, self.workers)

    @property
    def most_bytes(self) -> int:
        """Most bytes of rows in progress."""
        return PER_WORKER * self.least_workers * self.cutting.most_bytes

    @property
    def short_rows(self) -> int:
        """Number of rows that take ``short_s`` seconds, the least work that is worth a slice.

        It is larger for a consumer that hardly does anything but wait: nothing is delayed by it.
        """
        short_s = self.cutting.short_s * (LONGER if self.away < IDLE else 1)
        return int(short_s / max(self.row_s or 0.0, 1e-9))

    def _rows_in(self, seconds: float) -> int:
        """Return the rows that take ``seconds``, or fewer that have the bytes of a slice."""
        timely = int(seconds / max(self.row_s or 0.0, 1e-9))
        if not self.row_bytes:
            return timely
        return min(timely, int(self.divided(self.cutting.most_bytes) // self.row_bytes))

    def settling_rows(self, missing: int, under_way: int, running: int) -> int:
        """Return the rows of the next slice if ``missing`` rows are needed before any is delivered.

        They are divided among the workers that do not have one of the ``running`` slices, unless a
        slice would be shorter than it is worth. Several workers take slow rows one by one, since
        these may differ in time.
        """
        first, row_s = self.row_s is None, self.row_s or self.expected_s
        if row_s is None or self.cutting.draw is not None:
            return min(self.rows(under_way), missing)
        short_s = self.cutting.short_s if self.least_workers > 1 else AHEAD_S
        wanted = int(short_s / max(row_s, 1e-9)) if first else self._rows_in(short_s)
        even = -(-missing // max(1, self.least_workers - running))
        most = min(self.most, even if first else GROWTH * max(1, self.last), even)
        self.last = max(1, min(wanted, most))
        return self.last

    @property
    def slow(self) -> bool:
        """Whether a row takes so long that closing a run stops a slice before its next row."""
        return self.row_s is None or self.row_s >= SLOW_S


@dataclasses.dataclass(slots=True, eq=False)
class Spent:
    """Rows of a slice, and the time spent on them; ``Outcome`` explains the fields."""

    rows: int
    seconds: float = 0.0
    cpu_s: float = 0.0
    others_s: float = 0.0
    beside: int = 1
    share_s: float = 0.0


@dataclasses.dataclass(slots=True)
class LastRun:
    """What the run before found out: whether slices took no turns, and the seconds of a row."""

    apart: bool = False
    row_s: float | None = None


@lru_cache(LANES)
def last_run(_lane: bytes) -> LastRun:
    """Return what the last run of this process found out about the lane of this fingerprint."""
    return LastRun()


class Width:
    """Decides how many slices of a lane run at once in threads of one process.

    Threads that need the GIL take turns: together they use the processor time of one thread. If
    measurements show that, slices run one at a time for a while, then two at once again. From then
    on they run one at a time if a slice alone only computed and was as fast, and two slices still
    took turns: many threads that contend for the GIL would starve the training loop. The second
    measurement is needed because a function whose first calls wait for something to load also seems
    to take turns. It needs only two slices, which leave more processor time to the loop.

    Other threads of the process may compute while a slice runs alone. If all threads together used
    at most one processor, the slice is assumed to have waited for nothing but the GIL.

    The first slices of a run load and warm up much, and may seem to take turns. If the slices of
    the run before did not, more of them are measured before they run one at a time.
    """

    def __init__(self, most: int, earlier: LastRun | None = None) -> None:
        self.most, self.decided = most, most < 2
        self.earlier = earlier or LastRun()
        # a run that decides nothing leaves no verdict
        self.apart_before, self.earlier.apart = self.earlier.apart, False
        self.trying = self.alone = False
        self.alone_s: float | None = None  # processor time of a row, when slices ran one at a time
        self._begin()

    def _begin(self) -> None:
        self.slices = self.rows = self.computing = 0
        self.share_s = self.cpu_s = self.seconds = 0.0
        # least seconds per processor second of a slice; other threads hold the GIL at times
        self.waiting = math.inf

    def measured(self, spent: Spent) -> int | None:
        """Record a slice; return how many may run at once from now on, None for no change."""
        if self.decided or not spent.rows or (spent.beside > 1) is self.trying:
            return None
        self.slices, self.seconds = self.slices + 1, self.seconds + spent.seconds
        self.share_s, self.cpu_s = self.share_s + spent.share_s, self.cpu_s + spent.cpu_s
        self.rows += spent.rows
        waiting = spent.seconds / max(_locked_s(spent), 1e-9)
        self.waiting, self.computing = (
            min(self.waiting, waiting),
            self.computing + (waiting <= COMPUTING),
        )
        if self.slices < LOOKED_AT and not self._again_long:
            return None
        if self.seconds < LOOKED_AT_S:
            return None
        return self._tried() if self.trying else self._seen()

    @property
    def _again_long(self) -> bool:
        """Whether the second measurement, of two slices at once, has lasted long enough."""
        return self.alone_s is not None and self.slices > 1 and self.seconds > LONG_AGAIN_S

    def given_up(self, waited_s: float, slice_s: float) -> int | None:
        """Return how many slices may run at once if running one at a time delays the consumer.

        The consumer has waited ``waited_s`` seconds for a slice that should take ``slice_s``. The
        result is None if that is not too long, or if slices do not run one at a time for a trial.
        """
        if not self.trying or waited_s < max(LONG_S, HELD_UP * slice_s):
            return None
        self.trying = False
        self._begin()
        return self.most

    def _tried(self) -> int:
        """Judge slices that ran one at a time, and return how many may run at once."""
        self.decided, self.trying = self.waiting > COMPUTING, False
        self.alone_s = self.cpu_s / self.rows
        self.earlier.apart = self.decided
        self._begin()
        return self.most if self.decided else min(2, self.most)

    def _seen(self) -> int | None:
        """Judge slices that ran at once; return how many may run at once, or None for no change."""
        low, high = TAKING_TURNS
        used = self.cpu_s / max(self.share_s, 1e-9)
        # slices that compute use little together if other threads hold the GIL, as a training step
        held = self.alone_s is None and 2 * self.computing > self.slices
        turns = used < high and (used > low or held)
        together_s = self.share_s / self.rows
        if turns and self.alone_s is None:
            if self.apart_before and self.seconds < DOUBTED_S:
                return None
            self.trying = True
            self._begin()
            return 1
        self.decided = True
        self.alone = turns and self.alone_s is not None and self.alone_s <= NO_SLOWER * together_s
        self.earlier.apart = not self.alone
        if self.alone_s is None:
            return None
        return 1 if self.alone else self.most


def _locked_s(spent: Spent) -> float:
    """Return the seconds in which a slice held the GIL, or waited for threads that held it."""
    alone = spent.cpu_s + spent.others_s <= ONE_PROCESSOR * spent.seconds
    return spent.cpu_s + (min(spent.others_s, LOCKED * spent.cpu_s) if alone else 0.0)


# Seconds of a wait after which more slices start for the consumer, whatever that costs; multiple of
# a slice's time after which the measurement of one slice at a time is abandoned.
LONG_S, HELD_UP = 0.1, 4
# Number and total seconds of slices that are measured before a decision; seconds that suffice for
# the second measurement, however few slices it has.
LOOKED_AT, LOOKED_AT_S, LONG_AGAIN_S = 6, 0.06, 0.15
# Total seconds of slices that are measured before they run one at a time, if they did not take
# turns in the run before.
DOUBTED_S = 1.0
# Processors used together by threads that take turns; ratio of elapsed to
# processor time of a slice that only computes; ratio of a slice's processor time
# alone to its part of the time together.
TAKING_TURNS, COMPUTING, NO_SLOWER = (0.4, 1.25), 1.25, 1.15
# Most processors that threads use together if each waits for the GIL; multiple of its own
# processor time that a slice may have waited for the GIL.
ONE_PROCESSOR, LOCKED = 1.1, 1.0
