"""Scaling policies turn measurements over some batches into a number of workers.

``GainPolicy`` is the default; ``Cachew`` and ``Utilisation`` are baselines that users can choose.
"""

from __future__ import annotations

import math
import statistics
from typing import Literal, NamedTuple, Protocol


class ScalingWindow(NamedTuple):
    """Means over consecutive batches of the trainer, with a constant number of ``workers``.

    ``batch_time_s`` is the time to get a batch and to process it, ``step_s`` the trainer's own part
    of that time; ``busy_s`` is the time that workers were busy for one batch, computing or waiting
    for data; ``result_queue_size`` is the number of ready batches, ``cpu_share`` the used share of
    the workers' processors. Source of batch_time and result_queue_size: Cachew, table 1.
    """

    workers: int
    batch_time_s: float
    step_s: float
    busy_s: float
    result_queue_size: float = 0.0
    cpu_share: float = 1.0


class ScalingDecision(NamedTuple):
    """The number of workers to have now, why, and whether no trial is pending (``settled``)."""

    workers: int
    reason: str
    settled: bool = False


class ScalingPolicy(Protocol):
    """Turns windows into numbers of workers; the result depends only on the windows so far."""

    def step(self, window: ScalingWindow) -> ScalingDecision:
        """Return the decision after one more window."""


class Log:
    """The geometric mean of positive figures with relative scatter, and its standard error.

    ``expected`` is the relative scatter that is assumed until there are enough figures to measure
    it. Only the last ``most`` figures count.
    """

    PRIOR = 4  # weight of the expected scatter, in figures

    def __init__(self, expected: float = 0.05, most: int = 24) -> None:
        self.expected, self.most = expected, most
        self.figures: list[float] = []

    def add(self, figure: float) -> None:
        """Add a figure, which must be positive."""
        self.figures = [*self.figures, math.log(figure)][-self.most :]

    def __len__(self) -> int:
        return len(self.figures)

    @property
    def mean(self) -> float:
        """The geometric mean of the figures."""
        return math.exp(sum(self.figures) / len(self.figures))

    @property
    def error(self) -> float:
        """The standard error of ``mean``, as a share of the mean."""
        middle, n = sum(self.figures) / len(self.figures), len(self.figures)
        spread = sum((each - middle) ** 2 for each in self.figures)
        variance = (self.PRIOR * self.expected**2 + spread) / (self.PRIOR + n - 1)
        return math.sqrt(variance / n)

    def far(self, figure: float, share: float) -> bool:
        """Return True if ``figure`` differs from the mean by more than ``share`` of it."""
        return bool(self.figures) and abs(math.log(figure / self.mean)) > math.log1p(share)


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
    next worker costs more than the trainer's time that it saves. A gain of a fixed share of the
    batch time, as Cachew asks for, would end growth at 33 workers.

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


THRESHOLD = 0.03  # share by which batch_time must fall to justify another worker
QUEUE_GROWTH = 0.40  # growth of the result queue, as a share, from which workers are too many
EVERY = 10  # windows between two reviews of the settled number
WORSE = 0.10  # share of a "significantly higher" batch_time, for which the paper has no number


class Cachew:
    """Starts with ``least`` workers and adds one at a time; reviews every tenth window.

    While growing, one worker is added as long as batch_time falls by more than ``threshold``, a
    share; a worker that did not help is removed again (figure 9). Once settled, the policy reviews
    the number after every ``every`` windows. If batch_time is 10 % above its old value, one worker
    is added, and growing begins again. If the result queue is more than 40 % above its old value,
    workers are removed one by one while batch_time stays within the threshold. Source: Cachew
    (USENIX ATC 2022), section 4.3.
    """

    def __init__(
        self, least: int = 1, most: int = 1024, threshold: float = THRESHOLD, every: int = EVERY
    ) -> None:
        self.least, self.most, self.threshold, self.every = least, most, threshold, every
        self.state: Literal["growing", "settling", "settled", "shrinking"] = "growing"
        self.before: float | None = None  # batch_time with one worker less
        self.batch_time = self.queue = 0.0  # at convergence
        self.seen: list[ScalingWindow] = []

    def step(self, window: ScalingWindow) -> ScalingDecision:
        """Return the decision after ``window``, by the current state; see the class."""
        steps = {"growing": self._growing, "shrinking": self._shrinking, "settling": self._settle}
        return steps.get(self.state, self._settled)(window)

    def _growing(self, window: ScalingWindow) -> ScalingDecision:
        now, before = window.batch_time_s, self.before
        if before is not None and 1 - now / before <= self.threshold:
            self.state, self.before = "settling", None
            fewer = max(self.least, window.workers - 1)
            reason = f"the last worker made batches {1 - now / before:.1%} faster"
            return ScalingDecision(fewer, reason)
        if window.workers >= self.most:
            return self._settle(window)
        self.before = now
        faster = "" if before is None else f", the last made batches {1 - now / before:.1%} faster"
        return ScalingDecision(window.workers + 1, f"one more{faster}")

    def _settle(self, window: ScalingWindow) -> ScalingDecision:
        """Record batch time and queue size, with which later windows are compared."""
        self.state, self.seen = "settled", []
        self.batch_time, self.queue = window.batch_time_s, window.result_queue_size
        return ScalingDecision(window.workers, "converged", settled=True)

    def _settled(self, window: ScalingWindow) -> ScalingDecision:
        self.seen.append(window)
        if len(self.seen) < self.every:
            return ScalingDecision(window.workers, "converged", settled=True)
        seen, self.seen = self.seen, []
        now = sum(each.batch_time_s for each in seen) / len(seen)
        queue = sum(each.result_queue_size for each in seen) / len(seen)
        if now > self.batch_time * (1 + WORSE) and window.workers < self.most:
            self.state, self.before = "growing", now
            reason = f"batches take {now / self.batch_time - 1:.0%} longer than before"
            return ScalingDecision(window.workers + 1, reason)
        if queue > self.queue * (1 + QUEUE_GROWTH) and window.workers > self.least:
            self.state = "shrinking"
            reason = f"{queue:.1f} batches wait, were {self.queue:.1f}"
            return ScalingDecision(window.workers - 1, reason)
        return ScalingDecision(window.workers, "converged", settled=True)

    def _shrinking(self, window: ScalingWindow) -> ScalingDecision:
        slower = window.batch_time_s / self.batch_time - 1
        if slower >= self.threshold:
            self.state = "settling"
            more = min(self.most, window.workers + 1)
            return ScalingDecision(more, f"batches took {slower:.1%} longer")
        if window.workers <= self.least:
            return self._settle(window)
        return ScalingDecision(window.workers - 1, "batches come as fast with one less")


TARGET = 0.80
TOLERANCE = 0.10
STEADY = 3  # windows whose largest wish counts before workers are removed


class Utilisation:
    """Chooses the number of workers at which processor use is ``target``, a share.

    n = ceil(n * use / target), unless use is within a tenth of the target; workers are removed once
    the last three windows agree. Source: the Horizontal Pod Autoscaler of Kubernetes, with the
    target of 80 % of the comparison in section 6 of Cachew. The policy notices neither workers that
    wait for data, nor a trainer that waits for batches.
    """

    def __init__(self, least: int = 1, most: int = 1024, target: float = TARGET) -> None:
        self.least, self.most, self.target = least, most, target
        self.wishes: list[int] = []

    def step(self, window: ScalingWindow) -> ScalingDecision:
        """Return the number of workers that meets the target."""
        ratio = window.cpu_share / self.target
        wish = window.workers
        if abs(ratio - 1) > TOLERANCE:
            wish = math.ceil(window.workers * ratio - 1e-9)
        wish = min(self.most, max(self.least, wish))
        self.wishes = [*self.wishes, wish][-STEADY:]
        wish = max(self.wishes if len(self.wishes) == STEADY else [window.workers, wish])
        if wish != window.workers:
            self.wishes = []
        reason = f"processors are {window.cpu_share:.0%} in use"
        return ScalingDecision(wish, reason, settled=wish == window.workers)
