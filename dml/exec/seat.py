"""This file is what a worker of a Dask cluster holds of a run, and the task that it is given.

A seat is the value of one Dask key per worker: the job, and the generators parked there. It ends
when the key is released, also because the client that wanted it has died. Where a slice lands on
another worker than the one it was meant for, Dask carries the seat along, as the job alone, and
gives up one of the two after a while: where something is parked a second key holds the seat.

What a task made stays on its worker (``Shipment``); the client hears of it at once, in a few
hundred bytes (``Note``), through Dask's events, which travel with Dask's own word of it.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from distributed import get_worker

from dml.exec.desk import Answer, Desk, Differing, Order
from dml.exec.parcel import Parcel

SMALL = 600  # a partition of no more bytes travels with the note
MADE_AGAIN = "a partition that was lost came back as another one"
MOST_NOTE = 16 << 10  # an error of more bytes is fetched


@dataclasses.dataclass(frozen=True, slots=True)
class Freight:
    """A job as ``dml.exec.desk.written`` wrote it, for the seats of a run."""

    run: str
    job: bytes
    buffers: tuple[Any, ...]

    def __sizeof__(self) -> int:
        return len(self.job) + sum(memoryview(each).nbytes for each in self.buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        buffers = tuple(pickle.PickleBuffer(each) for each in self.buffers)
        return Freight, (self.run, self.job, buffers)


@dataclasses.dataclass(frozen=True, slots=True)
class Shipment:
    """What one task made: an answer for each of its orders.

    ``misfit`` is the error instead, where the job could not be opened as it was sent.
    """

    answers: tuple[Answer, ...]
    misfit: bytes = b""

    def __sizeof__(self) -> int:
        parcels = (answer.parcel for answer in self.answers)
        return 500 + sum(parcel.nbytes for parcel in parcels if parcel is not None)


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """What the client is told of a task: the shipment without its columns.

    ``whole`` says that nothing is left out; a note without a shipment says that it must
    be fetched.
    """

    ticket: int
    worker: str
    shipment: Shipment | None
    whole: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """An argument that lies in shipment number ``source`` of a task, at ``place``.

    ``digest`` is that of its answer, when it was made first.
    """

    source: int
    place: int
    digest: bytes = b""


class _Desks:
    """The desk of a job in this process: a task that was carried here finds what is parked here.

    Seats may leave while garbage is collected, also in a thread that has the lock: nobody waits for
    it who leaves, and whoever has it looks afterwards who has left.
    """

    def __init__(self) -> None:
        self._desks: dict[tuple[str, bytes], tuple[Desk, int]] = {}
        self._leaving: deque[tuple[str, bytes]] = deque()
        self._lock = threading.Lock()

    def taken(self, key: tuple[str, bytes]) -> Desk:
        """For one more seat."""
        with self._lock:
            desk, seats = self._desks.get(key, (None, 0))
            desk = desk or Desk()
            self._desks[key] = desk, seats + 1
        self._look()
        return desk

    def left(self, key: tuple[str, bytes]) -> None:
        """By one; the last ends what is parked."""
        self._leaving.append(key)
        self._look()

    def _look(self) -> None:
        while self._leaving and self._lock.acquire(blocking=False):
            try:
                ended = list(self._ended())
            finally:
                self._lock.release()
            for desk, run in ended:
                desk.close(run)

    def _ended(self) -> Iterator[tuple[Desk, str]]:
        while self._leaving:
            key = self._leaving.popleft()
            desk, seats = self._desks.pop(key)
            if seats > 1:
                self._desks[key] = desk, seats - 1
            else:
                yield desk, key[0]


_DESKS = _Desks()


class Seat:
    """The job on one worker, and its parked generators; opened by the first slice."""

    def __init__(self, cargo: Freight) -> None:
        key = cargo.run, blake2b(cargo.job).digest()
        self.cargo, self.desk = cargo, _DESKS.taken(key)
        weakref.finalize(self, _DESKS.left, key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Seat, (self.cargo,)

    def __sizeof__(self) -> int:
        return self.cargo.__sizeof__()

    def do(self, orders: Sequence[Order]) -> Shipment:
        """Carry out all orders, if the job can be opened here."""
        cargo = self.cargo
        if not self.desk.open(cargo.run, cargo.job, cargo.buffers):
            return Shipment((), self.desk.do(orders[0]).error)
        return Shipment(tuple(self.desk.do(each) for each in orders))


def seated(cargo: Freight) -> Seat:
    """The task that takes a seat on a worker, for a job that lies on one."""
    return Seat(cargo)


def freight(run: str, job: bytes, *buffers: Any) -> Seat:
    """The task that takes a seat on a worker and brings the job with it."""
    return Seat(Freight(run, job, buffers))


def staying(seat: Seat) -> Seat:
    """The task that keeps a seat where it is; nothing works on what it gives."""
    return seat


def slices(seat: Seat, topic: str, ticket: int, orders: bytes, *sources: Shipment) -> Shipment:
    """The task that works: carry out all orders, one after the other, and send a note."""
    every: list[Order] = pickle.loads(orders)  # noqa: S301 (from the run's own client)
    made = seat.do([_with_argument(each, sources) for each in every])
    worker = get_worker()
    worker.log_event(topic, _note(made, ticket, worker.address))
    return made


def _with_argument(order: Order, sources: Sequence[Shipment]) -> Order:
    if not isinstance(order.argument, Part):
        return order
    part = order.argument
    found = sources[part.source].answers[part.place]
    other = Differing(MADE_AGAIN) if found.digest != part.digest else None
    return dataclasses.replace(order, argument=other or found.parcel)


def _note(made: Shipment, ticket: int, worker: str) -> bytes:
    whole = sum(_bytes(answer.parcel) for answer in made.answers) <= SMALL
    told = made if whole else Shipment(tuple(map(_bare, made.answers)), made.misfit)
    note = pickle.dumps(Note(ticket, worker, told, whole), protocol=5)
    return note if len(note) <= MOST_NOTE else pickle.dumps(Note(ticket, worker, None))


def _bytes(parcel: Parcel | None) -> int:
    return 0 if parcel is None else parcel.nbytes + len(parcel.places)


def _bare(answer: Answer) -> Answer:
    if answer.parcel is None:
        return answer
    return dataclasses.replace(answer, parcel=Parcel(answer.parcel.outcome, b"", ()))
