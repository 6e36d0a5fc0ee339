"""Give stages whose slices need much of a resource at once a fair share of it, in turns.

Where slices of one stage need more of a resource than those of another stage, a large slice starts
only once several small ones have ended, and slots stay idle meanwhile. So changes should be rare.
While a stage has its turn, stages with smaller needs leave it the amount that it needs, until the
turn has paid off and the other stages have enough work again, or the stage has no more work. Turns
that do not pay off are kept apart in time, as long as the excluded stages would bring more work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dml.exec.scheduler.policy import EPSILON, Load
from dml.exec.scheduler.ready_queue import Waiting

ENOUGH = 8.0  # slices of the slowest other stage for a turn to pay: tests/exec/test_random.py


@dataclass(slots=True)
class FairTurns:
    """For each resource, the stage that has its turn; reviewed whenever a task may start."""

    loads: Sequence[Load]
    waiting: Sequence[Waiting]
    whose: dict[str, int] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)  # when the last turn was over
    now: float = 0.0
    idled_s: float = -math.inf  # last time that slots were idle and a turn began
    large: dict[int, dict[str, list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        """Set ``large``: by stage and resource, the stages that need less of that resource."""
        self.large = {}
        for stage, load in enumerate(self.loads):
            for name, asked in load.asked.items():
                less = [
                    other
                    for other, each in enumerate(self.loads)
                    if 0.0 < each.asked.get(name, 0.0) < asked - EPSILON
                ]
                if less:
                    self.large.setdefault(stage, {})[name] = less

    def review(self, able: Mapping[int, set[str]], total: Mapping[str, float], now: float) -> None:
        """End and begin turns; ``able`` maps stages that lack only resources to these resources.

        A stage may begin when it has much work and the stages after it have little.
        """
        self.now = now
        for name, stage in list(self.whose.items()):
            known = stage in able and self._timed(name, stage)
            if not known or self._enough(name, stage):
                del self.whose[name]
                self.ended_s[name] = self.now
        for stage in sorted(able, reverse=True):
            for name in able[stage]:
                if self._work_s(stage) >= ENOUGH * self._drain_s(name, stage) > 0.0:
                    self._begin(name, stage, total)

    def idle(
        self,
        able: Mapping[int, set[str]],
        total: Mapping[str, float],
        free: Mapping[str, float],
    ) -> bool:
        """Begin turns when no task can start, and return whether a turn began.

        Turns begin only once at each time ``now``, since turns that end at once would repeat for
        ever.
        """
        if self.idled_s == self.now:
            return False
        before = dict(self.whose)
        for stage in sorted(able, reverse=True):
            for name in able[stage]:
                least = min(self._asks(less, name) for less in self._less(name, stage) or (stage,))
                if free.get(name, 0.0) >= least - EPSILON and not self._hasty(name, stage):
                    self._begin(name, stage, total)
        began = before != self.whose
        self.idled_s = self.now if began else self.idled_s
        return began

    def left(self, stage: int, total: Mapping[str, float]) -> dict[str, float]:
        """Return how much of each resource ``stage`` may take without delaying another's turn."""
        found = {}
        for name, whose in self.whose.items():
            asked = self._asks(whose, name)
            most = self.loads[whose].demand.max_parallel
            more = most is None or self.loads[whose].running < most
            if more and whose != stage and self._asks(stage, name) < asked - EPSILON:
                others = sum(load.occupied(name) for load in self.loads)
                found[name] = total.get(name, 0.0) - asked - others
        return found

    def started(self, stage: int) -> None:
        """Add a started slice of ``stage`` to the time spent in its turns, if it has any."""
        load, self.idled_s = self.loads[stage], -math.inf
        for name, whose in self.whose.items():
            if whose == stage:
                self.spent_s[name] += load.seconds / max(load.parallel, 1.0)

    def _enough(self, name: str, stage: int) -> bool:
        """Return whether a turn has paid off, and the other stages have enough work for theirs."""
        enough_s = ENOUGH * self._drain_s(name, stage)
        others_s = sum(self._work_s(each) for each in self._less(name, stage))
        work_s, spent_s = max(self._below_s(stage), others_s), self.spent_s[name]
        return work_s > 0.0 and spent_s >= enough_s and work_s + spent_s >= 2 * enough_s

    def _begin(self, name: str, stage: int, total: Mapping[str, float]) -> None:
        asked = self._asks(stage, name)
        fits = asked <= total.get(name, 0.0) + EPSILON
        little = self._timed(name, stage) and self._below_s(stage) < self._drain_s(name, stage)
        if name not in self.whose and fits and little:
            self.whose[name], self.spent_s[name] = stage, 0.0

    def _hasty(self, name: str, stage: int) -> bool:
        """Return whether a turn would not pay yet, the last was recent, and more work will come.

        The work will come from stages that the turn would exclude: one of their slices runs, and
        others wait.
        """
        enough_s = ENOUGH * self._drain_s(name, stage)
        since_s = self.now - self.ended_s.get(name, -math.inf)
        if since_s >= enough_s or self._work_s(stage) >= enough_s:
            return False
        before = [each for each in self._less(name, stage) if each < stage]
        return any(self.loads[each].running and len(self.waiting[each]) for each in before)

    def _asks(self, stage: int, name: str) -> float:
        return self.loads[stage].asked.get(name, 0.0)

    def _less(self, name: str, stage: int) -> Sequence[int]:
        return self.large.get(stage, {}).get(name, ())

    def _timed(self, name: str, stage: int) -> bool:
        """Return False if stages with smaller needs have waiting tasks but no measured duration."""
        others = self._less(name, stage)
        return all(self.loads[each].samples or not len(self.waiting[each]) for each in others)

    def _drain_s(self, name: str, stage: int) -> float:
        """Return the seconds until slices with smaller needs have released their resources."""
        others = [self.loads[each] for each in self._less(name, stage)]
        return max((load.seconds for load in others if load.samples), default=0.0)

    def _work_s(self, stage: int) -> float:
        """Return the seconds of ready work of a stage, if it ran without other stages."""
        load = self.loads[stage]
        return self.waiting[stage].slices(load.mean) * load.seconds / max(load.parallel, EPSILON)

    def _below_s(self, stage: int) -> float:
        return sum(self._work_s(below) for below in range(stage + 1, len(self.loads)))
