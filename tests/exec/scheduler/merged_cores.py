"""Run the cores of several inputs on one simulated clock; a consumer takes their rows in shares."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import Arrive, Consumed, Event, Offer, Run, SliceDone, Tick
from dml.exec.scheduler.policy import Demand, Seq
from dml.exec.scheduler.shared_slots import Ledger


@dataclass(frozen=True)
class Input:
    """``units`` partitions of ``rows`` rows of ``row_bytes`` each, in ``seconds`` of one slot.

    ``share`` rows of it are taken at each turn of the consumer.
    """

    units: int
    rows: int
    row_bytes: int = 1000
    seconds: float = 1.0
    share: int = 1

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass
class Side:
    """One input's core: ``made`` rows so far, ``left`` of the partition that the consumer has."""

    given: Input
    core: Core
    made: int = 0
    left: int = 0
    held: Seq | None = None
    offers: list[Seq] = field(default_factory=list)


class MergedCores:
    """The cores of ``inputs`` share ``slots`` processors and ``limit_bytes`` through a ledger.

    The consumer takes ``consume_s`` seconds for each turn. ``seen`` lists, after each turn, the
    number of turns and the rows that each input has made.
    """

    def __init__(
        self, inputs: Sequence[Input], slots: int, limit_bytes: int, consume_s: float
    ) -> None:
        ledger, self.consume_s, self.now = Ledger(), consume_s, 0.0
        self.sides = list[Side]()
        for each in inputs:
            demand = Demand(output_bytes=each.nbytes, bounded=True)
            core = Core((demand,), slots, limit_bytes, ledger=ledger)
            side = Side(each, core)
            ledger.join(core, lambda side=side: self.step(side, Tick()))  # type: ignore[misc]
            self.sides.append(side)
        self.ledger, self.turns = ledger, 0
        self.seen = list[tuple[int, tuple[int, ...]]]()
        self._events = list[tuple[float, int, Side | None, Any]]()
        self._count = count()

    def run(self) -> float:
        """Take turns until an input ends; return the seconds."""
        for side in self.sides:
            self.tell(side, Arrive(side.given.units))
        self.take()
        while self._events:
            self.now, _, whose, event = heapq.heappop(self._events)
            if whose is None:
                self.turns += event
                self.seen.append((self.turns, tuple(each.made for each in self.sides)))
                self.take()
            else:
                whose.made += whose.given.rows
                self.tell(whose, event)
                if whose.core.awaited:
                    self.take()
        return self.now

    def take(self) -> None:
        """Take the turns that all inputs have rows for, or wait for an input without rows."""
        for side in self.sides:
            if side.left < side.given.share and not self.refilled(side):
                return
        turns = min(side.left // side.given.share for side in self.sides)
        for side in self.sides:
            side.left -= turns * side.given.share
        self.at(turns * self.consume_s, None, turns)

    def refilled(self, side: Side) -> bool:
        """Give the partition of ``side`` back, and take its next one if there is one."""
        if side.held is not None:
            held, side.held = side.held, None
            self.tell(side, Consumed(held))
        side.core.awaited = not side.offers
        if side.core.awaited:
            self.tell(side, Tick())
            return False
        side.held = side.offers.pop(0)
        side.left += side.given.rows
        return True

    def tell(self, side: Side, event: Event) -> None:
        """Send ``event`` to the core of ``side``, and let the other cores start tasks, too."""
        self.step(side, event)
        self.ledger.changed(side.core)

    def step(self, side: Side, event: Event) -> None:
        """Send ``event`` to the core of ``side``, and do as it says."""
        for action in side.core.step(event, self.now):
            if isinstance(action, Run):
                done = SliceDone(action.seq, side.given.nbytes, side.given.seconds, more=False)
                self.at(side.given.seconds, side, done)
            elif isinstance(action, Offer):
                side.offers.append(action.seq)

    def at(self, delay_s: float, side: Side | None, event: Any) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._count), side, event))

    def imbalance(self, least: float = 0.1) -> float:
        """Return the largest difference of the turns that inputs have made rows for, by their sum.

        The first part ``least`` of the turns does not count.
        """
        found, last = 0.0, self.seen[-1][0]
        for turns, made in self.seen:
            able = [rows / side.given.share for rows, side in zip(made, self.sides, strict=True)]
            if turns >= least * last:
                found = max(found, (max(able) - min(able)) / sum(able))
        return found
