"""A simulated driver: whole pipelines whose slices end in any order.

All cores of a run share one ledger, as in a run of a user. A slice that a core starts is computed
when it ends: when the consumer waits and a random draw selects the slice. Violations are recorded:
a slice that starts beyond memory or slots, or no slice at all while a consumer waits.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from dml.exec.delivery.meter import Tallies
from dml.exec.drivers import sync
from dml.exec.memory.memory_shares import demands_of, divided
from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import Consumed, Event, Run, Tick
from dml.exec.scheduler.policy import EPSILON, Demand, Load
from dml.exec.scheduler.shared_slots import Ledger
from dml.exec.slicing.slice_sizes import Cutting
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.job import Job
from dml.exec.tasks.slices import DriverLoop, Options, Outcome, Tasks

MOST_STEPS = 100_000  # of a run that goes round and round
CUTS = (1, 1, 2, 3, 7, 20)


class StuckError(Exception):
    """Somebody waits, and nothing runs."""


class World:
    """The slots and bytes of one run, and what was seen of them.

    ``most_bytes`` is the most that was accounted for, ``forced`` how many slices began although
    they did not fit, ``over`` what was accounted for where one of these was not counted, or no head
    that somebody waited for. ``unforeseen`` bytes were given beyond what slices had been promised.
    """

    def __init__(self, draw: random.Random, slots: int, limit_bytes: int) -> None:
        self.draw, self.slots = draw, float(slots)
        self.ledger = Ledger()
        self.ledger.limit_bytes = limit_bytes
        self.feeds: list[Feed] = []
        self.most_bytes = self.unforeseen = self.steps = 0
        self.over: list[int] = []

    @property
    def forced(self) -> int:
        """Slices that were begun beyond the limit, and counted."""
        return sum(feed.core.forced for feed in self.feeds)

    @property
    def used_bytes(self) -> int:
        """What all cores account for."""
        return sum(feed.core.state.own_bytes for feed in self.feeds if not feed.core.closed)

    def open(
        self,
        demands: tuple[Demand, ...],
        tasks: Tasks,
        job: Job,
        tallies: Tallies,
        **options: Unpack[Options],
    ) -> Feed:
        """A driver of the run, as ``Streaming`` opens one."""
        options |= Options(
            stages=options.get("stages", demands[: 1 + len(job.links)]),
            slots={"cpu": self.slots},
            limit_bytes=self.ledger.limit_bytes,
            ledger=self.ledger,
        )
        return Feed(self, DriverLoop.over(tasks, job.starts(tallies.mine), options, 1))

    def advance(self) -> None:
        """Have one of the slices that run come to its end."""
        running = [(feed, run) for feed in self.feeds for run in feed.running]
        if not running:
            raise StuckError([feed.core.state for feed in self.feeds if not feed.core.closed])
        feed, run = self.draw.choice(running)
        feed.end(run)

    def look(self, core: Core, forced: int, *, launched: bool) -> None:
        """See what a step of a core has done that had ``forced`` so many before."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise StuckError("it goes round and round")
        used = self.used_bytes
        self.most_bytes = max(self.most_bytes, used)
        slots_over = any(free < -EPSILON for free in self.ledger.free.values())
        beyond = launched and used > self.ledger.limit_bytes
        # the head of what somebody waits for, while nothing of the kind runs
        alone = core.forced == forced + 1 and core.awaited and {*core.active} == {core._line.head}
        if slots_over or (beyond and not alone):
            self.over.append(used)


class Feed(sync.SyncFeed):
    """The partitions of one core of a world."""

    def __init__(self, world: World, loop: DriverLoop) -> None:
        self.world, self.core = world, loop.core
        self.running: list[Run] = []
        super().__init__(loop, 60.0, None)

    def _begin(self) -> None:
        self.world.feeds.append(self)
        self.world.ledger.join(self.core, self._look)
        self._step(self._loop.begin)

    def _look(self) -> None:
        self._step(partial(self._loop.take, Tick()))

    def _tell(self, event: Event) -> None:
        self._step(partial(self._loop.take, event))
        self.world.ledger.changed(self.core)

    def _step(self, step: Callable[[], list[Run]]) -> None:
        forced = self.core.forced
        runs = step()
        self.running += runs
        self.world.look(self.core, forced, launched=bool(runs))

    def next(self, more: Callable[[], None] | None = None) -> Outcome | None:
        """The next partition; until it is there, slices of all cores come to their ends."""
        while not self._loop.core.closed:
            self.release()
            self.core.awaited = not self._loop.offers and not self.core.finished
            if self._loop.offers:
                self.at = self._held = self._loop.offers.popleft()
                return self._opened(self._loop.stored[self.at])
            if self.core.finished:
                break
            self._look()
            if not self._loop.offers:
                self.world.advance()
            if more is not None:
                more()
        self.close()
        return None

    def release(self) -> None:
        """The partition given last is not held any more."""
        if self._held is not None:
            held, self._held = self._held, None
            self._tell(Consumed(held))

    def end(self, run: Run) -> None:
        """A slice comes to its end: it is made."""
        self.running.remove(run)
        promised = self.core.active[run.seq].reserved_bytes
        result, seconds = self._loop.runtime.perform(run, self._loop.argument(run))
        if isinstance(result, Outcome):
            given = result.held_bytes + result.parked_bytes * (not result.done)
            self.world.unforeseen += max(0, given - promised)
        self._step(partial(self._loop.end, run, result, seconds))
        self.world.ledger.changed(self.core)

    def close(self) -> None:
        """Stop."""
        super().close()
        self.running.clear()
        self.world.ledger.changed(self.core)


def demands_in(run: Streaming) -> tuple[Demand, ...]:
    """What slices of its stages ask for, where there is much memory."""
    return demands_of(run.plan, divided(run.plan, 1 << 28, 1, run.target_bytes))


def head_bytes(run: Streaming) -> int:
    """The largest slice that a core of the run would promise room for before it has any."""
    demands = [demand for each in run.all for demand in demands_in(each)]
    lanes = max(2 * each.target_bytes for each in run.all)
    return max(lanes, *(Load(demand, 1.0).slice_bytes for demand in demands))


def placed(run: Streaming, world: World) -> Streaming:
    """The run, and all those beside it, in the world; its slices are cut at random."""
    cutting = Cutting(int(world.slots), run.target_bytes, partial(world.draw.choice, CUTS))
    beside = tuple(tuple(placed(each, world) for each in runs) for runs in run.beside)
    opened: Any = partial(world.open, demands_in(run))
    return dataclasses.replace(run, open=opened, cutting=cutting, beside=beside)
