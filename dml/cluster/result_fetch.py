"""Fetch results of tasks from the workers that hold them, or from a recomputed copy."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from distributed.utils_comm import gather_from_workers

from dml.cluster.dask_task import RemotePartition, Ticket
from dml.cluster.worker_monitor import Hub, lost
from dml.cluster.worker_state import BYTES, Shipment
from dml.errors import InternalError
from dml.exec.process.task_runner import Answer
from dml.exec.tasks.slices import NotSentError

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
