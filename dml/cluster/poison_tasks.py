"""Give up slices that repeatedly lose their workers, with an error that says so."""

from __future__ import annotations

import distributed

from dml.errors import DmlError, InternalError, WorkerLostError, worded
from dml.exec.scheduler.policy import Seq

MOST_LOSSES = 3


class NoWorkerError(Exception):
    """Raised when Dask dropped a task, as its workers were gone, silent or out of memory."""

    def __str__(self) -> str:
        return "its workers were gone, silent, or had their memory full for a time, more than once"


class Losing:
    """Counts how often the slices of each task were lost.

    A loss counts twice if Dask reports that several workers died, though some of them may have died
    because of another slice.
    """

    def __init__(self) -> None:
        self._losses: dict[Seq, int] = {}

    def lose(self, seq: Seq, error: BaseException) -> bool:
        """Count a loss of task ``seq``; return True if it was lost too often for a retry."""
        several = isinstance(error, distributed.KilledWorker) and error.allowed_failures > 0
        weight = 2 if several else 1
        losses = self._losses[seq] = self._losses.get(seq, 0) + weight
        return losses > MOST_LOSSES

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
        """Forget the losses of a task, as one of its slices has succeeded."""
        self._losses.pop(seq, None)


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
