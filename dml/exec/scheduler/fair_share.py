"""Give stages whose slices need much of a resource at once a fair share of it, in turns.

Where slices of one stage need more of a resource than those of another stage, a large slice starts
only once several small ones have ended, and slots stay idle meanwhile. So turns should be long, and
small slices should run together. While a stage has its turn, a stage with smaller needs leaves free
what slices of the first one could use. If its waiting tasks fill all its places, it may use the
resources that are lost to large slices anyway because small slices run, unless no large slice would
have room. The turn ends when
the stage has no more work, or when the turn was long enough and the other stages have enough work
again. A turn that would be short, soon after the last one, is delayed while earlier stages with
smaller needs still produce more work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dml.exec.scheduler.policy import EPSILON, Load
from dml.exec.scheduler.ready_queue import Waiting

ENOUGH = 8.0  # slices of the slowest other stage that make a turn long: tests/exec/test_random.py


@dataclass(slots=True)
class FairTurns:
    """The turns of a run: ``whose`` maps a resource to the stage that has its turn on it.

    By resource, ``begun_s`` is the time at which the present turn began, and ``ended_s`` the time
    at which the last turn ended. ``waiting`` are the queues of the stages.
    """

    loads: Sequence[Load]
    waiting: Sequence[Waiting]
    whose: dict[str, int] = field(default_factory=dict)
    begun_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    idled_s: float = -math.inf  # last time that slots were idle and a turn began
    large: dict[int, dict[str, list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.compare()

    def compare(self) -> None:
        """Set ``large[stage][resource]`` to the stages that need less of it, if there are any."""
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
        """End and begin turns; ``able`` maps stages to the resources that their next task lacks.

        A turn begins when its stage has much waiting work, and later stages have little. ``total``
        has the amounts of all resources.
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

        This succeeds at most once at each ``now``: turns that end at once would begin for ever.
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
        """Return the amount that ``stage`` may take of each resource where another has its turn."""
        found = {}
        for name, whose in self.whose.items():
            if self._asks(stage, name) < self._asks(whose, name) - EPSILON:
                small = sum(self.loads[each].occupied(name) for each in self._less(name, whose))
                have, asked = total.get(name, 0.0), self._asks(whose, name)
                beside = self._fills(stage) and have - small >= asked - EPSILON
                usable = have - small if beside else have
                found[name] = have - small - self._kept(name, whose, usable, small)
        return found

    def _fills(self, stage: int) -> bool:
        """Return whether the waiting tasks of ``stage`` would fill all its places."""
        load = self.loads[stage]
        return load.running + len(self.waiting[stage]) >= load.parallel

    def _kept(self, name: str, stage: int, usable: float, small: float) -> float:
        """Return the amount of ``name`` that ``stage``, whose turn it is, and its equals keep.

        It is what their running slices occupy, and what more slices of ``stage`` could take of
        ``usable``. Stages with smaller needs occupy ``small``.
        """
        load, asked = self.loads[stage], self._asks(stage, name)
        running = sum(each.occupied(name) for each in self.loads) - small
        more = min(len(self.waiting[stage]), load.parallel - load.running)
        whole = math.floor(usable / asked + EPSILON) * asked
        return max(running, min(whole, running + more * asked))

    def started(self) -> None:
        """Record that a slice starts, so that slots that are idle now are not idle again."""
        self.idled_s = -math.inf

    def _enough(self, name: str, stage: int) -> bool:
        """Return whether a turn was long enough, and the other stages have enough work again."""
        enough_s = ENOUGH * self._drain_s(name, stage)
        others_s = sum(self._work_s(each) for each in self._less(name, stage))
        work_s, spent_s = max(self._below_s(stage), others_s), self.now - self.begun_s[name]
        return work_s > 0.0 and spent_s >= enough_s and work_s + spent_s >= 2 * enough_s

    def _begin(self, name: str, stage: int, total: Mapping[str, float]) -> None:
        asked = self._asks(stage, name)
        fits = asked <= total.get(name, 0.0) + EPSILON
        little = self._timed(name, stage) and self._below_s(stage) < self._drain_s(name, stage)
        if name not in self.whose and fits and little:
            self.whose[name], self.begun_s[name] = stage, self.now

    def _hasty(self, name: str, stage: int) -> bool:
        """Return whether a turn of ``stage`` on resource ``name`` should be delayed.

        It should if it would be short, the last turn was recent, and more work will come: an
        earlier stage with smaller needs runs a slice and has others waiting.
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
        """Return whether all stages with smaller needs and waiting tasks have been measured."""
        others = self._less(name, stage)
        return all(self.loads[each].samples or not len(self.waiting[each]) for each in others)

    def _drain_s(self, name: str, stage: int) -> float:
        """Return the longest mean seconds of a slice with smaller needs; 0 if none is measured."""
        others = [self.loads[each] for each in self._less(name, stage)]
        return max((load.seconds for load in others if load.samples), default=0.0)

    def _work_s(self, stage: int) -> float:
        """Return the seconds that the waiting tasks of ``stage`` would take if it ran alone."""
        load = self.loads[stage]
        return self.waiting[stage].slices(load.mean) * load.seconds / max(load.parallel, EPSILON)

    def _below_s(self, stage: int) -> float:
        return sum(self._work_s(below) for below in range(stage + 1, len(self.loads)))
