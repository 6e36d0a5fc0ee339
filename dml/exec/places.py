"""This file places slices on workers: on the one that knows most of them and has room."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dml.errors import PlanError
from dml.exec.cluster import CPU, DASK_GPU, GPU, Member, totals
from dml.exec.policy import EPSILON, Demand


def refuse(
    demands: Sequence[Demand], members: Mapping[str, Member], where: Sequence[str] = ()
) -> None:
    """Raise PlanError for a stage whose task fits on no worker; ``where`` each was written.

    Processors are counted by host, everything else by worker, as Dask does.
    """
    cores: dict[str, float] = {}
    for each in members.values():
        cores[each.host] = cores.get(each.host, 0.0) + each.threads
    for number, demand in enumerate(demands):
        asked = dict(demand.resources)
        if any(_fits(each, asked, cores) for each in members.values()):
            continue
        wanted = ", ".join(f"{key}={amount:g}" for key, amount in asked.items())
        label = f' --resources "{DASK_GPU}=1"' if GPU in asked else ""
        raise PlanError(
            f"stage {demand.name!r} needs {wanted}, which no worker offers",
            at=where[number] if number < len(where) else "",
            why="; ".join(sorted({each.shown for each in members.values()})[:20]),
            try_=f"less for the stage, or a worker that has it: dask worker ADDRESS{label}",
        )


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

    A worker may have ``depth`` slices for each of its threads, and for ``spare`` threads more,
    which wait there: a worker that ends a task would else be idle until the next one comes.
    """

    leaving: Collection[str] = ()  # those that end what they have begun, and get nothing else

    def __init__(self, members: Mapping[str, Member], most: float | None, spare: int) -> None:
        self.members, self.most, self.spare = dict(members), most, spare
        self.depth = 1
        self.busy: dict[str, dict[str, float]] = {}

    @property
    def taking(self) -> dict[str, Member]:
        """Those that are given work."""
        return {a: each for a, each in self.members.items() if a not in self.leaving}

    def slots(self) -> dict[str, float]:
        """What the core may give out."""
        found = totals(self.taking)
        threads = found[CPU] if self.most is None else min(found[CPU], self.most)
        waiting = self.spare * len(self.taking) if self.most is None else 0
        found[CPU] = (threads + waiting) * self.depth
        return found

    @property
    def full(self) -> int:
        """Tasks that keep every thread busy."""
        return sum(each.threads + self.spare for each in self.taking.values())

    def room(self, address: str) -> float:
        """Slices that a worker may take on top of those it has; negative if it has too many."""
        threads = self.members[address].threads
        return (threads + self.spare) * self.depth - self.busy.get(address, {}).get(CPU, 0.0)

    def choose(self, demand: Demand, liked: Sequence[str]) -> str | None:
        """The worker for a slice: the first of ``liked`` that has room, or who has the most."""
        asked = dict(demand.resources)
        able = [a for a, each in self.taking.items() if _able(each, asked)]
        if not able:
            return None
        return max(able, key=lambda address: self._merit(address, asked, liked))

    def _merit(
        self, address: str, asked: Mapping[str, float], liked: Sequence[str]
    ) -> tuple[float, ...]:
        member, busy = self.members[address], self.busy.get(address, {})
        free = all(
            member.resources[key] - busy.get(key, 0.0) >= amount - EPSILON
            for key, amount in asked.items()
            if key != CPU
        )
        room = self.room(address)
        fond = len(liked) - liked.index(address) if address in liked else 0
        enough = room >= min(1.0, asked.get(CPU, 0.0)) - EPSILON
        return (free, enough, fond, room / member.threads)

    def take(self, address: str, demand: Demand) -> None:
        """A slice goes to ``address``."""
        busy = self.busy.setdefault(address, {})
        for key, amount in demand.resources:
            busy[key] = busy.get(key, 0.0) + amount

    def leave(self, address: str, demand: Demand) -> None:
        """A slice that went to ``address`` has ended, wherever it was done."""
        busy = self.busy.get(address, {})
        for key, amount in demand.resources:
            busy[key] = max(0.0, busy.get(key, 0.0) - amount)


def _able(member: Member, asked: Mapping[str, float]) -> bool:
    return all(
        member.resources.get(key, 0.0) >= amount - EPSILON
        for key, amount in asked.items()
        if key != CPU
    )
