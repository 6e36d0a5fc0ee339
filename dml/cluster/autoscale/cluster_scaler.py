"""Scale a Dask cluster object: add workers, and remove workers without losing results.

A worker that is to leave gets no new task and finishes those that it has. Then Dask moves its
results to other workers, and closes it, so that every result made there is still delivered once.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from dml.cluster.cluster import ClusterWorker, workers_of
from dml.cluster.dask_crew import DaskCrew
from dml.cluster.placement import refuse
from dml.cluster.worker_monitor import Hub
from dml.errors import PlanError
from dml.exec.scheduler.policy import EPSILON
from dml.settings import not_scaled, scales

LOOK_S = 0.05  # seconds between two polls of workers that come or go
PARKED_S = 2.0  # seconds to wait until parked generators on leaving workers are continued


class Staff:
    """A cluster object that can be scaled; one run at a time scales it, other runs use its workers.

    A change is a coroutine on the client's event loop; ``changing`` is True until the change is
    done. Workers that the cluster object did not start count as workers, but are never removed.
    """

    def __init__(self, cluster: Any, hub: Hub) -> None:
        self.cluster, self.hub = weakref.ref(cluster), hub
        self.changing = False
        self.owner: weakref.ref[Any] | None = None
        self.error: Exception | None = None

    @staticmethod
    def of(hub: Hub) -> Staff:
        """Return the ``Staff`` of the client's cluster object; raise PlanError if there is none."""
        cluster = scales(hub.client)
        if cluster is None:
            raise not_scaled(f"{hub.client!r} knows a scheduler, and nothing that starts workers")
        staff = hub.staff
        if not isinstance(staff, Staff) or staff.cluster() is not cluster:
            staff = hub.staff = Staff(cluster, hub)
        return staff

    def claim(self, run: Any) -> bool:
        """Return True if ``run`` may scale the cluster: no other active run has claimed it."""
        owner = None if self.owner is None else self.owner()
        if owner is not None and owner is not run and owner.going:
            return False
        self.owner = weakref.ref(run)
        return True

    def least(self, workers: int) -> None:
        """Request at least ``workers`` workers before a run, on any thread but the event loop's."""
        jobs = self._jobs()
        try:
            there = len(workers_of(self.hub.client) if jobs is None else jobs)
            if there < workers and not self.changing:
                self._scale(workers)
        except Exception as error:  # noqa: BLE001 (whatever a cluster raises; some may be there)
            self.error = error

    @property
    def count(self) -> int:
        """The number of connected workers, without those that are leaving."""
        return len(self.hub.members.keys() - self.hub.leaving)

    @property
    def threads(self) -> float:
        """The mean number of threads of a worker."""
        every = self.hub.members.values()
        return sum(each.threads for each in every) / max(1, len(every))

    def follow(self, workers: int, crews: Sequence[DaskCrew], patience_s: float) -> None:
        """Begin to scale to ``workers`` workers, and return at once; for any thread.

        ``crews`` are those of the run. New workers are awaited for ``patience_s`` seconds.
        """
        self.changing, self.error = True, None
        self.hub.call(lambda: self.hub.asking(self._follow(workers, crews, patience_s)))

    async def _follow(self, workers: int, crews: Sequence[DaskCrew], patience_s: float) -> None:
        try:
            if workers > self.count:
                await self._grow(workers, patience_s)
            else:
                await self._shrink(self.count - workers, crews)
        except Exception as error:  # noqa: BLE001 (whatever a cluster raises; the run goes on)
            self.error = error
        finally:
            self.changing = False

    def _scale(self, own: int) -> None:
        cluster = self.cluster()
        if cluster is not None:
            cluster.scale(own)

    async def _grow(self, workers: int, patience_s: float) -> None:
        others = self.count - len(self._own())
        # also count absent workers, or Dask would close some, whatever they do and hold
        least = len(self._jobs() or ())
        await asyncio.to_thread(self._scale, max(workers - others, least))
        deadline = time.monotonic() + patience_s
        while self.count < workers and time.monotonic() < deadline and self._watched:
            await asyncio.sleep(LOOK_S)

    @property
    def _watched(self) -> bool:
        """True while some run is active, so that changes of the workers are noticed."""
        return bool(self.hub.crews) and not self.hub.closed

    # ------------------------------------------------------------------------------------- leaving

    async def _shrink(self, number: int, crews: Sequence[DaskCrew]) -> None:
        hub, own = self.hub, self._own()
        staying = {a: m for a, m in hub.members.items() if a not in hub.leaving}
        groups = grouped(own, lambda address: _laden(crews, address))
        leaving = leavers(groups, staying, number, lambda left: _enough(crews, left))
        hub.leaving |= leaving
        try:
            self._tell()
            if leaving and await self._drained(leaving, crews):
                await self._retire({address: own[address] for address in leaving})
        finally:
            hub.leaving -= leaving
            self._tell()

    def _tell(self) -> None:
        """Let all runs of the client update the set of workers that get tasks."""
        for crew in list(self.hub.crews):
            crew.joined(set())

    async def _drained(self, leaving: Collection[str], crews: Sequence[DaskCrew]) -> bool:
        """Wait until the ``leaving`` workers run no task; return False if the run ended first."""
        worked = time.monotonic()
        while any(_busy(crew, leaving, parked=True) for crew in self._crews()):
            if not any(crew in self.hub.crews for crew in crews) or self.hub.closed:
                return False
            if any(_busy(crew, leaving, parked=False) for crew in self._crews()):
                worked = time.monotonic()
            elif time.monotonic() > worked + PARKED_S:
                break  # the trainer has enough for now: parked generators restart elsewhere
            await asyncio.sleep(LOOK_S)
        return await self._quiet(leaving)

    async def _quiet(self, leaving: Collection[str]) -> bool:
        """Wait until the ``leaving`` workers have no task in Dask either: idle ones steal tasks.

        Return False if all runs ended before that.
        """
        while self._watched:
            doing = await self.hub.client.scheduler.processing()
            if not any(doing.get(address) for address in leaving):
                return True
            await asyncio.sleep(LOOK_S)
        return False

    def _crews(self) -> list[DaskCrew]:
        return [crew for crew in self.hub.crews if isinstance(crew, DaskCrew)]

    async def _retire(self, leaving: Mapping[str, Any]) -> None:
        """Let Dask move the results of ``leaving`` workers, and close those that became empty.

        ``leaving`` maps the address of each worker to the name of the job that started it.
        """
        scheduler, cluster = self.hub.client.scheduler, self.cluster()
        for crew in self._crews():
            for address in leaving:  # an unused seat would be moved with all other data
                crew.cargo.left(address)
        jobs, own = self._jobs(), len(self._own())
        gone = await scheduler.retire_workers(workers=[*leaving], close_workers=True)
        names = {leaving[address] for address in leaving if address in gone}
        if cluster is None or not names:
            return
        if jobs is not None:  # a SpecCluster, which takes names
            await asyncio.to_thread(cluster.sync, cluster.scale_down, names)
        else:  # the cluster finds out by itself which workers are gone
            await asyncio.to_thread(self._scale, own - len(gone))
        while gone.keys() & self.hub.members.keys() and self._watched:
            await asyncio.sleep(LOOK_S)

    def _own(self) -> dict[str, Any]:
        """Return the job's name of each worker that the cluster object started, by address.

        A job is one process or a group of workers, which start and stop together.
        """
        jobs, members = self._jobs(), self.hub.members
        if jobs is None:
            return {address: address for address in members}
        return {a: jobs[each.name] for a, each in members.items() if each.name in jobs}

    def _jobs(self) -> dict[str, Any] | None:
        """Return the job's name of each requested worker, by worker name; None if unknown."""
        spec = getattr(self.cluster(), "worker_spec", None)
        if spec is None:
            return None
        return {
            f"{name}{suffix}": name
            for name, each in dict(spec).items()
            for suffix in each.get("group", ("",))
        }


def grouped(own: Mapping[str, Any], laden: Callable[[str], float]) -> list[list[str]]:
    """Return groups of workers that share a job (``own``, by address), least ``laden`` first."""
    groups: dict[Any, list[str]] = {}
    for address, job in own.items():
        groups.setdefault(job, []).append(address)
    return sorted(groups.values(), key=lambda group: sum(map(laden, group)))


def leavers(
    groups: Iterable[Sequence[str]],
    members: Mapping[str, ClusterWorker],
    number: int,
    enough: Callable[[Mapping[str, ClusterWorker]], bool],
) -> set[str]:
    """Return up to ``number`` workers to remove: whole groups, the first ones that can be removed.

    ``enough`` returns True if the remaining workers suffice.
    """
    leaving: set[str] = set()
    for group in groups:
        wish = leaving | set(group)
        left = {address: each for address, each in members.items() if address not in wish}
        if len(wish) <= number and left and enough(left):
            leaving = wish
    return leaving


def _enough(crews: Iterable[DaskCrew], left: Mapping[str, ClusterWorker]) -> bool:
    """Return True if every stage of the runs fits on some worker among ``left``."""
    try:
        for crew in crews:
            refuse(crew.loop.core.demands, left)
    except PlanError:
        return False
    return True


def _laden(crews: Iterable[DaskCrew], address: str) -> float:
    """Return the number of tasks, results and parked generators on worker ``address``."""
    held = sum(ticket.worker == address for crew in crews for ticket in list(crew.live))
    parked = sum(home == address for crew in crews for home in list(crew.homes.values()))
    return held + parked


def _busy(crew: DaskCrew, leaving: Collection[str], *, parked: bool) -> bool:
    """Return True if a run has tasks or, with ``parked``, parked generators on leaving workers."""
    with crew.lock:
        doing = any(sum(crew.places.busy.get(each, {}).values()) > EPSILON for each in leaving)
        doing |= any(ticket.place in leaving for ticket in crew.tickets.values())
        return doing or (parked and any(home in leaving for home in crew.homes.values()))
