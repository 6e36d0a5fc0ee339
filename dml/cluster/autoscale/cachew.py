"""Cachew's scaling policy adds one worker as long as that makes batches three percent faster.

Source: Cachew (USENIX ATC 2022), section 4.3. Users can choose this policy, which is the baseline
for dml's own.
"""

from __future__ import annotations

from typing import Literal

from dml.cluster.autoscale.window import ScalingDecision, ScalingWindow

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
    workers are removed one by one while batch_time stays within the threshold.
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
