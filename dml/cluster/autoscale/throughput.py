"""Measure a run's throughput as its trainer sees it, and scale the run's cluster by it.

Times are measured where batches are delivered, window by window. A pure policy decides on them
(scaling_policy.py), and ``Staff`` (cluster_scaler.py) executes the decision.
Source of batch_time and result_queue_size: Cachew (USENIX ATC 2022), table 1.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

from dml.cluster.autoscale.cluster_scaler import Staff
from dml.cluster.autoscale.scaling_policy import (
    Cachew,
    GainPolicy,
    ScalingDecision,
    ScalingPolicy,
    ScalingWindow,
    Utilisation,
)
from dml.cluster.cluster_run import crews_of
from dml.cluster.dask_crew import DaskCrew
from dml.events import Event, Scaled
from dml.exec.delivery.prefetch import ElementChunk, Received
from dml.exec.streams.stream import Streaming
from dml.settings import Autoscale

PAUSE = 1.5  # windows ignored after a change, as Cachew's clients pause for 150 batches
TINY_S = 1e-9


def policy_of(asked: Autoscale) -> ScalingPolicy:
    """Return the scaling policy that the settings ``asked`` name."""
    if asked.policy == "cachew":
        return Cachew(asked.min, asked.max)
    if asked.policy == "cpu":
        return Utilisation(asked.min, asked.max)
    minimize = cast("Literal['time', 'cost']", asked.minimize)
    return GainPolicy(asked.min, asked.max, asked.rho, minimize)


class Totals(NamedTuple):
    """All workers' work since the start; partitions are ``handed`` to the trainer or ``stored``."""

    slices: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    handed: int = 0  # partitions that left the cluster
    stored: int = 0  # partitions that wait there


class WindowSums:
    """Sums of the window that began at ``now`` with totals ``at``, after ``batches`` batches."""

    def __init__(self, now: float, at: Totals, batches: int) -> None:
        self.begun, self.at, self.before = now, at, batches
        self.batches, self.wait_s, self.step_s, self.queue = 0, 0.0, 0.0, 0.0

    def add(self, batches: int, wait_s: float, step_s: float, queue: float) -> None:
        """Add ``batches`` that arrived together, the wait for them, and the trainer's next step.

        ``queue`` is the number of ready batches.
        """
        self.batches += batches
        self.wait_s += wait_s
        self.step_s += step_s
        self.queue += queue * batches

    def window(self, now: float, to: Totals, workers: int, threads: float) -> ScalingWindow | None:
        """Return the window's figures, None without partitions; ``threads`` is a worker's mean."""
        each = to.handed / (self.before + self.batches)  # partitions of a batch
        made = to.handed + to.stored - self.at.handed - self.at.stored
        busy_s = (to.busy_s - self.at.busy_s) / threads
        if made <= 0 or busy_s <= 0:
            return None
        whole = (now - self.begun) * workers * threads
        return ScalingWindow(
            workers,
            max(TINY_S, (self.wait_s + self.step_s) / self.batches),
            max(TINY_S, self.step_s / self.batches),
            busy_s / made * each,
            self.queue / self.batches,
            min(1.0, (to.cpu_s - self.at.cpu_s) / max(TINY_S, whole)),
        )


class TrainerMeter(Received):
    """Counts delivered elements, and after every window decides the number of workers.

    A window is ``asked.window`` batches, and at least as many slices as there are workers. A window
    counts only if the number of workers was constant and slices were waiting for workers: the end
    of an epoch is not representative. While one run scales the cluster, other runs do not.
    """

    def __init__(
        self,
        asked: Autoscale,
        streaming: Streaming,
        patience_s: float,
        warn: Callable[[str, str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self.asked, self.streaming, self.patience_s = asked, streaming, patience_s
        self.warn, self.clock, self.policy = warn, clock, policy_of(asked)
        self.changes: list[Scaled] = []
        self.seen: ScalingWindow | None = None
        self._sums: WindowSums | None = None
        self._last = (0.0, 0, 0.0)  # of the last chunk: time, number of batches, seconds waited
        self._skip = 1.0  # batches to ignore: the first ones wait for the run to start
        self._workers = self._count = 0
        self._told_of: set[str] = set()
        self.staff: Staff | None = None

    # ------------------------------------------------------------------------------------- the run

    @property
    def crews(self) -> list[DaskCrew]:
        """The crews of the run on the cluster, including those that have ended."""
        every = [each.open for each in self.streaming.running.all]
        return [crew for each in every for crew in crews_of(each)]

    @property
    def going(self) -> bool:
        """True while a crew of the run is active."""
        return any(not crew.closing for crew in self.crews)

    def chunk(self, chunk: ElementChunk, ready: Any, waited_s: float) -> None:
        """Count the batches of a chunk.

        The time since the previous chunk, less the wait ``waited_s``, is that of the trainer's
        steps.
        """
        super().chunk(chunk, ready, waited_s)
        now, (then, batches, wait_s) = self.clock(), self._last
        self._last = now, len(chunk.elements) if chunk.skipped < 0 else 1, waited_s
        if batches and (crews := self.crews):
            self._took(crews, batches, wait_s, max(0.0, now - waited_s - then))

    def _took(self, crews: list[DaskCrew], batches: int, wait_s: float, step_s: float) -> None:
        self._count += batches
        staff = self.staff = Staff.of(crews[0].hub)
        if not staff.claim(self):
            return
        if staff.error is not None:
            self._warn(staff)
        if staff.changing or staff.count != self._workers:
            self._another(staff)
        elif self._skip > 0:
            self._skip -= batches
        else:
            self._add(staff, crews, batches, wait_s, step_s)

    def _warn(self, staff: Staff) -> None:
        """Warn of an error of the cluster, once; scaling is retried after the next window."""
        error, staff.error = staff.error, None
        text = f"the cluster could not be scaled: {error!r}"
        if text not in self._told_of:
            self._told_of.add(text)
            self.warn("NotScaled", text)

    def _another(self, staff: Staff) -> None:
        """Discard the current window; once a change is done, adopt the new number of workers."""
        self._sums = None
        if not staff.changing:
            self._skip = PAUSE * self.asked.window if self._workers else 1
            self._workers = staff.count

    def _add(
        self, staff: Staff, crews: list[DaskCrew], batches: int, wait_s: float, step_s: float
    ) -> None:
        if self._sums is None:
            self._sums = WindowSums(self.clock(), self._totals(crews), self._count)
            return
        sums, ready = self._sums, sum(len(crew.loop.offers) for crew in crews)
        sums.add(batches, wait_s, step_s, ready * self._count / max(1, self._handed))
        if sums.batches < self.asked.window:
            return
        at = self._totals(crews)
        if at.slices - sums.at.slices < self._workers:
            return
        self._sums = None
        if all(len(crew.loop.core.active) >= crew.loop.core.live for crew in crews):
            return  # more workers would be idle
        window = sums.window(self.clock(), at, self._workers, staff.threads)
        if window is not None:
            self._decided(window, self.policy.step(window), staff, crews)

    def _decided(
        self, window: ScalingWindow, decision: ScalingDecision, staff: Staff, crews: list[DaskCrew]
    ) -> None:
        self.seen, self._sums = window, None
        asked = min(self.asked.max, max(self.asked.min, decision.workers))
        if asked == window.workers:
            return
        reason = decision.reason if asked == decision.workers else "the bounds of autoscale"
        told = self._scaled_event(window.workers, asked, reason)
        self.changes.append(dataclasses.replace(told, at=time.time()))
        staff.follow(asked, crews, self.patience_s)

    @property
    def _handed(self) -> int:
        return sum(each.meter.cells[0].blocks for each in self.streaming.running.all)

    def _totals(self, crews: list[DaskCrew]) -> Totals:
        loops = [crew.loop for crew in crews]
        every = list(self.streaming.running.all)
        cells = [cell for each in every for _, cell in each.tallies.total().cells()]
        return Totals(
            sum(loop.tally.slices for loop in loops),
            sum(loop.tally.busy_s for loop in loops),
            sum(cell.cpu_s for cell in cells),
            self._handed,
            sum(_stored(crew) for crew in crews if not crew.closing),
        )

    # ---------------------------------------------------------------------------------- the account

    def events(self, run: str, at: float) -> list[Event]:
        """Return one event of ``run`` for every change, and one for the current figures."""
        workers = self._workers if self.staff is None else self.staff.count
        now = [*self.changes, dataclasses.replace(self._scaled_event(workers, workers, ""), at=at)]
        return [dataclasses.replace(each, run=run) for each in now]

    def _scaled_event(self, workers: int, asked: int, reason: str) -> Scaled:
        seen = self.seen
        return Scaled(
            batches=self._count,
            workers=workers,
            asked=asked,
            reason=reason,
            batch_time_s=None if seen is None else seen.batch_time_s,
            result_queue_size=None if seen is None else seen.result_queue_size,
        )


def _stored(crew: DaskCrew) -> int:
    """Return the number of finished partitions of the last stage that are not delivered yet."""
    last = len(crew.loop.core.demands) + 1
    with crew.lock:
        return sum(len(seq) == last for seq in crew.loop.stored)
