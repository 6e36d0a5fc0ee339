"""This file says which slices take much longer than their like, and which of two attempts counts.

It knows no clock and no worker: whoever drives it says what the time is. Only work that may be done
twice is ever begun twice; the first attempt to end is the slice, what comes of another is dropped.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

from dml.exec.job import Job
from dml.exec.messages import Run
from dml.exec.policy import Seq
from dml.expr.stateful import Stateful

FACTOR = 3.0  # times the 95th percentile of its like
LEAST_S = 1.0  # less is not worth a second attempt
ENOUGH = 8  # slices of a stage, until anything is known of it
RECENT = 64


@dataclasses.dataclass(slots=True)
class _Slice:
    """A slice under way: how often, since when, and whether somebody waits for it."""

    run: Run
    since: float
    attempts: int = 0
    wanted: bool = True
    again: bool = False  # a second attempt was asked for


class Race:
    """The slices of a run that are under way.

    ``repeatable`` is True where any of them may be done twice. A slice of a task that has more to
    give afterwards is never begun twice: where it was, its generator would stay parked for nobody.
    """

    def __init__(self, stages: int) -> None:
        self.repeatable = False
        self._under: dict[tuple[Seq, int], _Slice] = {}
        self._seconds = [deque[float](maxlen=RECENT) for _ in range(stages)]
        self._whole = [True] * stages  # every task has given all it had by its first slice

    def begin(self, run: Run, now: float) -> None:
        """One more attempt at a slice."""
        found = self._under.setdefault((run.seq, run.k), _Slice(run, now))
        found.attempts += 1
        found.wanted = True

    def end(self, run: Run, now: float, *, lost: bool = False, more: bool = False) -> bool:
        """True if this is what comes of a slice: the first result, or the loss of all attempts."""
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
        """True while nothing has come of a slice."""
        found = self._under.get((run.seq, run.k))
        return found is None or found.wanted

    def under_way(self, run: Run) -> bool:
        """True if an attempt has begun."""
        return (run.seq, run.k) in self._under

    def repeated(self) -> int:
        """Slices under way that were begun twice."""
        return sum(each.again for each in self._under.values())

    def late(self, now: float, fits: Callable[[Run], bool]) -> Run | None:
        """The slice that is late for longest and ``fits``, to be begun again; each only once."""
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
    """True if every slice of ``job`` may be done twice.

    Functions must be declared or proven pure, unless the user has said of all that they may be
    called twice (``speculative=True``), which one declared impure, an instance of a class that is
    not declared pure, and a source of the user's never are.
    """
    source = job.stage.source
    if not speculative or source.calls is not None:
        return False
    called = [node.calls for node in job.steps if node.calls is not None]
    if any(job.once) or any(fn.purity and isinstance(fn.call, Stateful) for fn in called):
        return False
    return speculative is True or not any(fn.purity for fn in called)
