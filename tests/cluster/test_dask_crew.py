"""Test the crew of a Dask cluster without a cluster, by inspecting its submissions."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import distributed
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.cluster.cluster import member
from dml.cluster.dask_crew import MOST_LOSSES, DaskCrew, NoWorkerError
from dml.cluster.dask_task import Ticket
from dml.cluster.placement import Places
from dml.cluster.worker_monitor import Hub
from dml.cluster.worker_state import Shipment
from dml.errors import WorkerLostError
from dml.exec.delivery.meter import Tallies
from dml.exec.process.partition_codec import Parcel
from dml.exec.process.task_runner import Answer
from dml.exec.scheduler.messages import Consumed, Run
from dml.exec.scheduler.policy import Demand
from dml.exec.tasks.partition import ReadTask
from dml.exec.tasks.slices import DriverLoop, Failure, Outcome
from tests.exec.process.test_task_runner import job_of

MADE = Answer(Parcel(Outcome(None, 8, 1, done=True), b"", ()), b"", seconds=0.01)


class Crew(DaskCrew):
    """Each unit is a slice; tasks that would go to Dask are kept."""

    def __init__(self, units: int, workers: int = 2) -> None:
        job, demands = job_of(dml.range(units)), (Demand(),)
        members = {
            f"tcp://10.0.0.{n}:1": member("", {"nthreads": 1, "name": n}) for n in range(workers)
        }
        places = Places(members, None, 0, demands)
        places.depth = 4
        tasks = [ReadTask(n, n + 1) for n in range(units)]
        loop = DriverLoop.over(tasks, (), {"stages": demands, "slots": places.slots()}, slots=1)
        self.sent: list[Ticket] = []
        hub: Any = Hub(cast("Any", SimpleNamespace(id="none")))
        hub.call, hub.members = self.keep, members
        super().__init__(loop, job, Tallies(), hub, places)
        with self.lock:
            self.hand_out(loop.begin())

    def keep(self, _work: Any, ticket: Ticket) -> None:
        self.sent.append(ticket)
        self.tickets[ticket.number] = ticket

    def done(self, ticket: Ticket) -> None:
        answers = tuple(MADE for _ in ticket.runs)
        self._take(ticket.number, ticket.place, Shipment(answers), whole=True)


def test_a_second_attempt_that_waits_is_not_begun_once_the_first_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew = Crew(units=2)
    late: Run = crew.sent[0].runs[0]
    found = iter([late])
    monkeypatch.setattr(crew.race, "late", lambda _now, _fits: next(found, None))
    crew.tick()
    assert len(crew.sent) == 2, "all threads are busy: it waits"
    crew.done(crew.sent[0])
    assert crew.race.wanted(late)
    assert len(crew.sent) == 2
    crew.done(crew.sent[1])
    assert crew.loop.core.finished
    assert crew.broken is None
    assert not crew.queue


def test_a_second_attempt_never_waits_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did, where the other worker had more to do just then: nothing else would come of it."""
    crew = Crew(units=3)
    first = crew.sent[0]
    (other,) = crew.places.members.keys() - {first.place}
    for _ in range(8):
        crew.places.take(other, Demand())
    found = iter(first.runs[:1])
    monkeypatch.setattr(crew.race, "late", lambda _now, _fits: next(found, None))
    before = len(crew.sent)
    crew.places.depth = 1
    crew.flying = 0
    crew.tick()
    (second,) = crew.sent[before:]
    assert (second.place, second.runs, second.bound) == (other, first.runs[:1], [other])


def test_a_second_attempt_waits_for_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(units=1, workers=1)
    (ticket,) = crew.sent
    found = iter(ticket.runs)
    monkeypatch.setattr(crew.race, "late", lambda _now, _fits: next(found, None))
    crew.places.depth, crew.flying = 1, 0
    crew.tick()
    assert crew.queue == ticket.runs
    crew.hub.members["tcp://10.0.0.9:1"] = member("", {"nthreads": 1, "name": 9})
    crew.joined(set())
    assert [each.place for each in crew.sent[1:]] == ["tcp://10.0.0.9:1"]
    crew.done(crew.sent[1])
    assert crew.loop.core.finished


def test_a_lost_task_ends_also_if_nobody_can_say_what_it_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew = Crew(units=1)

    def unit_at(_place: int) -> None:
        raise FileNotFoundError("the file is gone")

    monkeypatch.setattr(crew.job.reading, "unit_at", unit_at)
    for losses in range(MOST_LOSSES + 1):
        assert len(crew.sent) == 1 + losses
        crew._failed(crew.sent[-1], NoWorkerError())
    found = crew.loop.stored[crew.loop.offers[0]]
    assert isinstance(found, Failure)
    assert isinstance(found.error, WorkerLostError)
    assert "gone" in found.error.at


@given(st.integers(1, 3), st.integers(1, 12), st.randoms(use_true_random=False))
def test_who_kills_workers_is_told_from_what_else_they_had(
    workers: int, units: int, draw: random.Random
) -> None:
    """Where it runs all else in hand is lost, too, and so is what was made just before."""
    crew, deadly = Crew(units, workers), draw.randrange(units)
    while not crew.loop.core.finished:
        place = draw.choice(sorted({ticket.place for ticket in crew.tickets.values()}))
        there = [each for each in crew.tickets.values() if each.place == place]
        if any((deadly,) in {run.seq for run in ticket.runs} for ticket in there):
            for ticket in there:
                crew._failed(ticket, NoWorkerError())
        else:
            crew.done(there[0])
        assert crew.broken is None
        while crew.loop.offers and crew.loop.offers[0][0] != deadly:
            crew.hand_out(crew.loop.take(Consumed(crew.loop.offers.popleft())))
    (last,) = crew.loop.offers
    assert isinstance(crew.loop.stored[last], Failure)


class Mortal:
    """A cluster where workers die of a unit, and others come; the crew hears of both later.

    What was sent to one that has gone and is not bound to it, Dask does wherever it likes.
    """

    def __init__(self, crew: Crew, deadly: int, draw: random.Random) -> None:
        self.crew, self.deadly, self.draw = crew, deadly, draw
        self.alive, self.places = set(crew.hub.members), dict[int, str]()
        self.fresh = (f"tcp://10.0.1.{n}:1" for n in range(200))
        crew.hub.crews.add(crew)

    def under_way(self) -> dict[str, list[Ticket]]:
        """Tickets by the worker that is at them; of bound ones, those whose worker is there."""
        found: dict[str, list[Ticket]] = {}
        for number, ticket in self.crew.tickets.items():
            place = self.places.get(number, ticket.place)
            if place not in self.alive and not ticket.bound:
                place = self.draw.choice(sorted(self.alive))
            self.places[number] = place
            if place in self.alive:
                found.setdefault(place, []).append(ticket)
        return found

    def step(self) -> None:
        hub, there = self.crew.hub, self.under_way()
        if not there or (self.alive != hub.members.keys() and self.draw.random() < 0.3):
            gone = hub.members.keys() - self.alive
            hub.members = {a: member("", {"nthreads": 1, "name": a}) for a in sorted(self.alive)}
            self.crew.joined(gone)
            return
        place = self.draw.choice(sorted(there))
        if all((self.deadly,) != run.seq for ticket in there[place] for run in ticket.runs):
            self.crew.done(there[place][0])
            return
        self.alive ^= {place, next(self.fresh)}
        killed = distributed.KilledWorker("a task", cast("Any", SimpleNamespace(address=place)), 0)
        for ticket in there[place]:
            self.crew._failed(ticket, killed)


@given(st.integers(2, 4), st.integers(2, 12), st.randoms(use_true_random=False))
def test_who_kills_workers_is_told_where_dask_tries_nothing_twice(
    workers: int, units: int, draw: random.Random
) -> None:
    crew, deadly = Crew(units, workers), draw.randrange(units)
    cluster = Mortal(crew, deadly, draw)
    while not crew.loop.core.finished:
        cluster.step()
        while crew.loop.offers and crew.loop.offers[0][0] != deadly:
            seq = crew.loop.offers.popleft()
            assert not isinstance(crew.loop.stored[seq], Failure), "workers died of another one"
            crew.hand_out(crew.loop.take(Consumed(seq)))
    (last,) = crew.loop.offers
    assert isinstance(crew.loop.stored[last], Failure)


def test_a_slice_that_was_lost_twice_has_a_worker_of_its_own() -> None:
    crew = Crew(units=6)
    for _ in range(2):
        place = crew.sent[-1].place
        for ticket in [each for each in crew.tickets.values() if each.place == place]:
            crew._failed(ticket, NoWorkerError())
    twice = {seq for seq, losses in crew.losing._losses.items() if losses == 2}
    assert twice
    while not crew.loop.core.finished:
        hands = [[run.seq for run in ticket.runs] for ticket in crew.tickets.values()]
        beside = Counter(ticket.place for ticket in crew.tickets.values())
        for ticket, seqs in zip(list(crew.tickets.values()), hands, strict=True):
            assert not twice & {*seqs} or beside[ticket.place] == len(seqs) == 1
        crew.done(next(iter(crew.tickets.values())))
        while crew.loop.offers:
            crew.hand_out(crew.loop.take(Consumed(crew.loop.offers.popleft())))


@pytest.mark.parametrize("full", [True, False])
def test_a_worker_whose_memory_is_full_ends_what_it_has_begun(full: bool) -> None:
    crew = Crew(units=2)
    ticket = crew.sent[0]
    ticket.bound = [ticket.place]
    del crew.hub.members[ticket.place]
    crew.hub.full |= {ticket.place} if full else set()
    crew.joined({ticket.place})
    assert (ticket.number in crew.tickets) == full
    crew.done(crew.sent[1])
    assert [each.place for each in crew.sent[2:]] == ([] if full else [crew.sent[1].place])
