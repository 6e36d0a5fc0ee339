"""Decide how many slices of a stage run at once if its functions wait, for a network or a disk.

A slice that waits needs no processor, so more slices than processors may run. This module finds
their number from the slices that ended: the number is raised in steps, as long as the rows per
second rise with it. It stops where something else is scarce, such as the connections of a server, a
disk or Python's lock. Source: the tuning of parallelism in tf.data (Murray et al., VLDB 2021, 3.3),
which uses a model of latencies; here measured rows per second and Little's law are used: slices at
once are rows per second times seconds per row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

from dml.events import Tuned
from dml.exec.scheduler.messages import SliceDone
from dml.exec.scheduler.policy import Demand, Load

# Most slices at once: for a few processors, and for each processor of a large machine.
MOST, MOST_EACH = 64, 4
# Least part of the memory limit for each slice at once, since rows may become larger at any time;
# and how many of the largest rows so far it must hold: results, columns, rows that wait their turn,
# and memory that the allocator keeps.
SLICE_BYTES, SLICE_ROWS = 64 << 20, 16
# Factor of a step, and the part of the additional slices that must show in the rows per second.
STEP, GAIN = 8, 0.25
# Least number of slices that are measured before a decision, besides as many as run at once, and
# their total seconds.
SLICES, SECONDS = 2, 0.02
# Part of the allowed slices that must have run at once, or nothing can be said about more.
FULL = 0.75
# Smallest change worth a decision; the part of the best rows per second that is good enough; and
# slices to allow for each one that is needed if all take the same time, which they do not.
WORTH, ENOUGH, SPARE = 1.25, 0.98, 1.5
# Processors used together: below the first number, slices cannot wait for Python's lock; above the
# second one, they do not. Part of the processors, or of the lock, from which slices queue for it.
LOOSE, APART, BUSY = 0.4, 1.25, 0.9
# Factor by which a slice is slower than on the slots alone where it does something else by now.
SLOWER = 2.0
# After a step that was too large, another one is tried once a slice is OTHER times as fast or slow
# as it was then, in AGAIN intervals in a row: twice as many after each try. What has more room by
# now does not show while no more slices run: after LATER intervals another one is tried, too.
OTHER, AGAIN, MOST_AGAIN = 1.15, 3, 192
LATER, MOST_LATER = 192, 3072
# Least part of a processor that a waiting slice is charged.
LEAST = 1e-3


class SliceFigures(NamedTuple):
    """Measured slices: how many ran at once, rows per second of one, processors used by one.

    ``process`` are the processors that all threads of the process used meanwhile.
    """

    parallel: float
    rate: float
    cpu: float
    process: float = math.inf

    @property
    def throughput(self) -> float:
        """Rows per second of all slices together."""
        return self.parallel * self.rate

    @property
    def used(self) -> float:
        """Processors used by all slices together.

        Slices that end together with few others seem to run beside more than they did.
        """
        return min(self.parallel * self.cpu, self.process)

    @property
    def others(self) -> float:
        """Processors used by other threads of the process; 0 if unknown."""
        return max(0.0, self.process - self.used) if math.isfinite(self.process) else 0.0


class ConcurrencyChange(NamedTuple):
    """A change, after ``rows`` rows, of the number of slices that run at once.

    The number was ``before`` and is now ``parallel``; each slice is charged ``cpu`` processors.
    ``first`` are the figures of slices when no more ran than there are slots, None if unknown.
    """

    before: int
    parallel: int
    cpu: float
    reason: str
    first: SliceFigures | None = None
    rows: int = 0


@dataclasses.dataclass(slots=True)
class SliceInterval:
    """Slices that ended since the last decision; those still running at that time do not count."""

    left_out: int = 0
    beside: int = 0
    slices: int = 0
    rows: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    others_s: float = 0.0

    def add(self, rows: int, seconds: float, cpu_s: float, beside: int, others_s: float) -> None:
        """Count a slice that processed ``rows`` rows; one without rows counts as one row."""
        self.slices += 1
        self.beside += beside
        self.rows += max(1, rows)
        self.seconds += seconds
        self.cpu_s += min(cpu_s, seconds)
        self.others_s += others_s

    def figures(self) -> SliceFigures:
        """Return the means of these slices."""
        parallel, rate = self.beside / self.slices, self.rows / self.seconds
        process = (self.cpu_s + self.others_s) / self.seconds
        return SliceFigures(parallel, rate, self.cpu_s / self.seconds, process)


class Concurrency:
    """The number of slices of one stage that run at once: at least ``slots``, at most ``most``.

    It begins with ``known``, the last change of an earlier run, or else with the slots. If an
    increase raised the throughput too little, it is reverted and the two numbers are compared once
    more, since the time of rows may have changed by itself. ``cleared`` is True if slices are known
    not to wait for Python's lock, ``locked`` if they are known to do so.
    """

    def __init__(self, slots: float, most: int, known: ConcurrencyChange | None = None) -> None:
        self.slots, self.least, self.most = slots, max(1, int(slots)), most
        self.parallel = self.least
        self.interval = SliceInterval(left_out=self.least)  # the first slices load and warm up much
        self.first: SliceFigures | None = None  # of slices on the slots alone
        if known is not None:
            self.parallel = max(self.least, min(most, known.parallel))
            self.first = known.first
        # how many slices ran before the last step up or down, and their figures
        self.before: tuple[int, SliceFigures] | None = None
        self.doubted: tuple[int, SliceFigures] | None = None  # the same of a step up taken back
        self.cleared = self.locked = False
        # rows per second of a slice after a step that was too large (0.0: not measured yet), the
        # intervals in a row in which it was another one, and how many of them are needed
        self.resting: float | None = None
        self.rows, self.others, self.again = 0, 0, AGAIN
        self.rested, self.later = 0, LATER  # intervals since that step, and after how many to try

    def begin(self) -> ConcurrencyChange | None:
        """Return the change with which the run begins; None if it begins with the slots."""
        if self.parallel == self.least:
            return None
        cpu = None if self.first is None else self.first.cpu
        return self._change(self.least, cpu, "as in the run before")

    def measured(
        self, rows: int, seconds: float, cpu_s: float, beside: int, others_s: float = math.inf
    ) -> ConcurrencyChange | None:
        """Record a finished slice; return a decision, or None for no change.

        ``rows`` were processed by the slice in ``seconds`` of elapsed time and ``cpu_s`` seconds of
        processor time; ``beside`` slices ran when it ended, itself included. Other threads of the
        process used ``others_s`` seconds of processor time meanwhile.
        """
        interval = self.interval
        self.rows += rows
        if interval.left_out:
            interval.left_out -= 1
            return None
        if beside < FULL * self.parallel:
            return None
        interval.add(rows, seconds, cpu_s, beside, others_s)
        if interval.slices < max(SLICES, self.parallel) or interval.seconds < SECONDS:
            return None
        self.interval = SliceInterval()
        return self._judged(interval.figures())

    def bounded(self, most: int, reason: str = "more would not fit") -> ConcurrencyChange | None:
        """Allow at most ``most`` slices from now on; return the change if more run at present."""
        self.most = max(self.least, min(self.most, most))
        if self.parallel <= self.most:
            return None
        self.before = self.doubted = None
        return self._set(self.most, None, reason)

    def _judged(self, now: SliceFigures) -> ConcurrencyChange | None:
        """Decide from ``now``, the figures of an interval."""
        if self.first is None or self.parallel == self.least:
            self.first = now
        self.cleared |= now.used > APART
        before, self.before = self.before, None
        doubted, self.doubted = self.doubted, None
        if before is not None and now.throughput < _needed(*before, self.parallel):
            return self._took_back(before, now)
        if doubted is not None and WORTH * now.rate > doubted[1].rate:
            return self._settled(now, *doubted)
        if self._rests(now):
            return None
        enough = max(self.least, round(SPARE * now.throughput / self.first.rate))
        if SLOWER * now.rate < self.first.rate:
            enough = self.least  # the figures of the slots are out of date
        if self._busy(now) and enough * WORTH < self.parallel:
            return self._step(enough, now, "so many suffice")
        if now.throughput < self.first.throughput and self.parallel > self.least:
            fewer = max(self.least, self.parallel // 2)
            return self._step(fewer, now, "more made fewer rows")
        return self._raise(now)

    def _took_back(
        self, before: tuple[int, SliceFigures], now: SliceFigures
    ) -> ConcurrencyChange | None:
        """Revert the last step: an increase that gained too little, or a decrease that cost rows.

        ``before`` are the number and the figures before that step, ``now`` the present figures.
        """
        if before[0] < self.parallel:
            self.doubted = self.parallel, now
            return self._set(before[0], now.cpu, "more made no more rows")
        self._rest()
        return self._set(before[0], now.cpu, "fewer made fewer rows")

    def _settled(
        self, now: SliceFigures, parallel: int, more: SliceFigures
    ) -> ConcurrencyChange | None:
        """Pause changes; return to more slices if they processed clearly more rows per second.

        ``now`` are the figures of the present number, ``more`` those of ``parallel`` slices.
        """
        self._rest()
        if now.throughput > ENOUGH * more.throughput:
            return None
        enough = round(SPARE * more.throughput / now.rate)
        return self._set(min(enough, parallel), now.cpu, "more made few more rows")

    def _rest(self) -> None:
        """Try no other number until slices are faster or slower, or much time has passed."""
        self.resting, self.others, self.rested = 0.0, 0, 0

    def _rests(self, now: SliceFigures) -> bool:
        """Return whether there is still no reason to try another number of slices."""
        if self.resting is None:
            return False
        self.resting = self.resting or now.rate
        other = not self.resting / OTHER < now.rate < self.resting * OTHER
        self.others = self.others + 1 if other else 0
        self.rested += 1
        if self.others < self.again and self.rested < self.later:
            return True
        if self.others == self.again:
            self.again = min(2 * self.again, MOST_AGAIN)
        else:
            self.later = min(2 * self.later, MOST_LATER)
        self.resting = None
        return False

    def _busy(self, now: SliceFigures) -> bool:
        """Return whether slices queue for processors or for Python's lock."""
        return now.used > BUSY * (self.slots if now.used > APART else 1.0)

    def _raise(self, now: SliceFigures) -> ConcurrencyChange | None:
        """Raise the number of slices, as far as their processor time allows."""
        free = max(self.slots - now.others, self.slots / 2)
        able, worth = free / max(now.cpu, LEAST), WORTH * self.parallel
        computes = int(WORTH * able) <= worth  # more slices would queue for processors
        most = min(self.most, STEP * self.parallel, int(SPARE * able))
        if computes or most < worth or not (self.cleared or now.used < LOOSE):
            return None
        return self._step(most, now, f"functions wait {1 - now.cpu:.0%} of their time")

    def _step(self, parallel: int, now: SliceFigures, reason: str) -> ConcurrencyChange | None:
        """Run ``parallel`` slices at once; the next interval is compared with this one, ``now``."""
        self.before = self.parallel, now
        return self._set(parallel, now.cpu, reason)

    def _set(self, parallel: int, used: float | None, reason: str) -> ConcurrencyChange | None:
        before, self.parallel = self.parallel, parallel
        self.interval = SliceInterval(left_out=before)
        return None if parallel == before else self._change(before, used, reason)

    def _change(self, before: int, used: float | None, reason: str) -> ConcurrencyChange:
        """Return a change that charges each slice the processors that it ``used``, within limits.

        The limits are ``LEAST`` and an equal share of the slots, which is charged if ``used`` is
        None.
        """
        share = self.slots / self.parallel
        cpu = share if used is None else max(LEAST, min(WORTH * used, share))
        return ConcurrencyChange(before, self.parallel, cpu, reason, self.first, self.rows)


def _needed(before: int, figures: SliceFigures, parallel: int) -> float:
    """Return the rows per second that a step from ``before`` to ``parallel`` slices must reach."""
    if parallel < before:
        return ENOUGH * figures.throughput
    return figures.throughput * (1 + GAIN * (parallel / before - 1))


class Tuning:
    """Tunes the stages of one run, and records what it changed.

    ``names`` identify the stages; ``known`` has the last change of each name, with which the next
    run begins. A run without names is not tuned. ``limit_bytes`` is the memory limit of the run.
    """

    def __init__(
        self,
        names: Sequence[bytes] = (),
        known: MutableMapping[bytes, ConcurrencyChange] | None = None,
        limit_bytes: int = 0,
    ) -> None:
        self.names, self.limit_bytes = names, limit_bytes
        self.known = {} if known is None else known
        self.changes: list[Tuned] = []
        self._stages = dict[int, Concurrency]()

    def begin(self, stages: Sequence[Demand], slots: Mapping[str, float]) -> tuple[Demand, ...]:
        """Return the needs with which each stage begins, from those that it declares."""
        found, processors = list(stages), slots.get("cpu", 0.0)
        usual = min(max(MOST, MOST_EACH * int(processors)), self.limit_bytes // SLICE_BYTES)
        for stage, (asked, name) in enumerate(zip(stages, self.names, strict=False)):
            parallel, most = asked.parallel(slots), min(usual, asked.max_parallel or usual)
            if asked.may_wait and most > parallel:
                self._stages[stage] = Concurrency(parallel, most, self.known.get(name))
                if (change := self._stages[stage].begin()) is not None:
                    found[stage] = self.changed(stage, asked, change)
        return tuple(found)

    def unlocked(self) -> None:
        """Record that slices do not wait for Python's lock, even if their times suggest it."""
        for each in self._stages.values():
            each.cleared = True

    def locked(self) -> None:
        """Record that slices only take turns with Python's lock: more of them gain nothing."""
        for each in self._stages.values():
            each.locked = True

    def stop(self) -> bool:
        """Let no number rise from now on; return True if any number is above its first value."""
        for each in self._stages.values():
            each.most = min(each.most, max(each.least, each.parallel // 2))
        return any(each.parallel > each.least for each in self._stages.values())

    def measured(self, stage: int, load: Load, done: SliceDone) -> Demand | None:
        """Record a slice that ended; return the new needs of its stage, or None for no change."""
        tuned = self._stages.get(stage)
        if tuned is None or not done.cpu_s:
            return None
        if tuned.locked:
            change = tuned.bounded(tuned.least, "they take turns with Python's lock")
        else:
            fits = int(self.limit_bytes / max(1.0, SLICE_ROWS * done.row_bytes))
            times = done.seconds, done.cpu_s, load.running + 1, done.others_s
            change = tuned.bounded(fits) or tuned.measured(done.rows, *times)
        if change is None:
            return None
        self.known[self.names[stage]] = change
        return self.changed(stage, load.demand, change)

    def changed(self, stage: int, asked: Demand, change: ConcurrencyChange) -> Demand:
        """Return the needs of a slice of ``stage`` after ``change``, which is recorded."""
        self.changes.append(
            Tuned(
                name=self.names[stage].hex(),
                stage=asked.name,
                before=change.before,
                after=change.parallel,
                rows=change.rows,
                reason=change.reason,
            )
        )
        sizes = asked.output_bytes
        return dataclasses.replace(
            asked,
            resources=(("cpu", change.cpu),),
            max_parallel=change.parallel,
            output_bytes=sizes * change.before // change.parallel if asked.divides else sizes,
        )
