"""This file is a scaling policy by processor use, as Kubernetes has it, to compare with."""

from __future__ import annotations

import math

from dml.exec.scaling.window import Decision, Window

TARGET = 0.80
TOLERANCE = 0.10
STEADY = 3  # windows whose largest wish counts before workers are taken away


class Utilisation:
    """As many workers as would be in use by ``target``, whatever the trainer sees.

    n = ceil(n * use / target), unless that is within a tenth; workers go once the last three
    windows agree. Source: the Horizontal Pod Autoscaler of Kubernetes, at the 80 % that Cachew's
    section 6 compares with. It does not see workers that wait for data, nor a trainer that waits.
    """

    def __init__(self, least: int = 1, most: int = 1024, target: float = TARGET) -> None:
        self.least, self.most, self.target = least, most, target
        self.wishes: list[int] = []

    def step(self, window: Window) -> Decision:
        """The number at which the target is met."""
        ratio = window.cpu_share / self.target
        wish = window.workers
        if abs(ratio - 1) > TOLERANCE:
            wish = math.ceil(window.workers * ratio - 1e-9)
        wish = min(self.most, max(self.least, wish))
        self.wishes = [*self.wishes, wish][-STEADY:]
        wish = max(self.wishes if len(self.wishes) == STEADY else [window.workers, wish])
        if wish != window.workers:
            self.wishes = []
        return Decision(
            wish, f"processors are {window.cpu_share:.0%} in use", settled=wish == window.workers
        )
