"""This file says when a piece of work that workers die over is given up, and in which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import distributed

from dml.errors import DmlError, InternalError, WorkerLostError, worded
from dml.exec.policy import Candidate, Fault, Policy, Seq, State, Streaming

MOST_LOSSES = 3


class NoWorkerError(Exception):
    """Workers had gone, were silent or had their memory full, and Dask left a task lying."""

    def __str__(self) -> str:
        return "its workers were gone, silent, or had their memory full for a time, more than once"


class Losing:
    """A policy, but for slices that were lost: who drives them says when to give up.

    A slice is given up after so many losses. Dask's own word counts twice where it says that
    several workers died, though some of them may have died of another slice.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.given_up = False
        self._usual: Policy = Streaming() if policy is None else policy
        self._losses: dict[Seq, int] = {}

    def lose(self, seq: Seq, error: BaseException) -> None:
        """A task was lost; the next question is about it."""
        several = isinstance(error, distributed.KilledWorker) and error.allowed_failures > 0
        weight = 2 if several else 1
        losses = self._losses[seq] = self._losses.get(seq, 0) + weight
        self.given_up = losses > MOST_LOSSES

    def suspects(self, seq: Seq) -> bool:
        """True if workers may have died over a task."""
        return seq in self._losses

    def apart(self, seq: Seq) -> bool:
        """True if nothing else should be with it where it is done again.

        Of what a worker had in hand nobody knows over which it died: what it had made just before
        may not have been heard of, and what waited behind it was not begun. Done again in the same
        company, all of it is lost again.
        """
        return self._losses.get(seq, 0) > 1

    def clear(self, seq: Seq) -> None:
        """A slice of a task has come back."""
        self._losses.pop(seq, None)

    @property
    def wide(self) -> bool:
        """What the policy asks to be shown."""
        return self._usual.wide

    def shape(
        self, slots: Mapping[str, float], limit_bytes: int
    ) -> tuple[Mapping[str, float], int]:
        """Slots and limit as the policy has them."""
        return self._usual.shape(slots, limit_bytes)

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """The policy's choice."""
        return self._usual.choose(state, candidates)

    def fault(self, seq: Seq, k: int, failures: int) -> Fault:
        """The policy's disturbance: none, but in tests."""
        return self._usual.fault(seq, k, failures)

    def retry(self, failures: int, *, lost: bool) -> bool:
        """True for a slice that is worth another worker."""
        return lost and not self.given_up


def told(error: BaseException, where: str) -> DmlError:
    """What Dask says of a task that it gave up, as an error about the piece of work."""
    if isinstance(error, DmlError):
        return error
    if isinstance(error, distributed.KilledWorker | NoWorkerError):
        found: DmlError = WorkerLostError(
            "workers died over one piece of work",
            at=where,
            why=str(error),
            try_="the logs of those workers; memory is the usual reason",
        )
    else:
        found = InternalError(
            "a task could not be run on the cluster",
            at=where,
            why=worded(error),
            try_="the same versions of dml and its dependencies on all workers",
        )
    found.__cause__ = error
    return found
