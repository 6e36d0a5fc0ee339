"""Choose the workers of slices by their free capacity, and by the data that they hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from dml.cluster.cluster import CPU, DASK_GPU, GPU, ClusterWorker, totals
from dml.errors import PlanError, WorkerLostError
from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.policy import EPSILON, Demand

TASK_S = 0.2  # seconds of a task whose overhead is negligible
MOST_SLICES = 16  # most slices of one task
SMOOTHING = 0.2  # weight of the newest duration


def refuse(
    demands: Sequence[Demand], members: Mapping[str, ClusterWorker], where: Sequence[str] = ()
) -> None:
    """Raise PlanError for a stage whose task fits on no worker.

    As in Dask, resources count by worker, processors by host; ``where`` has each stage's code line.
    """
    number = next(unmet(demands, members), None)
    if number is not None:
        demand = demands[number]
        raise PlanError(
            f"stage {demand.name!r} needs {_describe_demand(demand)}, which no worker offers",
            at=where[number] if number < len(where) else "",
            why="; ".join(sorted({each.resources_text for each in members.values()})[:20]),
            try_=f"less for the stage, or a worker that has it: {_command(demand)}",
        )


def unmet(demands: Sequence[Demand], members: Mapping[str, ClusterWorker]) -> Iterator[int]:
    """Yield the numbers of the stages whose task fits on no worker."""
    cores: dict[str, float] = {}
    for each in members.values():
        cores[each.host] = cores.get(each.host, 0.0) + each.threads
    for number, demand in enumerate(demands):
        asked = dict(demand.resources)
        if not any(_fits(each, asked, cores) for each in members.values()):
            yield number


def unserved(
    core: Core, queued: Collection[Run], members: Mapping[str, ClusterWorker]
) -> Demand | None:
    """Return the demand of a waiting stage whose resources no worker has, or None."""
    waiting = {run.stage for run in queued}
    for number in unmet(core.demands, members):
        load = core.state.loads[number]
        if load.ready or load.parked or number in waiting:
            return core.demands[number]
    return None


def nobody_has(
    demand: Demand, members: Mapping[str, ClusterWorker], wait_s: float
) -> WorkerLostError:
    """Return the error for a demand that no worker has met for ``wait_s`` seconds."""
    return WorkerLostError(
        f"no worker offers {_describe_demand(demand)} any more",
        at=f"stage {demand.name!r}",
        why=f"none that does came within {wait_s:g} s; there are"
        f" {'; '.join(sorted({each.resources_text for each in members.values()})[:20])}",
        try_=f"{_command(demand)}; a larger worker_wait_s=, and go on from the state",
    )


def _describe_demand(demand: Demand) -> str:
    return ", ".join(f"{key}={amount:g}" for key, amount in demand.resources)


def _command(demand: Demand) -> str:
    label = f' --resources "{DASK_GPU}=1"' if GPU in dict(demand.resources) else ""
    return f"dask worker ADDRESS{label}"


def _fits(member: ClusterWorker, asked: Mapping[str, float], cores: Mapping[str, float]) -> bool:
    return asked.get(CPU, 0.0) <= cores[member.host] + EPSILON and _able(member, asked)


class Places:
    """The load of each worker in slices and resources; guarded by the lock of the crew.

    Besides the slices that run, some wait at a worker, so that it is not idle until its next task
    and input arrive. Tasks have up to ``depth`` slices. A worker may have one task for each of its
    threads, and some that wait: half as many as threads, at least ``spare``, none if ``spare`` is
    0. Of a resource other than processors, which Dask itself limits, one more slice may wait.

    Only ``most`` threads in all are used; workers with resources get their share of these last.
    Workers that are ``leaving`` end their tasks, and get no others.
    """

    def __init__(
        self,
        members: Mapping[str, ClusterWorker],
        most: float | None,
        spare: int,
        demands: Sequence[Demand] = (),
        leaving: Collection[str] = (),
    ) -> None:
        self.most, self.spare, self.leaving, self.depth = most, spare, leaving, 1
        self.waiting: dict[str, float] = {}  # of each resource, for one waiting slice
        for name, amount in (pair for demand in demands for pair in demand.resources):
            if spare and name != CPU:
                self.waiting[name] = max(amount, self.waiting.get(name, 0.0))
        self.seconds = [0.0] * len(demands)  # mean seconds of a slice, by stage
        self.alike = {name for demand in demands for name, _ in demand.resources} == {CPU}
        self.busy: dict[str, dict[str, float]] = {}
        self.apart: dict[str, bool] = {}  # workers reserved for one slice; draining if False
        self.members: dict[str, ClusterWorker] = {}
        self.threads: dict[str, float] = {}
        self.welcome(members)

    def welcome(self, members: Mapping[str, ClusterWorker], *, others: bool = False) -> None:
        """Set the current workers; if ``others``, the cluster has more, which get no work."""
        self.members, self.others = dict(members), others
        left = math.inf if self.most is None else self.most
        for address, each in sorted(members.items(), key=self._later):
            self.threads[address] = min(each.threads, left)
            left -= self.threads[address]
        for gone in (self.threads.keys() | self.busy.keys()) - members.keys():
            self.threads.pop(gone, None)
            self.busy.pop(gone, None)
            self.apart.pop(gone, None)

    def _later(self, member: tuple[str, ClusterWorker]) -> tuple[bool, bool]:
        """Return a sort key: workers with a larger key get the threads of a run later."""
        return member[0] in self.leaving, bool(member[1].resources)

    @property
    def taking(self) -> dict[str, ClusterWorker]:
        """The workers that get work, by address."""
        return {a: each for a, each in self.members.items() if a not in self.leaving}

    def slots(self) -> dict[str, float]:
        """Return the amount of each resource that the scheduling core may hand out."""
        taking = self.taking
        found = totals(taking)
        found[CPU] = sum(map(self._most, taking))
        for name, amount in self.waiting.items():
            holders = sum(name in each.resources for each in taking.values())
            found[name] = found.get(name, 0.0) + amount * holders
        return found

    def _most(self, address: str) -> float:
        """Return the most slices of a worker at once; none waits if other runs use the worker."""
        threads = self.threads[address]
        return threads if self._shared(address) else (threads + self._spare(address)) * self.depth

    def _spare(self, address: str) -> float:
        """Return how many tasks may wait at a worker; each has up to ``depth`` slices."""
        return max(self.spare, self.threads[address] // 2) if self.spare else 0

    def _shared(self, address: str) -> bool:
        """Return True if this run does not use all threads of a worker."""
        return self.threads[address] < self.members[address].threads

    @property
    def full(self) -> float:
        """The number of tasks at which all threads are busy and no more tasks may wait."""
        taking = [address for address in self.taking if self.threads[address]]
        return sum(self.threads[each] + self._spare(each) for each in taking)

    def room(self, address: str) -> float:
        """Return how many more slices a worker may take; negative if it has too many."""
        return self._most(address) - self.busy.get(address, {}).get(CPU, 0.0)

    def choose(
        self, demand: Demand, liked: Sequence[str], without: Collection[str] = ()
    ) -> str | None:
        """Return a worker with the resources of ``demand``, not in ``without``; None if none has.

        Workers are preferred in this order: with free resources, idle, with room, without resources
        that other slices may need, the first of ``liked``, with the most room.
        """
        asked = dict(demand.resources)
        without = {*without, *self.apart}
        able = [a for a, m in self.taking.items() if a not in without and _able(m, asked)]
        if not able:
            return None
        return max(able, key=lambda address: self._merit(address, asked, liked))

    def look_again(self) -> None:
        """Drop the reservations of workers that were still busy when they were reserved."""
        self.apart = {address: True for address, there in self.apart.items() if there}

    def alone(self, demand: Demand) -> str | None:
        """Return an idle worker, which is then reserved for one slice until that slice has ended.

        If all workers are busy, return None, and give no more slices to the one with the least
        work. A worker without threads for this run is used only if no other has the resources.
        """
        asked = dict(demand.resources)
        able = [a for a, m in self.taking.items() if _able(m, asked)]
        able = [a for a in able if self.threads[a]] or able
        able = [a for a in able if a not in self.apart]
        if not able:
            return None
        found = min(able, key=lambda a: (self._work(a), len(self.members[a].resources), a))
        self.apart[found] = self._work(found) <= EPSILON
        return found if self.apart[found] else None

    def _work(self, address: str) -> float:
        return sum(self.busy.get(address, {}).values())

    def allowed(self, demand: Demand, place: str) -> list[str]:
        """Return the workers to which Dask may move a slice from ``place``; [] for all workers.

        Workers without a resource are excluded, since the task would fail there. If this run does
        not use all threads of ``place``, the slice stays there.
        """
        asked = dict(demand.resources)
        taking = self.taking
        if asked.keys() <= {CPU}:
            found = [a for a in taking if not self._shared(a)]
        else:
            found = [a for a, each in taking.items() if _able(each, asked)]
        if place not in found:
            return [place]
        return found if self.others or len(found) < len(self.members) else []

    def _merit(
        self, address: str, asked: Mapping[str, float], liked: Sequence[str]
    ) -> tuple[float, ...]:
        member, busy = self.members[address], self.busy.get(address, {})
        custom = {key: n for key, n in asked.items() if key != CPU}
        left = [member.resources[key] - busy.get(key, 0.0) - n for key, n in custom.items()]
        lack = min([0.0, *(each for each in left if each < -EPSILON)])
        room, least = self.room(address), min(1.0, asked.get(CPU, 0.0)) - EPSILON
        waits = 0 if self._shared(address) else self._spare(address) * self.depth
        idle = room - waits >= least
        plain = custom.keys() == member.resources.keys()
        fond = len(liked) - liked.index(address) if address in liked else 0
        return (lack, idle, room >= least, plain, fond, room / member.threads)

    def bundles(self, address: str, runs: list[Run]) -> list[list[Run]]:
        """Divide slices for a worker into tasks of up to ``depth`` slices."""
        threads = max(1, self.members[address].threads)
        each = max(1, min(self.depth, -(-len(runs) // threads)))
        return [runs[i : i + each] for i in range(0, len(runs), each)]

    def lasted(self, stage: int, seconds: float) -> None:
        """Update the mean seconds of slices of ``stage`` by one that took ``seconds``."""
        mean = self.seconds[stage]
        self.seconds[stage] = mean + SMOOTHING * (seconds - mean) if mean else seconds

    def deepened(self) -> bool:
        """Adapt ``depth`` so that a task takes about ``TASK_S`` seconds; return True if it changes.

        It stays the same if some stage needs more than processors.
        """
        slowest = max(self.seconds, default=0.0)
        if not slowest or not self.alike:
            return False
        wanted = max(1, min(MOST_SLICES, int(TASK_S / slowest)))
        if self.depth / 1.5 <= wanted <= 1.5 * self.depth:
            return False
        self.depth = wanted
        return True

    def take(self, address: str, demand: Demand) -> None:
        """Count a slice that is submitted to the worker ``address``."""
        busy = self.busy.setdefault(address, {})
        for key, amount in demand.resources:
            busy[key] = busy.get(key, 0.0) + amount

    def leave(self, address: str, demand: Demand, slices: int = 1) -> None:
        """Subtract slices that were submitted to ``address`` and have ended, on any worker."""
        busy = self.busy.get(address, {})
        if self.apart.get(address):
            del self.apart[address]
        for key, amount in demand.resources:
            busy[key] = max(0.0, busy.get(key, 0.0) - amount * slices)


def _able(member: ClusterWorker, asked: Mapping[str, float]) -> bool:
    return all(
        member.resources.get(key, 0.0) >= amount - EPSILON
        for key, amount in asked.items()
        if key != CPU
    )
