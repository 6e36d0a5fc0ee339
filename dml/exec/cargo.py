"""This file brings a run's job to the workers of a cluster: once each, whatever its size.

A small job travels inside the task that takes the seat, so that Dask can make the seat again by
itself. A large one (data that lie in memory) goes to one worker directly, and from there to the
others; if that worker is lost too early it is sent again. Functions of modules that a worker does
not have, or has in another state, are sent by value, all the user's own modules together.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Set
from types import ModuleType
from typing import Any

import cloudpickle

from dml.exec.desk import written
from dml.exec.hub import Hub
from dml.exec.job import Job
from dml.exec.references import flat
from dml.exec.seat import Freight, digest, freight, seated, staying
from dml.expr.origin import library_of

INSIDE = 256 << 10  # bytes of a job that travels inside a task


class Cargo:
    """The job of one run, written once; used on the client's loop."""

    def __init__(self, hub: Hub, run: str, job: Job) -> None:
        self.hub, self.run, self.job = hub, run, job
        self.generation, self.by_value = 0, False
        self.seats: dict[str, Any] = {}
        self.stays: dict[str, Any] = {}
        self.sent, self.buffers = written(job)
        self._apart: Any = None  # where a large job lies
        self._lock = asyncio.Lock()

    async def ship(self) -> None:
        """Send a large job to a worker."""
        size = len(self.sent) + sum(each.raw().nbytes for each in self.buffers)
        if size > INSIDE:
            load = Freight(self.run, self.sent, tuple(self.buffers))
            client, direct = self.hub.client, self.hub.direct
            there = list(self.hub.members) or None
            self._apart = await client.scatter(load, workers=there, direct=direct, hash=False)

    def seat(self, place: str) -> Any:
        """The seat on a worker; its future."""
        if place not in self.seats:
            load = (freight, self.run, self.sent, *map(flat, self.buffers))
            self.seats[place] = self.hub.submit(
                *((seated, self._apart) if self._apart is not None else load),
                key=("dml-seat", self.run, self.generation, place),
                workers=[place],
                allow_other_workers=True,
            )
        return self.seats[place]

    def stay(self, place: str) -> None:
        """Keep the job on a worker, with what is parked there.

        Of a seat that was carried elsewhere with a task Dask gives up either copy after a while, of
        what no task works on there is none.
        """
        if place not in self.stays:
            key = ("dml-stay", self.run, self.generation, place)
            self.stays[place] = self.hub.submit(staying, self.seat(place), key=key, workers=[place])

    def left(self, place: str) -> None:
        """A worker is gone, or is done without."""
        self.seats.pop(place, None)
        self.stays.pop(place, None)

    def lies_in(self, keys: Set[Any]) -> bool:
        """True if a large job is one of ``keys``."""
        return self._apart is not None and self._apart.key in keys

    async def again(self, generation: int, *, refused: bytes = b"") -> bool:
        """Send the job of ``generation`` anew, once; False if that has been tried in vain.

        By value, if a worker could not open the one with the digest ``refused``; but not if another
        is sent since: Dask does old tasks again, when it has lost what they made.
        """
        async with self._lock:
            if self.generation != generation or refused not in {b"", digest(self.sent)}:
                return True
            if refused and self.by_value:
                return False
            self.generation += 1
            self.seats.clear()
            if refused:
                self.by_value = True
                self.stays.clear()
                self.sent, self.buffers = written_by_value(self.job)
            await self.ship()
            return True

    def drop(self) -> None:
        """Let go of all of it."""
        self.seats.clear()
        self.stays.clear()
        self._apart = None


def written_by_value(job: Job) -> tuple[bytes, list[Any]]:
    """As ``written``, with whatever it takes from modules of the user's own inside."""
    before = cloudpickle.list_registry_pickle_by_value()
    own = [module for name, module in list(sys.modules.items()) if _own(name, module)]
    added = [module for module in own if module.__name__ not in before]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        return written(job)
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _own(name: str, module: object) -> bool:
    """True for a module that is no library's, by the name under which it was imported."""
    if not isinstance(module, ModuleType) or module.__name__ != name or name == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(".py") and library_of(name) is None
