"""Speculative execution: stragglers get a second attempt, and the first attempt to end counts.

This module has no clock and no workers: the driver passes the time as an argument. Only slices that
may be run twice get a second attempt; the result of the later attempt is dropped.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.policy import Seq
from dml.exec.tasks.job import Job

FACTOR = 3.0  # times the 95th percentile of recent slices of the stage
LEAST_S = 1.0  # a shorter slice is not worth a second attempt
ENOUGH = 8  # slices of a stage before its percentile is used
RECENT = 64


@dataclasses.dataclass(slots=True)
class _Slice:
    """A running slice: attempts, start time in seconds, and whether its result is still awaited."""

    run: Run
    since: float
    attempts: int = 0
    wanted: bool = True
    again: bool = False  # a second attempt was requested


class Race:
    """The running slices of a run, and the attempts at each.

    ``repeatable`` is True if each of them may be run twice. A slice whose task has more slices to
    run is never repeated: the generator of the second attempt would stay parked unused.
    """

    def __init__(self, stages: int) -> None:
        self.repeatable = False
        self._under: dict[tuple[Seq, int], _Slice] = {}
        self._seconds = [deque[float](maxlen=RECENT) for _ in range(stages)]
        self._whole = [True] * stages  # every task so far had a single slice

    def begin(self, run: Run, now: float) -> None:
        """Register one more attempt at slice ``run``, at time ``now``."""
        found = self._under.setdefault((run.seq, run.k), _Slice(run, now))
        found.attempts += 1
        found.wanted = True

    def end(self, run: Run, now: float, *, lost: bool = False, more: bool = False) -> bool:
        """Record the end of an attempt; return True for a first result, or if all are lost."""
        found = self._under.get((run.seq, run.k))
        if found is None:
            return True
        found.attempts -= 1
        if not found.attempts:
            del self._under[run.seq, run.k]
        if not found.wanted or (lost and found.attempts):
            return False
        found.wanted = False
        if not lost:
            self._seconds[run.stage].append(now - found.since)
            self._whole[run.stage] &= not more
        return True

    def wanted(self, run: Run) -> bool:
        """Return whether the result of slice ``run`` is still awaited."""
        found = self._under.get((run.seq, run.k))
        return found is None or found.wanted

    def under_way(self, run: Run) -> bool:
        """Return whether an attempt at slice ``run`` is running."""
        return (run.seq, run.k) in self._under

    def repeated(self) -> int:
        """Return the number of running slices with a second attempt."""
        return sum(each.again for each in self._under.values())

    def late(self, now: float, fits: Callable[[Run], bool]) -> Run | None:
        """Return the earliest overdue slice that ``fits`` accepts, each at most once; or None."""
        if not self.repeatable:
            return None
        found = [each for each in self._under.values() if self._late(each, now) and fits(each.run)]
        if not found:
            return None
        first = min(found, key=lambda each: each.since)
        first.again = True
        return first.run

    def _late(self, found: _Slice, now: float) -> bool:
        seconds, run = self._seconds[found.run.stage], found.run
        if found.again or not found.wanted or run.k or not self._whole[run.stage]:
            return False
        if len(seconds) < ENOUGH:
            return False
        usual = sorted(seconds)[int(0.95 * len(seconds))]
        return now - found.since > max(FACTOR * usual, LEAST_S)


def repeatable(job: Job, speculative: Any) -> bool:
    """Return whether every slice of ``job`` may be run twice, by the setting ``speculative``.

    Functions must be declared or proven pure, unless the user permits repeated calls of all
    functions (``speculative=True``). That never covers a function declared impure, an instance of a
    class not declared pure, or a user-defined source.
    """
    source = job.stage.source
    if not speculative or source.calls is not None:
        return False
    called = [node.calls for node in job.steps if node.calls is not None]
    if any(job.once) or any(fn.purity and fn.stateful for fn in called):
        return False
    return speculative is True or not any(fn.purity for fn in called)
