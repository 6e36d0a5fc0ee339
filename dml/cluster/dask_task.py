"""A Dask task on the client's side: its slices, its worker, and how its result is fetched."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from dml.cluster.cluster import dask_resources
from dml.cluster.job_broadcast import Cargo
from dml.cluster.worker_monitor import Hub
from dml.cluster.worker_state import Shipment, slices
from dml.exec.process.partition_codec import Parcel
from dml.exec.process.task_runner import SliceOrder
from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.policy import Demand, Seq
from dml.exec.tasks.slices import NotSent, Outcome

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
        self.seat, self.idle = seat.key, 0
        self.future = hub.submit(
            slices,
            seat,
            hub.topic,
            self.number,
            self.written(),
            *(source.future for source in self.sources),
            key=(f"dml-{first.stage}", cargo.run, self.number, self.tries, *first.seq, first.k),
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
