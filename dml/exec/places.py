"""This file places slices on workers: on the one that knows most of them and has room."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from dml.errors import PlanError, WorkerLostError
from dml.exec.cluster import CPU, DASK_GPU, GPU, Member, totals
from dml.exec.core import Core
from dml.exec.messages import Run
from dml.exec.policy import EPSILON, Demand

TASK_S = 0.2  # what a task should last, so that its overhead does not count
MOST_SLICES = 16  # of one task
SMOOTHING = 0.2  # weight of the newest duration


def refuse(
    demands: Sequence[Demand], members: Mapping[str, Member], where: Sequence[str] = ()
) -> None:
    """Raise PlanError for a stage whose task fits on no worker; ``where`` each was written.

    Processors are counted by host, everything else by worker, as Dask does.
    """
    number = next(unmet(demands, members), None)
    if number is not None:
        demand = demands[number]
        raise PlanError(
            f"stage {demand.name!r} needs {_asked(demand)}, which no worker offers",
            at=where[number] if number < len(where) else "",
            why="; ".join(sorted({each.shown for each in members.values()})[:20]),
            try_=f"less for the stage, or a worker that has it: {_command(demand)}",
        )


def unmet(demands: Sequence[Demand], members: Mapping[str, Member]) -> Iterator[int]:
    """The numbers of stages whose task fits on no worker."""
    cores: dict[str, float] = {}
    for each in members.values():
        cores[each.host] = cores.get(each.host, 0.0) + each.threads
    for number, demand in enumerate(demands):
        asked = dict(demand.resources)
        if not any(_fits(each, asked, cores) for each in members.values()):
            yield number


def unserved(core: Core, queued: Collection[Run], members: Mapping[str, Member]) -> Demand | None:
    """What something that waits to be done asks for, and no worker has."""
    waiting = {run.stage for run in queued}
    for number in unmet(core.demands, members):
        load = core.state.loads[number]
        if load.ready or load.parked or number in waiting:
            return core.demands[number]
    return None


def nobody_has(demand: Demand, members: Mapping[str, Member], wait_s: float) -> WorkerLostError:
    """The error for what a stage asks for and no worker has had for so long."""
    return WorkerLostError(
        f"no worker offers {_asked(demand)} any more",
        at=f"stage {demand.name!r}",
        why=f"none that does came within {wait_s:g} s; there are"
        f" {'; '.join(sorted({each.shown for each in members.values()})[:20])}",
        try_=f"{_command(demand)}; a larger worker_wait_s=, and go on from the state",
    )


def _asked(demand: Demand) -> str:
    return ", ".join(f"{key}={amount:g}" for key, amount in demand.resources)


def _command(demand: Demand) -> str:
    label = f' --resources "{DASK_GPU}=1"' if GPU in dict(demand.resources) else ""
    return f"dask worker ADDRESS{label}"


def _fits(member: Member, asked: Mapping[str, float], cores: Mapping[str, float]) -> bool:
    if asked.get(CPU, 0.0) > cores[member.host] + EPSILON:
        return False
    return all(
        member.resources.get(key, 0.0) >= amount - EPSILON
        for key, amount in asked.items()
        if key != CPU
    )


class Places:
    """Who has how much to do; the lock of the crew guards it.

    A worker may have ``depth`` slices for each of its threads, and for half as many threads more,
    at least ``spare``, which wait there: a worker that ends a task would else be idle until the
    next one comes, and until what that works on has been carried there. None waits if ``spare`` is
    0. Of each resource, which Dask itself gives to no more tasks at once than it reaches for, one
    more may wait.

    Of ``most`` threads in all, workers without resources give theirs first. Workers that are
    ``leaving`` end what they have begun, and get nothing else.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        most: float | None,
        spare: int,
        demands: Sequence[Demand] = (),
        leaving: Collection[str] = (),
    ) -> None:
        self.most, self.spare, self.leaving, self.depth = most, spare, leaving, 1
        self.waiting: dict[str, float] = {}  # of each resource, for the slice that waits
        for name, amount in (pair for demand in demands for pair in demand.resources):
            if spare and name != CPU:
                self.waiting[name] = max(amount, self.waiting.get(name, 0.0))
        self.seconds = [0.0] * len(demands)  # of a slice, by stage
        self.alike = {name for demand in demands for name, _ in demand.resources} == {CPU}
        self.busy: dict[str, dict[str, float]] = {}
        self.apart: dict[str, bool] = {}  # workers with one slice for them alone; or soon, if False
        self.members: dict[str, Member] = {}
        self.threads: dict[str, float] = {}
        self.welcome(members)

    def welcome(self, members: Mapping[str, Member], *, others: bool = False) -> None:
        """These are the workers now; the cluster may have ``others``, which are given nothing."""
        self.members, self.others = dict(members), others
        left = math.inf if self.most is None else self.most
        for address, each in sorted(members.items(), key=self._later):
            self.threads[address] = min(each.threads, left)
            left -= self.threads[address]
        for gone in (self.threads.keys() | self.busy.keys()) - members.keys():
            self.threads.pop(gone, None)
            self.busy.pop(gone, None)
            self.apart.pop(gone, None)

    def _later(self, member: tuple[str, Member]) -> tuple[bool, bool]:
        """What sorts workers behind others when the threads of a run are given out."""
        return member[0] in self.leaving, bool(member[1].resources)

    @property
    def taking(self) -> dict[str, Member]:
        """Those that are given work."""
        return {a: each for a, each in self.members.items() if a not in self.leaving}

    def slots(self) -> dict[str, float]:
        """What the core may give out."""
        taking = self.taking
        found = totals(taking)
        found[CPU] = sum(map(self._most, taking))
        for name, amount in self.waiting.items():
            holders = sum(name in each.resources for each in taking.values())
            found[name] = found.get(name, 0.0) + amount * holders
        return found

    def _most(self, address: str) -> float:
        """Slices at once; none waits for a thread, or follows another, where others use some."""
        threads = self.threads[address]
        return threads if self._shared(address) else (threads + self._spare(address)) * self.depth

    def _spare(self, address: str) -> float:
        """Slices that may wait at a worker, for each that a task has."""
        return max(self.spare, self.threads[address] // 2) if self.spare else 0

    def _shared(self, address: str) -> bool:
        """True if some threads of a worker are not for this run."""
        return self.threads[address] < self.members[address].threads

    @property
    def full(self) -> float:
        """Tasks that keep every thread busy."""
        taking = [address for address in self.taking if self.threads[address]]
        return sum(self.threads[each] + self._spare(each) for each in taking)

    def room(self, address: str) -> float:
        """Slices that a worker may take on top of those it has; negative if it has too many."""
        return self._most(address) - self.busy.get(address, {}).get(CPU, 0.0)

    def choose(
        self, demand: Demand, liked: Sequence[str], without: Collection[str] = ()
    ) -> str | None:
        """The worker for a slice, of those that have what it asks for; none of ``without``.

        One that is idle before one where it would wait, one without resources of its own before
        one that others may need, then the first of ``liked``, then who has the most room.
        """
        asked = dict(demand.resources)
        without = {*without, *self.apart}
        able = [a for a, m in self.taking.items() if a not in without and _able(m, asked)]
        if not able:
            return None
        return max(able, key=lambda address: self._merit(address, asked, liked))

    def look_again(self) -> None:
        """Nobody waits for a worker of its own, until that is asked for again."""
        self.apart = {address: True for address, there in self.apart.items() if there}

    def alone(self, demand: Demand) -> str | None:
        """A worker that has nothing to do, and will have nothing else until the slice has left.

        None while all have something to do; then the one with the least gets nothing more. One
        without threads for this run is asked only if no other can do it.
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
        """Where Dask may do it instead of at ``place``, as it likes; [] for everywhere.

        Not where it lacks a resource: a worker without it would die of the task. And nowhere else,
        if some threads are not for this run.
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
        """Slices for a worker, as tasks of several."""
        threads = max(1, self.members[address].threads)
        each = max(1, min(self.depth, -(-len(runs) // threads)))
        return [runs[i : i + each] for i in range(0, len(runs), each)]

    def lasted(self, stage: int, seconds: float) -> None:
        """A slice of ``stage`` took so long."""
        mean = self.seconds[stage]
        self.seconds[stage] = mean + SMOOTHING * (seconds - mean) if mean else seconds

    def deepened(self) -> bool:
        """Have as many slices in a task as last long enough; True if that is another number.

        Only where all stages ask for processors alone.
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
        """A slice goes to ``address``."""
        busy = self.busy.setdefault(address, {})
        for key, amount in demand.resources:
            busy[key] = busy.get(key, 0.0) + amount

    def leave(self, address: str, demand: Demand, slices: int = 1) -> None:
        """Slices that went to ``address`` have ended, wherever they were done."""
        busy = self.busy.get(address, {})
        if self.apart.get(address):
            del self.apart[address]
        for key, amount in demand.resources:
            busy[key] = max(0.0, busy.get(key, 0.0) - amount * slices)


def _able(member: Member, asked: Mapping[str, float]) -> bool:
    return all(
        member.resources.get(key, 0.0) >= amount - EPSILON
        for key, amount in asked.items()
        if key != CPU
    )
