"""This file is one Dask task as its client sees it: what it does, where, how it is fetched."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from dml.exec.cargo import Cargo
from dml.exec.cluster import dask_resources
from dml.exec.desk import Order
from dml.exec.hub import Hub
from dml.exec.messages import Run
from dml.exec.parcel import Parcel
from dml.exec.policy import Demand, Seq
from dml.exec.seat import Shipment, slices
from dml.exec.slices import NotSent, Outcome

SETTLED = ("memory", "erred")
# Of futures: their tasks are being done, or what they made was lost and is made again.
UNDER_WAY = ("pending", "lost")
IDLE = 3  # looks at which nothing is done for a task, until it is submitted again


class Ticket:
    """One Dask task: slices of a stage, done one after the other on a worker.

    Dask may move it to one of the workers in ``bound``, or to any if there are none: it steals what
    waits somewhere, and does again what dies.
    """

    def __init__(self, number: int, place: str, runs: list[Run], bound: Sequence[str] = ()) -> None:
        self.number, self.place, self.runs, self.bound = number, place, runs, bound
        self.worker = place  # where it was done in the end
        self.orders: list[Order] = []
        self.parked = set[Seq]()  # tasks whose generator waits at its place, at first
        self.sources: list[Ticket] = []
        self.future: Any = None
        self.generation = self.tries = 0
        self.seat: Any = None  # the key of the seat that it was given
        self.idle = 0  # looks in a row at which Dask did nothing about it
        self.fetched: concurrent.futures.Future[Shipment] | None = None

    def submit(self, hub: Hub, cargo: Cargo, demand: Demand, *, lends: bool = False) -> None:
        """Hand the task to Dask, what it makes to be lent or not; on the loop of the client."""
        self.generation = cargo.generation
        self.tries += 1
        self.drop()
        first, seat = self.runs[0], cargo.seat(self.place)
        self.seat, self.idle = seat.key, 0
        self.future = hub.submit(
            slices,
            seat,
            hub.topic,
            self.number,
            self.written(),
            *(source.future for source in self.sources),
            key=(f"dml-{first.stage}", cargo.run, self.number, self.tries, *first.seq, first.k),
            # its seat is at its place, and decides among those who are bound
            workers=list(self.bound) or [self.place],
            allow_other_workers=not self.bound,  # or it would hang if that worker died
            resources=dask_resources(dict(demand.resources)) or None,
            pure=False,
            retries=0,
            lends=lends,
        )

    def written(self) -> bytes:
        """The orders as bytes; what is parked has its argument already, unless it was lost."""
        parked = self.parked if self.tries == 1 else ()
        return pickle.dumps(
            [
                dataclasses.replace(each, argument=NotSent()) if each.run.seq in parked else each
                for each in self.orders
            ],
            protocol=5,
        )

    def drop(self) -> None:
        """Give back what it made, or is making; who waits for it is told."""
        future, self.future = self.future, None
        if future is not None:
            future.release()

    def needed(self) -> Iterator[Ticket]:
        """The ticket after those that it works on; what was given back is left out."""
        for source in self.sources:
            yield from source.needed()
        if self.future is not None:
            yield self

    def forgotten(self, states: Mapping[Any, str | None]) -> bool:
        """True if Dask does nothing about it, by the states of tasks, and has not for a while."""
        state = states.get(self.future.key)
        keys = [key for each in self.needed() for key in (each.future.key, each.seat)]
        busy = state in SETTLED or any(states.get(key) == "processing" for key in keys)
        self.idle = 0 if busy else self.idle + 1
        return self.idle >= IDLE


@dataclasses.dataclass(slots=True)
class Held:
    """A partition on a worker: answer number ``place`` of a ticket's shipment.

    ``parcel`` is here already if it is small; ``digest`` is that of the answer.
    """

    outcome: Outcome
    ticket: Ticket
    place: int
    parcel: Parcel | None
    digest: bytes = b""

    def seen(self, run: Run) -> bytes:
        """The digest, if some of it was handed on already, by its task or by ``run`` so far."""
        several = self.ticket.runs[self.place].k or not self.outcome.done
        return self.digest if several or run.k else b""


def under_way(ticket: Ticket) -> bool:
    """True for one of which Dask has not said that it has ended, or has taken that back."""
    return ticket.future is not None and ticket.future.status in UNDER_WAY


def places_of(run: Run, tickets: Iterable[Ticket]) -> set[str]:
    """The workers that were given a slice, by the tickets that are not done."""
    return {ticket.place for ticket in tickets if run in ticket.runs}


def touched(live: Iterable[Ticket], doing: Set[Any], having: Set[Any]) -> Iterator[Ticket]:
    """Tickets to be submitted again without some workers, each after those that it works on.

    That is what these workers are ``doing`` and ``having``, by keys, and what is under way and
    needs some of that. Each is looked at once those before it may have been submitted again.
    """
    again: set[Ticket] = set()
    for ticket in sorted(live, key=lambda each: each.number):
        if ticket.future is None:
            continue
        lost = ticket.future.key in doing or ticket.future.key in having
        waits = ticket.seat in doing or ticket.seat in having or again & {*ticket.sources}
        if lost or (waits and under_way(ticket)):
            again.add(ticket)
            yield ticket
