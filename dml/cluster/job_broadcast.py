"""Send the job of a run to the workers of a cluster: once to each, whatever the job's size.

A *seat* is the job on one worker, as a Dask key (worker_state.py). A small job is part of the task
that creates the seat, so that Dask can recreate the seat by itself. A large job (data in memory)
goes to one worker directly, and from there to the others; if that worker is lost too early, the job
is sent again. Functions of modules that a worker lacks, or has in another state, are sent by value,
with all of the user's own modules.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Set
from types import ModuleType
from typing import Any

from dml.base.library_code import library_of
from dml.cluster.worker_monitor import Hub
from dml.cluster.worker_state import Freight, WorkerState, digest, staying
from dml.exec.process.references import by_value
from dml.exec.process.task_runner import written
from dml.exec.tasks.job import Job

INSIDE = 256 << 10  # most bytes of a job that is sent inside a task


class Cargo:
    """The job of one run, pickled once, and its seats; used on the client's event loop."""

    def __init__(self, hub: Hub, run: str, job: Job) -> None:
        self.hub, self.run, self.job = hub, run, job
        self.generation, self.by_value = 0, False
        self.seats: dict[str, Any] = {}
        self.stays: dict[str, Any] = {}
        self.load = Freight(run, *written(job))
        self._apart: Any = None  # the Dask future of a large job
        self._lock = asyncio.Lock()

    async def ship(self) -> None:
        """Send a large job to one worker; do nothing for a small one, as each seat carries it."""
        if self.load.__sizeof__() > INSIDE:
            client, direct = self.hub.client, self.hub.direct
            there = list(self.hub.members) or None
            self._apart = await client.scatter(self.load, workers=there, direct=direct, hash=False)

    def seat(self, place: str) -> Any:
        """Return the Dask future of the seat on worker ``place``, which is created at first use."""
        if place not in self.seats:
            self.seats[place] = self.hub.submit(
                WorkerState,
                self.load if self._apart is None else self._apart,
                key=("dml-seat", self.run, self.generation, place),
                workers=[place],
                allow_other_workers=True,
            )
        return self.seats[place]

    def stay(self, place: str) -> None:
        """Keep the seat on worker ``place``, with the generators parked there.

        If Dask copied the seat elsewhere with a task, it drops either copy after a while. This adds
        a second key for the seat; since no task uses its result, Dask never copies that.
        """
        if place not in self.stays:
            key = ("dml-stay", self.run, self.generation, place)
            self.stays[place] = self.hub.submit(staying, self.seat(place), key=key, workers=[place])

    def left(self, place: str) -> None:
        """Forget the seat on worker ``place``, which is gone or no longer used."""
        self.seats.pop(place, None)
        self.stays.pop(place, None)

    def lies_in(self, keys: Set[Any]) -> bool:
        """Return True if ``keys`` contain the Dask key under which a large job is stored."""
        return self._apart is not None and self._apart.key in keys

    async def again(self, generation: int, *, refused: bytes = b"") -> bool:
        """Resend the job of ``generation``, once; return False if that cannot help.

        The job is sent by value if a worker could not open the job with the digest ``refused``; it
        cannot help if that job was sent by value already. Nothing is sent if the job was resent
        since ``generation``: Dask reruns old tasks when their results are lost.
        """
        async with self._lock:
            if self.generation != generation or refused not in {b"", digest(self.load.job)}:
                return True
            if refused and self.by_value:
                return False
            self.generation += 1
            self.seats.clear()
            if refused:
                self.by_value = True
                self.stays.clear()
                self.load = Freight(self.run, *written_by_value(self.job))
            await self.ship()
            return True

    def drop(self) -> None:
        """Release all Dask futures of the job and of its seats."""
        self.seats.clear()
        self.stays.clear()
        self._apart = None


def written_by_value(job: Job) -> tuple[bytes, list[Any]]:
    """Serialize a job like ``written``, but the user's own modules by value, not by name."""
    with by_value(module for name, module in list(sys.modules.items()) if _own(name, module)):
        return written(job)


def _own(name: str, module: object) -> bool:
    """Return True for a module of no library that is imported under its own name."""
    if not isinstance(module, ModuleType) or module.__name__ != name or name == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(".py") and library_of(name) is None
