"""A task runner holds the jobs of a worker process, by run, and runs slices of them on request.

A driver sends each job once. An order names run, slice and argument. Its answer holds the result or
error, the counters, and the schemas that the slice settled. ``TaskRunner.do`` raises only if the
job never came, or (NotSentError) if the argument was left out and is needed.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import platform
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from dml.data.schema import Schema
from dml.errors import (
    DmlError,
    InternalError,
    MemoryContractError,
    NonDeterminismError,
    PlanError,
    worded,
)
from dml.events import Tally
from dml.exec.process.exception_codec import shipped
from dml.exec.process.partition_codec import Keep, Parcel, in_memory, pack, unpack
from dml.exec.process.references import dumped, loaded
from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.policy import Seq
from dml.exec.tasks.job import Job
from dml.exec.tasks.replay_check import after, differing, unproven
from dml.exec.tasks.slices import Failure, NotSentError, Outcome, Runtime
from dml.expr.node import Node
from dml.udfs.calling.time_limit import GIVEN_UP

# Arrays up to this size are copied for functions to fill; larger ones are shared.
FILLED_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class SliceOrder:
    """An order to run slice ``run`` of the run called ``name`` on ``argument``.

    The argument is a task, or the parcel of a partition. ``schemas`` are those that rows on other
    workers have settled; ``seen`` is the digest of the task's earlier partitions. An order with
    ``once`` must not be run twice. An answer carries the ``number`` of its order.
    """

    name: str
    run: Run
    argument: Any
    schemas: dict[str, Schema]
    seen: bytes = b""
    once: bool = False
    number: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The result of an order: a parcel, an exception (``error``), or neither at a task's end.

    ``error`` is pickled (b"" for none). ``schemas`` are newly settled ones; ``replayed`` counts
    partitions made again. ``digest`` is that of the task's partitions so far, for comparison if
    they are made again; b"" where none is needed. ``spent`` is True if abandoned calls of functions
    may still run, so that the worker must end.
    """

    parcel: Parcel | None
    error: bytes
    seconds: float = 0.0
    tally: Tally = dataclasses.field(default_factory=Tally)
    schemas: dict[str, Schema] = dataclasses.field(default_factory=dict)
    replayed: int = 0
    digest: bytes = b""
    spent: bool = False


class Bench:
    """One job in progress in this process; slices of different tasks may run in parallel.

    ``note`` is called with the place of the unit that is being read, or -1 if it is unknown.
    """

    def __init__(self, job: Job, note: Callable[[int], None]) -> None:
        self.job, self._note = job, note
        # By thread id, without threading.local: before Python 3.12, a thread-local that dies in a
        # cycle of garbage may hang a process whose threads are being sampled, which Dask does.
        self._mine: dict[int, tuple[Tally, Seq]] = {}
        self._places: dict[Seq, int] = {}
        job.reading.begun = self._begun
        stages = (job.stage.steps, *(link.steps for link in job.links))
        self._unproven = list(accumulate(map(unproven, stages)))
        compared = after if self._unproven[-1] else None
        self.runtime = Runtime(job.starts(self._tally), compared, job.once)

    def _tally(self) -> Tally:
        """Return the tally of this thread's slice; an unused one for a thread without a slice."""
        found = self._mine.get(threading.get_ident())
        return Tally() if found is None else found[0]

    def _begun(self, place: int) -> None:
        self._places[self._mine[threading.get_ident()][1]] = place
        self._note(place)

    def do(self, order: SliceOrder, keep: Keep) -> Answer:
        """Run one slice; exceptions, even exits, become part of the answer, except NotSentError."""
        known = self.job.at.schemas
        known.update(order.schemas)
        tally, seq = Tally(), order.run.seq
        self._mine[threading.get_ident()] = tally, seq
        self._note(self._places.get(seq, -1))
        replayed, started = self.runtime.replayed, time.perf_counter()
        parcel, error, digest = None, b"", b""
        try:
            outcome = self._outcome(order)
            if outcome is not None:
                parcel, digest = _packed(outcome, keep), self._digest(order, outcome)
        except NotSentError:
            raise
        except NonDeterminismError as raised:
            error = shipped(self.differing(order.run, raised.why))
        except BaseException as raised:  # noqa: BLE001  (delivered at its place in order)
            error = shipped(raised)
        if parcel is None or parcel.outcome.done:
            self._places.pop(seq, None)
        seconds = time.perf_counter() - started
        replays = self.runtime.replayed - replayed
        settled = {key: known[key] for key in known.keys() - order.schemas.keys()}
        spent = GIVEN_UP.spent
        return Answer(parcel, error, seconds, tally, settled, replays, digest, spent)

    def _outcome(self, order: SliceOrder) -> Outcome | None:
        made, _ = self.runtime.perform(order.run, self._argument(order), order.seen)
        if isinstance(made, Failure):
            raise made.error
        return made

    def _argument(self, order: SliceOrder) -> Any:
        """Return the order's task, or its parcel's pieces; raise the error for ``Differing``."""
        sent = order.argument
        if isinstance(sent, Differing):
            raise NonDeterminismError("another partition", why=sent.why)
        if isinstance(sent, Parcel):
            return unpack(sent).value
        return sent

    def _digest(self, order: SliceOrder, outcome: Outcome) -> bytes:
        """Return the digest for comparing repeated work, or b"" if none will be compared."""
        compared = order.run.k or not outcome.done or order.run.stage < len(self.job.links)
        return after(order.seen, outcome.value) if compared and self._unproven[-1] else b""

    def differing(self, run: Run, why: str) -> NonDeterminismError:
        """Return the error for a task whose result changed; it names functions that may differ."""
        place = self._places.get(run.seq, -1)
        where = str(self.job.reading.unit_at(place).place) if place >= 0 else f"task {run.seq}"
        return differing(why, self._unproven[run.stage], where)


@dataclasses.dataclass(frozen=True, slots=True)
class Differing:
    """An argument that was made again and differs from the first one; ``why`` is the difference."""

    why: str


def _packed(outcome: Outcome, keep: Keep) -> Parcel:
    try:
        return pack(outcome, keep)
    except MemoryError as error:
        raise MemoryContractError(
            "a worker ran out of memory for a partition",
            why=f"its {outcome.rows} rows take {outcome.held_bytes} bytes",
            try_="a smaller memory_limit= or target_partition_bytes=, or fewer num_workers=",
        ) from error
    except DmlError:
        raise
    except Exception as error:
        raise InternalError(
            "a partition cannot be sent to another process", why=worded(error)
        ) from error


class TaskRunner:
    """The jobs of a process, by the name of their run; ``note`` is that of each ``Bench``."""

    def __init__(self, note: Callable[[int], None] = lambda _: None) -> None:
        self.benches: dict[str, Bench] = {}
        self._refused: dict[str, bytes] = {}
        self._note = note
        self._lock = threading.Lock()

    def open(self, name: str, job: bytes, buffers: Sequence[Any] = ()) -> bool:
        """Load a job, as ``written`` returned it; return False if that fails.

        Its orders are then answered with the error.
        """
        with self._lock:
            if name not in self.benches and name not in self._refused:
                try:
                    self.benches[name] = Bench(read(job, buffers), self._note)
                except BaseException as error:  # noqa: BLE001 (a user's module does what it wants)
                    self._refused[name] = shipped(_unreadable(error))
            return name in self.benches

    def do(self, order: SliceOrder, keep: Keep = in_memory) -> Answer:
        """Run an order whose job is open; ``keep`` stores the columns of its result."""
        refused = self._refused.get(order.name)
        if refused is not None:
            return Answer(None, refused)
        bench = self.benches.get(order.name)
        if bench is None:
            raise InternalError("an order came before its job", why=f"run {order.name}")
        return bench.do(order, keep)

    def close(self, name: str) -> None:
        """Remove a run, and end its parked generators; do nothing for an unknown name."""
        with self._lock:
            bench = self.benches.pop(name, None)
            self._refused.pop(name, None)
        if bench is not None:
            bench.runtime.close()


def written(job: Job) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return ``job`` as bytes, its functions by value, and its large arrays as buffers.

    Raise PlanError if a function, or an object that it refers to, cannot be sent.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        return dumped(job, buffers.append), buffers
    except Exception as error:
        raise unsendable((job.stage.source, *job.steps), error) from error


def read(sent: bytes, buffers: Sequence[Any]) -> Job:
    """Return the job that ``written`` wrote; its arrays lie in ``buffers``.

    Small arrays are copied, so that functions may write in them, as in the sending process. Raise
    PlanError if names in modules that its functions use refer to different code here.
    """
    job: Job = loaded(sent, [_filled(buffer) for buffer in buffers])
    return job


def _filled(buffer: Any) -> Any:
    view = memoryview(buffer)
    return bytearray(view) if view.readonly and view.nbytes <= FILLED_BYTES else buffer


def unsendable(nodes: Iterable[Node], error: Exception) -> DmlError:
    """Return the error for operators that cannot be pickled; it names the function at fault."""
    for node in nodes:
        try:
            dumped(node.calls, lambda _: None)
        except Exception as cause:  # noqa: BLE001 (a user's object may do anything)
            return PlanError(
                f"{node.calls!r} cannot be sent to another process",
                at=node.label(),
                why=worded(cause),
                try_="make what it refers to inside the function, or executor='threads'",
            )
    return PlanError("the pipeline cannot be sent to another process", why=worded(error))


def _unreadable(error: BaseException) -> DmlError:
    """Return the error for a job that cannot be loaded, usually for lack of a module."""
    here = f"process {os.getpid()} on {platform.node()}"
    if isinstance(error, DmlError):
        error.at = f"{error.at}; {here}" if error.at else here
        return error
    found = PlanError(
        "a worker cannot load the pipeline",
        at=here,
        why=worded(error),
        try_="install there what the functions import, at the same versions",
    )
    found.__cause__ = error
    return found
