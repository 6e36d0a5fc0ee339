"""This file is one Dask task as its client sees it: what it does, where, how it is fetched."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from distributed.utils_comm import gather_from_workers

from dml.exec.cargo import Cargo
from dml.exec.cluster import dask_resources
from dml.exec.hub import Hub
from dml.exec.messages import Run
from dml.exec.parcel import Parcel
from dml.exec.policy import Demand
from dml.exec.seat import Shipment, slices
from dml.exec.slices import Outcome

SETTLED = ("memory", "erred")
IDLE = 3  # looks at which nothing is done for a task, until it is submitted again
LOST_S = 0.2  # between two looks at whether a worker still lives that is asked
ASKS = 10  # times workers are asked for a partition, before the scheduler is asked to fetch it


class Ticket:
    """One Dask task: slices of a stage, done one after the other on a worker.

    Dask may move it to one of the workers in ``bound``, or to any if there are none: it steals what
    waits somewhere, and does again what dies.
    """

    def __init__(self, number: int, place: str, runs: list[Run], bound: Sequence[str] = ()) -> None:
        self.number, self.place, self.runs, self.bound = number, place, runs, bound
        self.worker = place  # where it was done in the end
        self.orders = b""
        self.sources: list[Ticket] = []
        self.future: Any = None
        self.generation = self.tries = 0
        self.seat: Any = None  # the key of the seat that it was given
        self.idle = 0  # looks in a row at which Dask did nothing about it
        self.fetched: concurrent.futures.Future[Shipment] | None = None

    def submit(self, hub: Hub, cargo: Cargo, demand: Demand) -> None:
        """Hand the task to Dask; on the loop of the client."""
        self.generation = cargo.generation
        self.tries += 1
        self.drop()
        first, seat = self.runs[0], cargo.seat(self.place)
        self.seat, self.idle = seat.key, 0
        self.future = hub.client.submit(
            slices,
            seat,
            hub.topic,
            self.number,
            self.orders,
            *(source.future for source in self.sources),
            key=(f"dml-{first.stage}-{cargo.run}", self.number, self.tries, *first.seq, first.k),
            # its seat is at its place, and decides among those who are bound
            workers=list(self.bound) or [self.place],
            allow_other_workers=not self.bound,  # or it would hang if that worker died
            resources=dask_resources(dict(demand.resources)) or None,
            pure=False,
            retries=0,
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


def touched(live: Iterable[Ticket], pending: Container[int], workers: set[str]) -> Iterator[Ticket]:
    """Tickets that must be done again without ``workers``, each after those that it works on.

    That is what lies there, and of the ``pending`` ones what is done there or works on that.
    """
    for ticket in sorted(live, key=lambda each: each.number):
        mine = [ticket, *(ticket.sources if ticket.number in pending else ())]
        if ticket.future is not None and any(each.worker in workers for each in mine):
            yield ticket


async def ended(future: Any) -> None:
    """Wait until Dask has said what came of a task."""
    with contextlib.suppress(Exception):  # cancelled; the kinds of error differ by version
        await future.exception()


async def fetched(hub: Hub, ticket: Ticket) -> Shipment:
    """What it made, from its worker, or from wherever Dask has it by now or makes it again."""
    client, future = hub.client, ticket.future
    places: Sequence[str] = [ticket.worker]
    for _ in range(ASKS if hub.direct else 0):
        found = await _direct(hub, future, places)
        if found is not None:
            return found
        await asyncio.sleep(LOST_S)  # Dask's word of the loss is on its way
        future, places = await _whereabouts(hub, ticket)
        while hub.stuck(places):  # it is being made elsewhere
            await asyncio.sleep(LOST_S)
            future, places = await _whereabouts(hub, ticket)
        if future.status != "finished":
            break
    return cast("Shipment", await client.gather(future, direct=False))


async def _whereabouts(hub: Hub, ticket: Ticket) -> tuple[Any, Sequence[str]]:
    """The future of a ticket that Dask has spoken of, and who has what it made."""
    future = await settled(ticket)
    if future.status != "finished":
        return future, ()
    places: Sequence[str] = (await hub.client.scheduler.who_has(keys=[future.key]))[future.key]
    return future, places


async def settled(ticket: Ticket) -> Any:
    """The future of a ticket once Dask has said what came of it, however often it is submitted."""
    while True:
        future = ticket.future
        await ended(future)
        if ticket.future is future:
            return future


async def _direct(hub: Hub, future: Any, places: Sequence[str]) -> Shipment | None:
    """What lies on ``places``; None if they are gone: Dask itself would try for half a minute.

    Who is cancelled leaves the asking to end by itself, or the worker that sends would log an error
    of a stream that breaks.
    """
    attempt = hub.asking(gather_from_workers({future.key: places}, rpc=hub.client.rpc))
    while not (await asyncio.wait({attempt}, timeout=LOST_S))[0]:
        if future.status != "finished" or not hub.there(places):
            attempt.cancel()
            return None
    return cast("Shipment | None", attempt.result()[0].get(future.key))
