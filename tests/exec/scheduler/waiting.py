"""Simulate slices of a function that waits, on machines that the tuner does not know."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dml.exec.scheduler.concurrency import Concurrency

AIM_S, GROWTH = 0.05, 4  # of slices, as dml/exec/slicing/slice_sizes.py cuts them
PROCESSOR = ("cpu", "lock")  # what counts as processor time

Part = tuple[str, float]
"""What a row needs, and for how many seconds; "" is something that everybody has, such as time."""


@dataclass
class Machine:
    """How many rows may use each resource at once; ``row`` gives the parts of a row at a time."""

    servers: Mapping[str, int]
    row: Callable[[np.random.Generator, float], Sequence[Part]]
    slots: int = 2


@dataclass
class Simulated:
    """A slice: rows that are left, and its seconds on a processor."""

    started: float
    rows: int
    left: int = 0
    cpu_s: float = 0.0
    parts: deque[Part] = field(default_factory=deque)


class Simulation:
    """A run of ``rows`` rows, as many slices at once as ``tuned`` says, or ``fixed``."""

    def __init__(
        self, machine: Machine, rows: int, seed: int, fixed: int = 0, most: int = 64
    ) -> None:
        self.machine, self.left, self.fixed = machine, rows, fixed
        self.draw = np.random.default_rng(seed)
        self.tuned = Concurrency(machine.slots, most)
        self.free = dict(machine.servers)
        self.queues: dict[str, deque[tuple[Simulated, float]]] = {
            name: deque() for name in self.free
        }
        self.events: list[tuple[float, int, Simulated, str]] = []
        self.tie, self.now, self.running = itertools.count(), 0.0, 0
        self.row_s, self.last = 0.0, 0
        self.numbers = [self.parallel]

    @property
    def parallel(self) -> int:
        return self.fixed or self.tuned.parallel

    def run(self) -> float:
        """Return the seconds of the run."""
        self._fill()
        while self.events:
            self.now, _, one, used = heapq.heappop(self.events)
            if used:
                self._release(used)
            self._go_on(one)
        return self.now

    def _fill(self) -> None:
        while self.left and self.running < self.parallel:
            wanted = int(AIM_S / self.row_s) if self.row_s else 1
            rows = max(1, min(wanted, GROWTH * max(1, self.last), self.left))
            self.last, self.left, self.running = rows, self.left - rows, self.running + 1
            self._go_on(Simulated(self.now, rows, rows))

    def _go_on(self, one: Simulated) -> None:
        """Begin the next part of a slice, or end it."""
        if not one.parts:
            if not one.left:
                self._end(one)
                return
            one.left -= 1
            one.parts.extend(self.machine.row(self.draw, self.now))
        name, seconds = one.parts.popleft()
        one.cpu_s += seconds * (name in PROCESSOR)
        if name and not self.free[name]:
            self.queues[name].append((one, seconds))
            return
        if name:
            self.free[name] -= 1
        self._until(one, seconds, name)

    def _until(self, one: Simulated, seconds: float, name: str) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.tie), one, name))

    def _release(self, name: str) -> None:
        if self.queues[name]:
            one, seconds = self.queues[name].popleft()
            self._until(one, seconds, name)
        else:
            self.free[name] += 1

    def _end(self, one: Simulated) -> None:
        seconds = self.now - one.started
        self.row_s = (
            seconds / one.rows if not self.row_s else 0.7 * self.row_s + 0.3 * seconds / one.rows
        )
        change = self.tuned.measured(one.rows, seconds, one.cpu_s, self.running)
        if change is not None and not self.fixed:
            self.numbers.append(change.parallel)
        self.running -= 1
        self._fill()
