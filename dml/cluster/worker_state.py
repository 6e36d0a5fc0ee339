"""The state of a run on a Dask worker, and the tasks that use that state.

A *seat* is the value of one Dask key for each worker: the job, and the generators parked there. The
seat ends when the key is released, also because its client has died. If a slice runs on another
worker than planned, Dask copies the seat there, as the job alone, and drops one of the two copies
after a while: if a generator is parked, a second key keeps the seat.

The result of a task stays on its worker, as a ``Shipment``. The client is notified at once, in a
few hundred bytes (``TaskNote``), through Dask's events, which travel with Dask's own report.
Between processes of one host a shipment is sent as references to shared memory
(``dml/exec/process/shared_memory.py``), which its worker lends; a process that cannot open the
memory requests the bytes. To disk, a shipment is written as bytes.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from hashlib import blake2b
from typing import Any, TypeVar, cast

import dask
from distributed import get_worker
from distributed.protocol.serialize import dask_deserialize, dask_serialize
from distributed.utils import sync
from distributed.utils_comm import gather_from_workers

from dml.cluster import worker_heap
from dml.exec.process.neighbours import near
from dml.exec.process.partition_codec import Parcel
from dml.exec.process.references import flat
from dml.exec.process.shared_memory import (
    Lender,
    UnopenedError,
    borrow,
    held_bytes,
    is_lent,
    is_strange,
    is_unopened,
    noted,
)
from dml.exec.process.task_runner import Answer, Bench, Differing, SliceOrder, TaskRunner

T = TypeVar("T")
SMALL = 600  # most bytes of a partition that is sent with the note
MADE_AGAIN = "a partition that was lost came back as another one"
MOST_NOTE = 16 << 10  # most bytes of a note; the client fetches the shipment of a larger one
BYTES = ["pickle"]  # Dask's serializers where shared memory cannot be opened


@dataclasses.dataclass(frozen=True, slots=True)
class Freight:
    """A pickled job, as sent to a worker; see ``dml.exec.process.task_runner.written``.

    ``run`` is the name of the run, ``buffers`` are the out-of-band buffers of the pickle.
    """

    run: str
    job: bytes
    buffers: Sequence[Any]

    def __sizeof__(self) -> int:
        return len(self.job) + sum(memoryview(each).nbytes for each in self.buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Freight, (self.run, self.job, tuple(map(flat, self.buffers)))


@dataclasses.dataclass(frozen=True, slots=True)
class Shipment:
    """The result of one task: an answer for each of its orders (slices).

    ``misfit`` is the pickled error if the worker could not open the job, and ``refused`` the digest
    of that job. If memory of the answers is lent, ``whence`` is the worker that lends it, and the
    Dask key of the result there.
    """

    answers: tuple[Answer, ...]
    misfit: bytes = b""
    refused: bytes = b""
    whence: tuple[str, Any] | None = None

    def __sizeof__(self) -> int:
        return 500 + sum(held_bytes(answer.parcel) for answer in self.answers)

    @property
    def unopened(self) -> bool:
        """True if an answer is in lent memory that has not been opened in this process."""
        return any(is_unopened(answer.parcel) for answer in self.answers)

    @property
    def strange(self) -> bool:
        """True if an answer is in lent memory that this process can never open."""
        return any(is_strange(answer.parcel) for answer in self.answers)


@dataclasses.dataclass(frozen=True, slots=True)
class TaskNote:
    """The message to the client that task number ``ticket`` has ended on ``worker``.

    ``shipment`` is the result without its columns, or complete if ``whole``; None if it must be
    fetched. ``strange`` means that the worker could not open shared memory of a task's argument.
    """

    ticket: int
    worker: str
    shipment: Shipment | None
    whole: bool = False
    strange: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ShippedArgument:
    """A reference to a slice's argument: answer ``place`` of the task's input number ``source``.

    ``digest`` is that of the answer when it was first made, if rows of it were delivered already.
    """

    source: int
    place: int
    digest: bytes = b""


_DESKS: weakref.WeakValueDictionary[tuple[str, bytes], TaskRunner] = weakref.WeakValueDictionary()
_TAKING = threading.Lock()


def _desk(key: tuple[str, bytes]) -> TaskRunner:
    """Return the task runner of job ``key`` (run, digest), which all of the job's seats here share.

    It lives as long as a seat. Garbage collection may release a seat at any point of this code.
    """
    with _TAKING:
        desk = _DESKS.get(key)
        if desk is None:
            desk = _DESKS[key] = TaskRunner()
            weakref.finalize(desk, _left, desk.benches)
        worker_heap.keep()
    return desk


def _left(benches: dict[str, Bench]) -> None:
    """End the parked generators of a job whose last seat is gone; takes no lock."""
    for bench in benches.values():
        bench.runtime.close()
    if not _any_desk():
        worker_heap.let_go()
        if _any_desk():  # a job has begun meanwhile
            worker_heap.keep()


def _any_desk() -> bool:
    return any(ref() is not None for ref in _DESKS.valuerefs())


def digest(job: bytes) -> bytes:
    """Return the digest of a serialized job."""
    return blake2b(job).digest()


class WorkerState:
    """A seat: the job on one worker, and its parked generators. The first slice opens the job.

    Creating a seat is the Dask task that each worker runs once.
    """

    def __init__(self, cargo: Freight) -> None:
        self.key = key = cargo.run, digest(cargo.job)
        self.cargo, self.desk = cargo, _desk(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerState, (self.cargo,)

    def __sizeof__(self) -> int:
        return self.cargo.__sizeof__()

    def do(self, orders: Sequence[SliceOrder], *, lends: bool = False) -> Shipment:
        """Run all orders, if the job can be opened here; lend the results' memory if ``lends``."""
        cargo = self.cargo
        if not self.desk.open(cargo.run, cargo.job, cargo.buffers):
            return Shipment((), self.desk.do(orders[0]).error, self.key[1])
        return Shipment(tuple(map(self._lent if lends else self.desk.do, orders)))

    def _lent(self, order: SliceOrder) -> Answer:
        lender = Lender()
        answer = self.desk.do(order, lender.keep)
        return dataclasses.replace(answer, parcel=lender.lent(answer.parcel))


def staying(seat: WorkerState) -> WorkerState:
    """Return ``seat`` unchanged, as a Dask task whose key keeps the seat on its worker."""
    return seat


def slices(
    seat: WorkerState,
    topic: str,
    ticket: int,
    orders: bytes,
    *sources: Shipment,
    lends: bool = False,
) -> Shipment:
    """Run the slices of a Dask task (``Ticket``) one after the other, and report to the client.

    ``orders`` are the pickled orders of slices; their arguments refer to ``sources``, results of
    other tasks. The report is a Dask event of ``topic``, with the number ``ticket`` of the task. If
    ``lends``, processes on this host may read the results from this worker's memory.
    """
    every: list[SliceOrder] = pickle.loads(orders)  # noqa: S301 (from the run's own client)
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
    """Run ``work`` outside of the current task's span, of which Dask's data frames would warn."""

    def unspanned() -> T:
        annotations = getattr(dask.base, "_annotations", None)
        if annotations is not None:
            annotations.set(None)
        return work(*args, **options)

    return copy_context().run(unspanned)


def _at_hand(made: Shipment, worker: Any) -> Shipment:
    """Return a shipment opened here, or fetched as bytes; raise UnopenedError if both fail."""
    made = opened(made)
    if not made.unopened:
        return made
    found = sync(worker.loop, brought, made, worker.rpc)
    if found is None:
        raise UnopenedError(f"{made.whence} has it no more")
    return cast("Shipment", found)


async def brought(made: Shipment, rpc: Any) -> Shipment | None:
    """Fetch as bytes a shipment that cannot be opened; return None if its lender has dropped it."""
    if made.whence is None:
        return None
    address, key = made.whence
    found = (await gather_from_workers({key: [address]}, rpc=rpc, serializers=BYTES))[0].get(key)
    return None if found is None or found.unopened else cast("Shipment", found)


def opened(made: Shipment) -> Shipment:
    """Return a shipment whose lent memory is opened here, as far as that is possible."""
    if not made.unopened:
        return made
    return _with_parcels(made, borrow)


def _with_parcels(made: Shipment, change: Callable[[Parcel], Parcel]) -> Shipment:
    """Return a shipment with ``change`` applied to each parcel."""
    answers = (
        dataclasses.replace(answer, parcel=change(answer.parcel)) if answer.parcel else answer
        for answer in made.answers
    )
    return dataclasses.replace(made, answers=tuple(answers))


def _dumped(
    made: Shipment, context: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Any]]:
    """Serialize a shipment as references to memory, for a process that may be on this host.

    Raise NotImplementedError to make Dask send bytes. If the receiver cannot open the memory, as it
    is on another host, it requests the bytes.
    """
    if not near(context) or not any(is_lent(answer.parcel) for answer in made.answers):
        raise NotImplementedError
    frames: list[Any] = []
    slips = _with_parcels(made, lambda each: noted(each) if is_lent(each) else each)
    body = pickle.dumps(slips, protocol=5, buffer_callback=lambda each: frames.append(each.raw()))
    return {}, [body, *frames]


def _loaded(_header: Mapping[str, Any], frames: Sequence[Any]) -> Shipment:
    slips: Shipment = pickle.loads(frames[0], buffers=frames[1:])  # noqa: S301 (a worker's)
    return opened(slips)


dask_serialize.register(Shipment, _dumped)  # Dask imports this module before it needs these two
dask_deserialize.register(Shipment, _loaded)


def _with_argument(order: SliceOrder, sources: Sequence[Shipment]) -> SliceOrder:
    if not isinstance(order.argument, ShippedArgument):
        return order
    part = order.argument
    found = sources[part.source].answers[part.place]
    differs = part.digest and found.digest != part.digest
    other = Differing(MADE_AGAIN) if differs else None
    return dataclasses.replace(order, argument=other or found.parcel)


def _note(made: Shipment, ticket: int, worker: str, *, strange: bool = False) -> bytes:
    parcels = [answer.parcel for answer in made.answers if answer.parcel is not None]
    whole = sum(each.nbytes + len(each.places) for each in parcels) <= SMALL
    told = made if whole else dataclasses.replace(_with_parcels(made, _bare), whence=None)
    note = pickle.dumps(TaskNote(ticket, worker, told, whole, strange), protocol=5)
    return note if len(note) <= MOST_NOTE else pickle.dumps(TaskNote(ticket, worker, None))


def _bare(parcel: Parcel) -> Parcel:
    return Parcel(parcel.outcome, b"", ())
