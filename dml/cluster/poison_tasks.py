"""Give up slices that repeatedly lose their workers, with an error that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import distributed

from dml.errors import DmlError, InternalError, WorkerLostError, worded
from dml.exec.scheduler.policy import Candidate, Fault, Policy, Seq, State, StreamingPolicy

MOST_LOSSES = 3


class NoWorkerError(Exception):
    """Raised when Dask dropped a task because its workers were gone, silent or out of memory."""

    def __str__(self) -> str:
        return "its workers were gone, silent, or had their memory full for a time, more than once"


class Losing:
    """A scheduling policy that gives up a task whose slices were lost too often.

    All other decisions are those of the ``policy`` that it wraps. A loss counts twice if Dask
    reports that several workers died, though some of them may have died because of another slice.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.given_up = False
        self._usual: Policy = StreamingPolicy() if policy is None else policy
        self._losses: dict[Seq, int] = {}

    def lose(self, seq: Seq, error: BaseException) -> None:
        """Count a loss of task ``seq``; the next call of ``retry`` is about this task."""
        several = isinstance(error, distributed.KilledWorker) and error.allowed_failures > 0
        weight = 2 if several else 1
        losses = self._losses[seq] = self._losses.get(seq, 0) + weight
        self.given_up = losses > MOST_LOSSES

    def suspects(self, seq: Seq) -> bool:
        """Return True if the slices of task ``seq`` may have killed workers."""
        return seq in self._losses

    def apart(self, seq: Seq) -> bool:
        """Return True if task ``seq`` was lost repeatedly, so that it is retried alone on a worker.

        If several tasks were on a worker that died, it is unknown which one killed it. Retried
        together, all of them would be lost again.
        """
        return self._losses.get(seq, 0) > 1

    def clear(self, seq: Seq) -> None:
        """Forget the losses of a task, since one of its slices has succeeded."""
        self._losses.pop(seq, None)

    @property
    def wide(self) -> bool:
        """True if the wrapped policy needs all candidates to choose from."""
        return self._usual.wide

    def shape(
        self, slots: Mapping[str, float], limit_bytes: int
    ) -> tuple[Mapping[str, float], int]:
        """Return the slots and the memory limit as the wrapped policy changes them."""
        return self._usual.shape(slots, limit_bytes)

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the choice of the wrapped policy."""
        return self._usual.choose(state, candidates)

    def fault(self, seq: Seq, k: int, failures: int) -> Fault:
        """Return the fault that the wrapped policy injects: none, except in tests."""
        return self._usual.fault(seq, k, failures)

    def retry(self, failures: int, *, lost: bool) -> bool:
        """Return True if a slice was lost, and its task has not been lost too often for a retry."""
        return lost and not self.given_up


def to_dml_error(error: BaseException, where: str) -> DmlError:
    """Return the error for the user, at ``where``, if Dask gave up a task with ``error``."""
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
