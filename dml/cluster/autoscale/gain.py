"""The default scaling policy moves to the number of workers that S/D suggests, then tests it.

S is the workers' seconds for a batch, D the trainer's. A worker is worth its cost while it brings a
part ``rho`` of the ideal gain, which is 1/(w+1) of the batch time for one worker more than w. A
gain of a fixed share of the batch time, as Cachew asks for, would end growth at 33 workers.
"""

from __future__ import annotations

import math
import statistics
from typing import Literal, NamedTuple

from dml.cluster.autoscale.window import Log, ScalingDecision, ScalingWindow

RHO = 0.5
SURE = 2.2  # standard errors; as all below tuned on benchmarks/bench_scaling.py
REFUSED, TRIED = 3.0, 4  # standard errors and windows until a gain counts as none for good
STALL, STALLS = 0.03, 6  # share of waiting that is worth a worker, and the windows to measure it
CHANGED = 0.30  # a larger difference is not scatter but another load
SLACK = 0.05  # share of surplus workers before any are removed
PATIENCE = 8  # windows until an unmeasurably small gain is accepted
SCATTER = 0.05  # assumed scatter of windows, until it is measured
TRAINER = 30  # workers that cost as much as a trainer; Cachew's figure 10 says 26 to 37


class Trial(NamedTuple):
    """The figures before a change; ``error`` is the relative standard error of ``batch_time_s``."""

    workers: int
    batch_time_s: float
    error: float


class GainPolicy:
    """Chooses the workers such that one more would bring less than ``rho`` of the ideal gain.

    With S worker seconds and D trainer seconds for a batch, n = ceil(S/D - rho): the next worker
    would have less than rho of a worker's work. The policy moves to n at once when S/D is
    significantly above or below the capacity of the current workers, and adds workers when the
    trainer waits significantly. A change is a trial: if the observed gain is significantly less
    than rho of the ideal one, workers are not the bottleneck, and their number becomes the least
    that gives the observed batch time. All measurements are forgotten when S or D changes by a
    third in two windows. ``minimize="cost"`` counts a trainer as 30 workers, and stops where the
    next worker costs more than the trainer's time that it saves.

    Source: Cachew, section 4.3, with gains normalised; S and D are the service demands of
    operational analysis.
    """

    def __init__(
        self,
        least: int = 1,
        most: int = 1024,
        rho: float = RHO,
        minimize: Literal["time", "cost"] = "time",
    ) -> None:
        self.least, self.most, self.minimize, self.rho = least, most, minimize, rho
        self.workers = 0
        self.jumps: list[float] = []  # differences between windows of one load
        self.last: ScalingWindow | None = None
        self.odd = False  # the last window differed from those before
        self.next: Trial | None = None  # the baseline of a pending change
        self._forget()

    def _forget(self) -> None:
        """Forget all measurements, since the load has changed."""
        self.step_s, self.floor_s, self.needed_s = Log(self.scatter), 0.0, math.inf
        # the most workers known to be too few for ``floor_s``; the least to which to reduce them
        self.short, self.kept = 0, 0
        self._arrive()

    def _arrive(self) -> None:
        """Restart the measurements that depend on the number of workers, since that has changed."""
        self.busy_s, self.batch_s = Log(self.scatter), Log(self.scatter)
        self.waits: list[float] = []
        self.trial, self.next = self.next, None

    @property
    def scatter(self) -> float:
        """The relative deviation between windows of one load."""
        if len(self.jumps) < PATIENCE:
            return SCATTER
        return max(SCATTER / 5, statistics.median(self.jumps) / 0.954)

    def _part(self, workers: int) -> float:
        """Return the share of the ideal gain that one more worker than ``workers`` must bring."""
        cost = (workers + 1) / (workers + 1 + TRAINER)
        return min(self.rho, cost) if self.minimize == "time" else cost

    def _serve(self, workers: int, asked: float) -> bool:
        """Return True if ``workers`` suffice for a load that keeps ``asked`` workers busy."""
        return asked * (workers + 1 - self._part(workers)) <= workers * (workers + 1)

    def _enough(self, asked: float) -> int:
        """Return the fewest workers that suffice for a load that keeps ``asked`` workers busy."""
        workers = max(1, math.ceil(asked - 1e-9))
        return workers - 1 if workers > 1 and self._serve(workers - 1, asked) else workers

    def step(self, window: ScalingWindow) -> ScalingDecision:
        """Learn, judge a pending trial, then decide if there are too few or too many workers."""
        if not self._learn(window):
            reason = "a window unlike those before; is the next one, too?"
            return ScalingDecision(self.workers, reason)
        trial = self.trial
        found = self._sized() or self._starved() if trial is None else self._judged(trial)
        if found is None:
            quiet = self.trial is None
            reason = "as many as are needed" if quiet else "seeing what the last change brought"
            return ScalingDecision(self.workers, reason, settled=quiet)
        wanted = min(self.most, max(self.least, found.workers))
        if wanted == self.workers:
            return ScalingDecision(wanted, f"{found.reason}, and these are all", settled=True)
        if not found.settled:
            self.next = Trial(self.workers, self.batch_s.mean, self.batch_s.error)
        return ScalingDecision(wanted, found.reason)

    # ------------------------------------------------------------------------------------ learning

    def _learn(self, window: ScalingWindow) -> bool:
        """Add a window; return False if it is unlike the earlier ones, as during a checkpoint.

        A second such window in sequence counts as a new load, which replaces what was measured.
        """
        if window.workers != self.workers:
            self._arrive()
            self.workers, self.last = window.workers, None
        if self._another(window):
            self.odd = not self.odd
            if self.odd:
                return False
            self._forget()
        elif self.last is not None:
            self.jumps = [*self.jumps, abs(math.log(window.busy_s / self.last.busy_s))][-32:]
        self.last, self.odd = window, False
        self.step_s.add(window.step_s)
        self.busy_s.add(window.busy_s)
        self.batch_s.add(window.batch_time_s)
        self.waits = [*self.waits, 1 - window.step_s / window.batch_time_s][-self.batch_s.most :]
        self.needed_s = min(self.needed_s, self.busy_s.mean)
        return True

    def _another(self, window: ScalingWindow) -> bool:
        """Return True if the trainer's time, or the work for a batch, has changed."""
        changed = max(CHANGED, 4 * self.scatter)
        if self.busy_s.far(window.busy_s, changed):
            return True
        if not self.step_s.far(window.step_s, changed):
            return False
        return abs(window.step_s - self.step_s.mean) > window.batch_time_s / 20

    # ------------------------------------------------------------------------------------- judging

    def _judged(self, trial: Trial) -> ScalingDecision | None:
        """Judge the last change by its trial; return a step back if it failed, else None.

        After an increase, the batch time must have fallen by a part of the possible fall; after a
        decrease, it may have risen by only a part of the possible rise.
        """
        ratio = self.batch_s.mean / trial.batch_time_s
        error = math.hypot(self.batch_s.error, trial.error) * ratio
        gain, asked = 1 - ratio, self._asked(trial)
        passed = gain - SURE * error > asked
        open_ = len(self.batch_s) < TRIED or gain + REFUSED * error > asked
        if passed or not open_ or len(self.batch_s) >= PATIENCE:
            self.trial = None
        more = self.workers > trial.workers
        if passed and more:
            self.short = max(self.short, trial.workers)
        if passed or open_:
            return None
        return self._too_many(trial, gain, asked) if more else self._too_few(trial, ratio)

    def _asked(self, trial: Trial) -> float:
        """Return the least gain at which the change of ``trial`` passes; negative for a loss."""
        if self.workers < trial.workers:
            return -self._part(self.workers) * (trial.workers / self.workers - 1)
        least = max(self.step_s.mean / trial.batch_time_s, trial.workers / self.workers)
        return self._part(trial.workers) * (1 - least)

    def _too_many(self, trial: Trial, gain: float, asked: float) -> ScalingDecision:
        """Return a step back from an increase that brought only ``gain``."""
        self.floor_s = self.batch_s.mean
        enough = self._enough(self.needed_s / self.floor_s)
        enough = min(self.workers, max(enough, self.short + 1))
        reason = f"{self.workers} workers made batches {gain:.1%} faster, {asked:.1%} was asked"
        return ScalingDecision(enough, reason, settled=enough >= trial.workers)

    def _too_few(self, trial: Trial, ratio: float) -> ScalingDecision:
        """Return a step back from a decrease after which batches took ``ratio`` times as long."""
        self.short = max(self.short, self.workers)
        self.kept = max(self.kept, self.workers + 1)
        return ScalingDecision(trial.workers, f"batches took {ratio - 1:.1%} longer", settled=True)

    # -------------------------------------------------------------------------------------- sizing

    def _sized(self) -> ScalingDecision | None:
        """Return a change to the number of workers that S/D suggests; None if that is uncertain."""
        step_s, n = max(self.step_s.mean, self.floor_s), self.workers
        asked = self.busy_s.mean / step_s
        error = math.hypot(self.busy_s.error, self.step_s.error)
        few = self._enough(asked / math.exp(error))  # too few are detected at once, too many late
        sure, slack = math.exp(SURE * error), 1 + SLACK * n / (n + 10)
        reason = f"a batch takes workers {self.busy_s.mean:.3g} s and the trainer {step_s:.3g} s"
        if not self._serve(n, asked / sure):
            return ScalingDecision(max(n + 1, few), reason)
        wanted = max(self.kept, few)
        if wanted < n and self._serve(n - 1, asked * sure * slack):
            return ScalingDecision(wanted, reason)
        return None

    def _starved(self) -> ScalingDecision | None:
        """Return an increase by some of the missing workers if the trainer waits significantly."""
        if self.floor_s or len(self.waits) < STALLS:
            return None
        mean = statistics.fmean(self.waits)
        error = statistics.stdev(self.waits) / math.sqrt(len(self.waits))
        if mean - SURE * error <= max(STALL, self._part(self.workers) / (self.workers + 1)):
            return None
        more = max(1, int(mean / 2 * self.workers))
        return ScalingDecision(self.workers + more, f"the trainer waits {mean:.1%} of its time")
