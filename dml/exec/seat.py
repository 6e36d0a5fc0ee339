"""This file is what a worker of a Dask cluster holds of a run, and the task that it is given.

A seat is the value of one Dask key per worker: the job, and the generators parked there. It ends
when the key is released, also because the client that wanted it has died. Where a slice lands on
another worker than the one it was meant for, Dask carries the seat along, as the job alone, and
gives up one of the two after a while: where something is parked a second key holds the seat.

What a task made stays on its worker (``Shipment``); the client hears of it at once, in a few
hundred bytes (``Note``), through Dask's events, which travel with Dask's own word of it. Between
processes of one host a shipment crosses as slips that say where it lies (``dml/exec/lending.py``);
who cannot open them asks for the bytes. To disk it goes as bytes.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from hashlib import blake2b
from typing import Any, TypeVar, cast

import dask
from distributed import get_worker
from distributed.protocol.serialize import dask_deserialize, dask_serialize
from distributed.utils import sync
from distributed.utils_comm import gather_from_workers

from dml.exec import heap
from dml.exec.desk import Answer, Desk, Differing, Order
from dml.exec.lending import (
    Lender,
    UnopenedError,
    borrow,
    held_bytes,
    is_lent,
    is_strange,
    is_unopened,
    noted,
)
from dml.exec.neighbours import near
from dml.exec.parcel import Parcel
from dml.exec.references import flat

T = TypeVar("T")
SMALL = 600  # a partition of no more bytes travels with the note
MADE_AGAIN = "a partition that was lost came back as another one"
MOST_NOTE = 16 << 10  # an error of more bytes is fetched
BYTES = ["pickle"]  # what Dask is told to send where slips cannot be opened


@dataclasses.dataclass(frozen=True, slots=True)
class Freight:
    """A job as ``dml.exec.desk.written`` wrote it, for the seats of a run."""

    run: str
    job: bytes
    buffers: tuple[Any, ...]

    def __sizeof__(self) -> int:
        return len(self.job) + sum(memoryview(each).nbytes for each in self.buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Freight, (self.run, self.job, tuple(map(flat, self.buffers)))


@dataclasses.dataclass(frozen=True, slots=True)
class Shipment:
    """What one task made: an answer for each of its orders.

    ``misfit`` is the error instead, where the job could not be opened as it was sent, ``refused``
    which job that was. ``whence`` are the worker that lends some of it, and the key by which Dask
    knows it there.
    """

    answers: tuple[Answer, ...]
    misfit: bytes = b""
    refused: bytes = b""
    whence: tuple[str, Any] | None = None

    def __sizeof__(self) -> int:
        return 500 + sum(held_bytes(answer.parcel) for answer in self.answers)

    @property
    def unopened(self) -> bool:
        """True if some of it was lent, and is not here."""
        return any(is_unopened(answer.parcel) for answer in self.answers)

    @property
    def strange(self) -> bool:
        """True if some of it can never be opened here."""
        return any(is_strange(answer.parcel) for answer in self.answers)


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """What the client is told of a task: the shipment without its columns.

    ``whole`` says that nothing is left out; a note without a shipment says that it must
    be fetched. ``strange`` says that something could not be opened where it was needed.
    """

    ticket: int
    worker: str
    shipment: Shipment | None
    whole: bool = False
    strange: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """An argument that lies in shipment number ``source`` of a task, at ``place``.

    ``digest`` is that of its answer when it was made first, if something came of that already.
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
            heap.keep()
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
        if not self._desks:
            heap.let_go()


_DESKS = _Desks()


def digest(job: bytes) -> bytes:
    """What a job is known by, as it was sent."""
    return blake2b(job).digest()


class Seat:
    """The job on one worker, and its parked generators; opened by the first slice."""

    def __init__(self, cargo: Freight) -> None:
        self.key = key = cargo.run, digest(cargo.job)
        self.cargo, self.desk = cargo, _DESKS.taken(key)
        weakref.finalize(self, _DESKS.left, key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Seat, (self.cargo,)

    def __sizeof__(self) -> int:
        return self.cargo.__sizeof__()

    def do(self, orders: Sequence[Order], *, lends: bool = False) -> Shipment:
        """Carry out all orders, if the job can be opened here, and lend what they make."""
        cargo = self.cargo
        if not self.desk.open(cargo.run, cargo.job, cargo.buffers):
            return Shipment((), self.desk.do(orders[0]).error, self.key[1])
        return Shipment(tuple(map(self._lent if lends else self.desk.do, orders)))

    def _lent(self, order: Order) -> Answer:
        lender = Lender()
        answer = self.desk.do(order, lender.keep)
        return dataclasses.replace(answer, parcel=lender.lent(answer.parcel))


def seated(cargo: Freight) -> Seat:
    """The task that takes a seat on a worker, for a job that lies on one."""
    return Seat(cargo)


def freight(run: str, job: bytes, *buffers: Any) -> Seat:
    """The task that takes a seat on a worker and brings the job with it."""
    return Seat(Freight(run, job, buffers))


def staying(seat: Seat) -> Seat:
    """The task that keeps a seat where it is; nothing works on what it gives."""
    return seat


def slices(
    seat: Seat, topic: str, ticket: int, orders: bytes, *sources: Shipment, lends: bool = False
) -> Shipment:
    """The task that works: carry out all orders, one after the other, and send a note."""
    every: list[Order] = pickle.loads(orders)  # noqa: S301 (from the run's own client)
    worker = get_worker()
    there = [_at_hand(each, worker) for each in sources]
    lends = lends and not worker.address.startswith("inproc")
    made = apart(seat.do, [_with_argument(each, there) for each in every], lends=lends)
    if any(is_lent(answer.parcel) for answer in made.answers):
        made = dataclasses.replace(made, whence=(worker.address, worker.get_current_task()))
    strange = any(each.strange for each in sources)
    worker.log_event(topic, _note(made, ticket, worker.address, strange=strange))
    return made


def apart(work: Callable[..., T], *args: Any, **options: Any) -> T:
    """What ``work`` gives without the span of this task, of which Dask warns users' data frames."""

    def unspanned() -> T:
        annotations = getattr(dask.base, "_annotations", None)
        if annotations is not None:
            annotations.set(None)
        return work(*args, **options)

    return copy_context().run(unspanned)


def _at_hand(made: Shipment, worker: Any) -> Shipment:
    """What a source made, opened here, or brought as bytes; UnopenedError if it is neither."""
    made = opened(made)
    if not made.unopened:
        return made
    found = sync(worker.loop, brought, made, worker.rpc)
    if found is None:
        raise UnopenedError(f"{made.whence} has it no more")
    return cast("Shipment", found)


async def brought(made: Shipment, rpc: Any) -> Shipment | None:
    """The bytes of a shipment that cannot be opened here; None if who lends it has it no more."""
    if made.whence is None:
        return None
    address, key = made.whence
    found = (await gather_from_workers({key: [address]}, rpc=rpc, serializers=BYTES))[0].get(key)
    return None if found is None or found.unopened else cast("Shipment", found)


def opened(made: Shipment) -> Shipment:
    """A shipment over the memory of those that lend it, as far as it can be opened here."""
    if not made.unopened:
        return made
    answers = (
        dataclasses.replace(answer, parcel=borrow(answer.parcel)) if answer.parcel else answer
        for answer in made.answers
    )
    return dataclasses.replace(made, answers=tuple(answers))


def _dumped(
    made: Shipment, context: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Any]]:
    """What Dask sends: slips to who seems a neighbour; NotImplementedError is its word for bytes.

    Whether it is one is not asked: who cannot open slips asks for the bytes.
    """
    if not near(context) or not any(is_lent(answer.parcel) for answer in made.answers):
        raise NotImplementedError
    answers = (
        dataclasses.replace(answer, parcel=noted(answer.parcel))
        if answer.parcel is not None and is_lent(answer.parcel)
        else answer
        for answer in made.answers
    )
    frames: list[Any] = []
    slips = dataclasses.replace(made, answers=tuple(answers))
    body = pickle.dumps(slips, protocol=5, buffer_callback=lambda each: frames.append(each.raw()))
    return {}, [body, *frames]


def _loaded(_header: Mapping[str, Any], frames: Sequence[Any]) -> Shipment:
    slips: Shipment = pickle.loads(frames[0], buffers=frames[1:])  # noqa: S301 (a worker's)
    return opened(slips)


dask_serialize.register(Shipment, _dumped)  # Dask imports this file before it needs them
dask_deserialize.register(Shipment, _loaded)


def _with_argument(order: Order, sources: Sequence[Shipment]) -> Order:
    if not isinstance(order.argument, Part):
        return order
    part = order.argument
    found = sources[part.source].answers[part.place]
    differs = part.digest and found.digest != part.digest
    other = Differing(MADE_AGAIN) if differs else None
    return dataclasses.replace(order, argument=other or found.parcel)


def _note(made: Shipment, ticket: int, worker: str, *, strange: bool = False) -> bytes:
    whole = sum(_bytes(answer.parcel) for answer in made.answers) <= SMALL
    told = made if whole else Shipment(tuple(map(_bare, made.answers)), made.misfit, made.refused)
    note = pickle.dumps(Note(ticket, worker, told, whole, strange), protocol=5)
    return note if len(note) <= MOST_NOTE else pickle.dumps(Note(ticket, worker, None))


def _bytes(parcel: Parcel | None) -> int:
    return 0 if parcel is None else parcel.nbytes + len(parcel.places)


def _bare(answer: Answer) -> Answer:
    if answer.parcel is None:
        return answer
    return dataclasses.replace(answer, parcel=Parcel(answer.parcel.outcome, b"", ()))
