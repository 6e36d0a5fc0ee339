"""This file says which workers have not been heard of for long: stopped, stuck, or out of reach."""

from __future__ import annotations

from collections.abc import Mapping

STEP_S = 10.0  # what counts at most between two looks: who looks may have stood still itself


class Silence:
    """How long each worker has been silent; a number of it is a time at which the cluster heard it.

    Two clocks are asked, never one about the other. The cluster's: how much later another worker
    was heard. Ours: for how long nothing new of a worker was told, looks that took long cut short.
    """

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._quiet_s: dict[str, float] = {}
        self._looked = 0.0

    def look(self, heard: Mapping[str, float], now: float) -> None:
        """Take in when the cluster heard each worker last, by its own clock; ``now`` is by ours."""
        passed = min(STEP_S, now - self._looked)
        newest = max(heard.values(), default=0.0)
        self._quiet_s = {
            worker: max(newest - at, self._longer(worker, at, passed))
            for worker, at in heard.items()
        }
        self._heard, self._looked = dict(heard), now

    def _longer(self, worker: str, at: float, passed: float) -> float:
        return self._quiet_s[worker] + passed if self._heard.get(worker) == at else 0.0

    def longer_than(self, seconds: float) -> set[str]:
        """Workers that have been silent for more than so many seconds."""
        return {worker for worker, quiet_s in self._quiet_s.items() if quiet_s > seconds}
