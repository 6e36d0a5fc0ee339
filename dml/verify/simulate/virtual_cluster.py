"""A virtual cluster runs the real scheduling core on a simulated clock."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import (
    Action,
    Arrive,
    Consumed,
    Event,
    Offer,
    Run,
    SliceDone,
    TaskFailed,
)
from dml.exec.scheduler.policy import EPSILON, Demand, Policy, Seq, admits


@dataclass(frozen=True, slots=True)
class TaskTruth:
    """The true cost of a task: ``slices`` partitions, each of ``seconds`` and ``output_bytes``.

    A task of 0 slices takes its seconds to find that it has no output. A task of several slices
    holds ``parked_bytes`` between them. ``noise`` is the sigma of a lognormal factor of mean one on
    the seconds. ``parts`` has the seconds and bytes of each slice instead, if they differ.
    """

    seconds: float
    output_bytes: int = 0
    slices: int = 1
    parked_bytes: int = 0
    noise: float = 0.0
    parts: tuple[tuple[float, int], ...] = ()

    def slice(self, k: int) -> tuple[float, int | None, bool]:
        """Return noiseless seconds, bytes (None: no output), and whether a slice follows ``k``."""
        if self.parts:
            return (*self.parts[k], k + 1 < len(self.parts))
        return self.seconds, self.output_bytes if self.slices else None, k + 1 < self.slices


@dataclass(slots=True)
class ClusterTrace:
    """The record of a run: its seconds, the peak of accounted bytes, and what the scheduler did.

    ``offers`` are partitions in the order of their delivery, ``launches`` the started slices with
    their times. ``idle`` lists the times at which a task could have started but a slot was left
    free, ``over`` those of starts beyond the limit or the slots; both are empty with a correct
    policy, except for the starts counted in ``forced``. ``stuck`` is True if work remained.
    """

    seconds: float = 0.0
    peak_bytes: int = 0
    forced: int = 0
    offers: list[Seq] = field(default_factory=list)
    launches: list[tuple[float, Run]] = field(default_factory=list)
    busy_s: dict[str, float] = field(default_factory=dict)
    idle: list[float] = field(default_factory=list)
    over: list[float] = field(default_factory=list)
    stuck: bool = False


class VirtualCluster:
    """Runs a chain of stages on simulated slots, with a simulated clock, through the real ``Core``.

    Parameters
    ----------
    stages, slots, limit_bytes, policy, core : the arguments of ``Core``
    truth : one TaskTruth per stage, or a function that returns it for a task's place
    consume_s : seconds that the consumer holds each partition
    seed : of the noise
    watched : record every moment at which a slot was left free, which is slow
    """

    def __init__(
        self,
        stages: Sequence[Demand],
        truth: Sequence[TaskTruth | Callable[[Seq], TaskTruth]],
        slots: Mapping[str, float] | int,
        limit_bytes: int,
        policy: Policy | None = None,
        *,
        consume_s: float = 0.0,
        seed: int = 0,
        watched: bool = True,
        **core: Any,
    ) -> None:
        self.core = Core(stages, slots, limit_bytes, policy, **core)
        self.truth, self.consume_s, self.watched = tuple(truth), consume_s, watched
        self.trace, self.now = ClusterTrace(), 0.0
        self._random = random.Random(seed)  # noqa: S311  not a secret
        self._events: list[tuple[float, int, Event]] = []
        self._count = 0
        self._line: list[Seq] = []  # offered, not yet taken by the consumer
        self._consuming = False

    def run(self, units: int) -> ClusterTrace:
        """Run ``units`` units to the end; the trace is ``stuck`` if tasks or partitions remain."""
        self.step(Arrive(units))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            if isinstance(event, Consumed):
                self._consuming = False
            self.step(event)
        trace = self.trace
        trace.stuck = not self.core.finished or bool(self._line)
        trace.seconds, trace.forced = self.now, self.core.forced
        trace.peak_bytes = self.core.peak_bytes
        return trace

    def step(self, event: Event) -> None:
        """Send an event to the core now, perform its actions, and check the invariants."""
        actions = self.core.step(event, self.now)
        for action in actions:
            self._perform(action)
        self._check(actions)
        if self._line and not self._consuming:
            self._consuming = True
            self._at(self.consume_s, Consumed(self._line.pop(0)))

    def _perform(self, action: Action) -> None:
        if isinstance(action, Offer):
            self.trace.offers.append(action.seq)
            self._line.append(action.seq)
        elif isinstance(action, Run):
            self._launch(action)

    def _launch(self, run: Run) -> None:
        known = self.truth[run.stage]
        truth = known if isinstance(known, TaskTruth) else known(run.seq)
        seconds, nbytes, more = truth.slice(run.k)
        if truth.noise:
            seconds *= self._random.lognormvariate(-(truth.noise**2) / 2, truth.noise)
        self.trace.launches.append((self.now, run))
        for name, amount in self.core.demands[run.stage].resources:
            self.trace.busy_s[name] = self.trace.busy_s.get(name, 0.0) + seconds * amount
        if run.fault == "lose":
            self._at(seconds, TaskFailed(run.seq, lost=True))
            return
        self._at(seconds, SliceDone(run.seq, nbytes, seconds, more, truth.parked_bytes))

    def _at(self, delay_s: float, event: Event) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_s, self._count, event))

    def _check(self, actions: Sequence[Action]) -> None:
        state = self.core.state
        if self.watched and any(admits(state, task) for task in self.core.startable(wide=True)):
            self.trace.idle.append(self.now)
        launched = any(isinstance(action, Run) for action in actions)
        slots_over = any(free < -EPSILON for free in self.core.free.values())
        if slots_over or (launched and state.used_bytes > state.limit_bytes):
            self.trace.over.append(self.now)
