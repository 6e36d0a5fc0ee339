"""This file is what every worker process has: jobs by run, and slices of them on request.

A driver sends each job once; an order names the run, the slice and what it works on. The answer
tells what came of it, what was counted and which schemas it settled.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import platform
import threading
import time
from collections.abc import Sequence
from typing import Any

import cloudpickle

from dml.errors import DmlError, InternalError, PlanError, WorkerLostError
from dml.events import Tally
from dml.exec.job import Job
from dml.exec.messages import Run
from dml.exec.parcel import Parcel, pack, shipped, unpack
from dml.exec.slices import Outcome, Runtime
from dml.expr.schema import Schema


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """Slice ``run`` of the run ``name``, on ``argument``: a task, or the parcel of a partition.

    ``schemas`` are those that the rows of other workers have settled.
    """

    name: str
    run: Run
    argument: Any
    schemas: dict[str, Schema]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What came of an order: a parcel, an exception (``error``), or that nothing was left."""

    parcel: Parcel | None
    error: bytes
    lost: bool
    seconds: float = 0.0
    tally: Tally = dataclasses.field(default_factory=Tally)
    schemas: dict[str, Schema] = dataclasses.field(default_factory=dict)
    replayed: int = 0


class Bench:
    """One job under way in this process; slices of different tasks may run side by side."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._mine = threading.local()
        self.runtime = Runtime(job.starts(self._tally))

    def _tally(self) -> Tally:
        found: Tally = self._mine.tally
        return found

    def do(self, order: Order) -> Answer:
        """Run one slice; every exception becomes a part of the answer."""
        known = self.job.at.schemas
        known.update(order.schemas)
        self._mine.tally = tally = Tally()
        replayed, started = self.runtime.replayed, time.perf_counter()
        parcel, error, lost = None, b"", False
        try:
            outcome = self.runtime.run(order.run, _argument(order.argument))
            parcel = None if outcome is None else pack(outcome)
        except Exception as raised:  # noqa: BLE001  (delivered at its place in order)
            error, lost = shipped(raised), isinstance(raised, WorkerLostError)
        seconds = time.perf_counter() - started
        replays = self.runtime.replayed - replayed
        settled = {key: known[key] for key in known.keys() - order.schemas.keys()}
        return Answer(parcel, error, lost, seconds, tally, settled, replays)


def _argument(sent: Any) -> Any:
    """A task as it is; of a partition the pieces."""
    if isinstance(sent, Parcel):
        opened: Outcome = unpack(sent)
        return opened.value
    return sent


class Desk:
    """The benches of a process, by the name of their run."""

    def __init__(self) -> None:
        self._benches: dict[str, Bench] = {}
        self._refused: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def open(self, name: str, job: bytes, buffers: Sequence[Any] = ()) -> None:
        """Take a job, as ``written`` wrote it; its orders are told what is wrong with it."""
        with self._lock:
            if name in self._benches or name in self._refused:
                return
            try:
                self._benches[name] = Bench(read(job, buffers))
            except Exception as error:  # noqa: BLE001 (whatever a user's module does when imported)
                self._refused[name] = shipped(_unreadable(error))

    def do(self, order: Order) -> Answer:
        """Carry out an order of a run whose job is here."""
        refused = self._refused.get(order.name)
        if refused is not None:
            return Answer(None, refused, lost=False)
        bench = self._benches.get(order.name)
        if bench is None:
            raise InternalError("an order came before its job", why=f"run {order.name}")
        return bench.do(order)

    def close(self, name: str) -> None:
        """Forget a run, and end its parked generators; nothing happens if it is not here."""
        with self._lock:
            bench = self._benches.pop(name, None)
            self._refused.pop(name, None)
        if bench is not None:
            bench.runtime.close()


def written(job: Job) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """A job as bytes, its functions by value, and its large arrays as buffers beside them."""
    buffers: list[pickle.PickleBuffer] = []
    sent = cloudpickle.dumps(job, protocol=5, buffer_callback=buffers.append)
    return bytes(sent), buffers


def _unreadable(error: Exception) -> DmlError:
    """A job that this process cannot take: most often a module that is not installed there."""
    found = PlanError(
        "a worker cannot load the pipeline",
        at=f"process {os.getpid()} on {platform.node()}",
        why=f"{type(error).__name__}: {error}",
        try_="install there what the functions import, at the same versions",
    )
    found.__cause__ = error
    return found


def read(sent: bytes, buffers: Sequence[Any]) -> Job:
    """The job that ``written`` wrote; its arrays lie in ``buffers``."""
    found: Job = pickle.loads(sent, buffers=buffers)  # noqa: S301 (from the run's own client)
    return found
