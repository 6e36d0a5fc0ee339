"""Scale by processor use, as Kubernetes does; a baseline."""

from __future__ import annotations

import math

from dml.cluster.autoscale.window import ScalingDecision, ScalingWindow

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
