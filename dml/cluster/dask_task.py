"""A Dask task on the client's side: its slices, its worker, and how its result is fetched."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import pickle
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, cast

from distributed.utils_comm import gather_from_workers

from dml.cluster.cluster import dask_resources
from dml.cluster.job_broadcast import Cargo
from dml.cluster.worker_monitor import Hub, lost
from dml.cluster.worker_state import BYTES, Shipment, slices
from dml.errors import InternalError
from dml.exec.process.partition_codec import Parcel
from dml.exec.process.task_runner import Answer, SliceOrder
from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.policy import Demand, Seq
from dml.exec.tasks.slices import NotSent, NotSentError, Outcome

SETTLED = ("memory", "erred")
# Status of futures whose tasks run, or whose lost results are being remade.
UNDER_WAY = ("pending", "lost")
IDLE = 3  # checks at which Dask does nothing for a task, after which it is resubmitted


class Ticket:
    """One Dask task: slices of a stage, ``runs``, executed one after the other on a worker.

    ``place`` is the worker that the crew chose. Dask steals waiting tasks and reruns those of dead
    workers: it may move this task to one of the workers in ``bound``, or to any if there are none.
    """

    def __init__(self, number: int, place: str, runs: list[Run], bound: Sequence[str] = ()) -> None:
        self.number, self.place, self.runs, self.bound = number, place, runs, bound
        self.worker = place  # the worker that ran the task in the end
        self.orders: list[SliceOrder] = []
        self.parked = set[Seq]()  # slices whose generator is parked at ``place``, at first
        self.sources: list[Ticket] = []
        self.future: Any = None
        self.generation = self.tries = 0
        self.seat: Any = None  # the Dask key of its seat
        self.idle = 0  # consecutive checks at which Dask did nothing for the task
        self.fetched: concurrent.futures.Future[Shipment] | None = None

    def submit(self, hub: Hub, cargo: Cargo, demand: Demand, *, lends: bool = False) -> None:
        """Submit the task to Dask, on the event loop; ``lends`` allows results in shared memory."""
        self.generation = cargo.generation
        self.tries += 1
        self.drop()
        first, seat = self.runs[0], cargo.seat(self.place)
        name = f"dml:{cargo.job.titles[first.stage]}"
        self.seat, self.idle = seat.key, 0
        self.future = hub.submit(
            slices,
            seat,
            hub.topic,
            self.number,
            self.written(),
            *(source.future for source in self.sources),
            key=(name, cargo.run, self.number, self.tries, *first.seq, first.k),
            # Dask chooses among the bound workers by the seat, which is at the task's place
            workers=list(self.bound) or [self.place],
            allow_other_workers=not self.bound,  # or the task would hang if that worker died
            resources=dask_resources(dict(demand.resources)) or None,
            pure=False,
            retries=0,
            lends=lends,
        )

    def written(self) -> bytes:
        """Serialize the slices' orders, without arguments that parked generators already have."""
        parked = self.parked if self.tries == 1 else ()
        return pickle.dumps(
            [
                dataclasses.replace(each, argument=NotSent()) if each.run.seq in parked else each
                for each in self.orders
            ],
            protocol=5,
        )

    def drop(self) -> None:
        """Release the task and its result, so that Dask can forget them."""
        future, self.future = self.future, None
        if future is not None:
            future.release()

    def needed(self) -> Iterator[Ticket]:
        """Yield the tickets that this one needs, then this one; released tickets are left out."""
        for source in self.sources:
            yield from source.needed()
        if self.future is not None:
            yield self

    def forgotten(self, states: Mapping[Any, str | None]) -> bool:
        """Return True if several calls in sequence find that Dask does not work on the task.

        ``states`` are Dask's states of tasks, by key.
        """
        state = states.get(self.future.key)
        keys = [key for each in self.needed() for key in (each.future.key, each.seat)]
        busy = state in SETTLED or any(states.get(key) == "processing" for key in keys)
        self.idle = 0 if busy else self.idle + 1
        return self.idle >= IDLE


@dataclasses.dataclass(slots=True)
class RemotePartition:
    """A partition on a worker: answer number ``place`` in the result of the task of ``ticket``.

    ``parcel`` has its rows if the task's message brought them, or None; ``digest`` is the answer's.
    """

    outcome: Outcome
    ticket: Ticket
    place: int
    parcel: Parcel | None
    digest: bytes = b""

    def seen(self, run: Run) -> bytes:
        """Return the answer's digest if its task or ``run`` has delivered rows before, else b""."""
        several = self.ticket.runs[self.place].k or not self.outcome.done
        return self.digest if several or run.k else b""


def under_way(ticket: Ticket) -> bool:
    """Return True if the task runs or waits: Dask has not reported its end, or reruns it."""
    return ticket.future is not None and ticket.future.status in UNDER_WAY


def touched(live: Iterable[Ticket], doing: Set[Any], having: Set[Any]) -> Iterator[Ticket]:
    """Yield the tickets to resubmit because of lost workers, each one after its sources.

    ``doing`` are the keys of tasks that ran on these workers, ``having`` those of values stored
    there. A ticket is yielded if its key is among them, or if it is under way and needs a seat
    or another ticket that is yielded. Each is tested once the caller has handled those before it.
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


LOST_S = 0.2  # seconds between two checks that a queried worker still lives
ASKS = 10  # direct requests for a partition before the scheduler fetches it
TICK_S = 2.0  # seconds between two checks that the client still lives


@dataclasses.dataclass(frozen=True, eq=False)
class ResultFetcher:
    """Fetches the results of tickets, and prefetches those that the consumer will need next.

    ``begin`` runs a coroutine on the client's event loop. ``wrong`` turns the error of a ticket
    into one for the user. ``over`` is called with each fetched ticket. ``anew`` resubmits a ticket
    whose result no worker has, or whose task Dask gave up for lack of an argument.
    """

    hub: Hub
    begin: Callable[[Coroutine[Any, Any, None]], None]
    wrong: Callable[[Ticket, Exception], Exception]
    over: Callable[[Ticket], None]
    anew: Callable[[Ticket], None]
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def start(self, ticket: Ticket) -> concurrent.futures.Future[Shipment]:
        """Return the future of a ticket's result, in any thread; the first call starts to fetch."""
        with self._lock:
            if ticket.fetched is None:
                coming: concurrent.futures.Future[Shipment] = concurrent.futures.Future()
                ticket.fetched = coming
                self.hub.call(lambda: self.begin(self._carry(ticket, coming)))
            return ticket.fetched

    def arrived(self, held: RemotePartition, given_up: Callable[[], bool]) -> Answer:
        """Wait, in the consumer's thread, for the answer of a partition, and return it.

        ``given_up`` returns True, or raises an error, if the run has ended.
        """
        coming = self.start(held.ticket)
        while True:
            try:
                return coming.result(TICK_S).answers[held.place]
            except concurrent.futures.TimeoutError:
                if self.hub.closed or given_up():
                    raise lost(self.hub.client) from None

    async def _carry(self, ticket: Ticket, coming: concurrent.futures.Future[Shipment]) -> None:
        try:
            coming.set_result(await self.fetched(ticket))
        except asyncio.CancelledError:
            coming.set_exception(lost(self.hub.client))
            raise
        except Exception as error:  # noqa: BLE001 (delivered to the consumer)
            coming.set_exception(self.wrong(ticket, error))
        self.over(ticket)

    async def fetched(self, ticket: Ticket) -> Shipment:
        """Return a ticket's result from its worker, or from any copy that Dask has or makes."""
        if ticket.future is None:
            raise InternalError("a partition was given back before it came", why=str(ticket.runs))
        hub, future, places = self.hub, ticket.future, cast("Sequence[str]", [ticket.worker])
        ask = 0
        while True:
            directly = hub.direct and ask < ASKS and future.status != "error"
            asked = _direct(hub, future, places) if directly else _by_scheduler(hub, ticket, future)
            try:
                found = await asked
            except NotSentError:
                found = None
                if ticket.future is future:
                    self.anew(ticket)
            whole = found if found is None else await _whole(hub, ticket, future, found)
            if whole is not None:
                return whole
            if found is not None and ask >= ASKS and ticket.future is future:
                self.anew(ticket)
            future, places = await _whereabouts(hub, ticket)
            ask += 1


async def ended(future: Any) -> None:
    """Wait until Dask has reported the end of a task."""
    with contextlib.suppress(Exception):  # cancelled; the kinds of error differ by version
        await future.exception()


async def _whereabouts(hub: Hub, ticket: Ticket) -> tuple[Any, Sequence[str]]:
    """Return the future of a ticket's ended task, and the workers that have its result."""
    while True:
        await asyncio.sleep(LOST_S)  # Dask's report of a loss is on its way
        future = await settled(ticket)
        places: Sequence[str] = ()
        if future.status == "finished":
            places = (await hub.client.scheduler.who_has(keys=[future.key]))[future.key]
        if future is ticket.future and not hub.stuck(places):  # else it is being remade
            return future, places


async def settled(ticket: Ticket) -> Any:
    """Return the future of a ticket once its task has ended and was not resubmitted meanwhile."""
    while True:
        future = ticket.future
        await ended(future)
        if ticket.future is future:
            return future


async def _direct(
    hub: Hub, future: Any, places: Sequence[str], ways: list[str] | None = None
) -> Shipment | None:
    """Fetch a result from the workers ``places``; return None if all of them are gone.

    Dask itself would retry for half a minute. ``ways`` are the serializers to use, None for all.
    """
    if hub.strangers.issuperset(places):
        ways = BYTES
    work = gather_from_workers({future.key: places}, rpc=hub.client.rpc, serializers=ways)
    asked = hub.asking(work)
    found = await _while(lambda: future.status == "finished" and hub.there(places), asked)
    if not hub.there(places):
        asked.cancel()
    return None if found is None else found[0].get(future.key)


async def _by_scheduler(hub: Hub, ticket: Ticket, future: Any) -> Shipment | None:
    """Fetch a result through the scheduler; return None if the ticket is resubmitted meanwhile."""
    asked = hub.asking(hub.client.gather(future, direct=False))
    return cast("Shipment | None", await _while(lambda: ticket.future is future, asked))


async def _whole(hub: Hub, ticket: Ticket, future: Any, found: Shipment) -> Shipment | None:
    """Return a shipment in a form that can be read here; None if its bytes are gone.

    Memory that a worker lends but that cannot be opened here is fetched as bytes.
    """
    if not found.unopened or found.whence is None:
        return found
    if found.strange:
        hub.strangers.add(found.whence[0])
    if hub.direct:
        again = await _direct(hub, future, [found.whence[0]], BYTES)
    else:
        asked = hub.asking(_bytes_by_scheduler(hub, future.key))
        again = await _while(lambda: ticket.future is future, asked)
    return None if again is None or again.unopened else again


async def _bytes_by_scheduler(hub: Hub, key: Any) -> Shipment | None:
    answer = await hub.client.scheduler.gather(keys=[key], serializers=BYTES)
    return cast("Shipment | None", answer.get("data", {}).get(key))


async def _while(holds: Callable[[], bool], asked: asyncio.Future[Any]) -> Any:
    """Return the answer of ``asked``; None if ``holds`` returns False before the answer comes.

    Then, and on cancellation, the request goes on until it ends by itself: if its stream were
    broken off, the sending worker would log an error, together with the data that it was sending.
    """
    while not (await asyncio.wait({asked}, timeout=LOST_S))[0]:
        if not holds():
            return None
    failed = asked.cancelled() or asked.exception() is not None
    return None if failed and not holds() else asked.result()
