"""The common base of drivers whose workers are other processes, to which slices are sent."""

from __future__ import annotations

import dataclasses
import time
import uuid

from dml.errors import DmlError, FunctionTimeoutError, InternalError, WorkerLostError, worded
from dml.exec.delivery.meter import Tallies
from dml.exec.drivers.crew import Crew
from dml.exec.process.exception_codec import received
from dml.exec.process.partition_codec import Parcel, unpack
from dml.exec.process.task_runner import Answer, SliceOrder
from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.policy import Seq
from dml.exec.scheduler.speculation import Race
from dml.exec.tasks.job import Job
from dml.exec.tasks.replay_check import differing, unproven
from dml.exec.tasks.slices import DriverLoop, Failure, Outcome


class RemoteCrew(Crew):
    """A crew whose slices run in other processes and return parcels.

    A partition stays a parcel until the consumer takes it: a parcel of one worker may go to another
    worker, and this process only passes it on. A parked generator is in one worker, the home of its
    task, where the next slice of the task runs.

    For each slice that is ``begun``, exactly one of ``answered``, ``lost`` and ``failed`` is
    called, from any thread. Where slots are idle, an overdue slice is begun twice: the attempt that
    ends first counts.
    """

    gathering = False  # answers are being collected, and slices are handed out afterwards

    def __init__(self, loop: DriverLoop, job: Job, tallies: Tallies) -> None:
        super().__init__(loop)
        self.race = Race(len(loop.core.demands))
        self.job, self.tallies = job, tallies
        self.name = uuid.uuid4().hex
        self.homes: dict[Seq, str] = {}
        self.digests: dict[Seq, bytes] = {}  # of partitions of unfinished tasks so far

    def begun(self, run: Run) -> None:
        """Record that a slice is handed out; the caller holds the lock."""
        self.race.begin(run, time.perf_counter())

    def counts(self, run: Run, *, lost: bool = False, more: bool = False) -> bool:
        """Record that an attempt ended; return True for the one attempt at a slice that counts."""
        with self.lock:
            return self.race.end(run, time.perf_counter(), lost=lost, more=more)

    def tick(self) -> None:
        """Begin overdue slices a second time where slots are idle and memory is left."""
        with self.lock:
            while not (self.closing or self.gathering):
                run = self.race.late(time.perf_counter(), self._fits)
                if run is None:
                    break
                self.hand_out([run])

    def _fits(self, run: Run) -> bool:
        """Return whether free slots and memory suffice for all second attempts and one more."""
        core, copies = self.loop.core, self.race.repeated() + 1
        demand, load = core.demands[run.stage], core.state.loads[run.stage]
        if demand.max_parallel is not None:
            return False
        need = copies * (load.output_bytes + load.open_bytes)
        if core.state.used_bytes + need > core.state.limit_bytes:
            return False
        return all(core.free.get(name, 0.0) >= copies * n for name, n in demand.resources)

    def order(self, run: Run) -> SliceOrder:
        """Return the order that asks a worker to run a slice; the caller holds the lock."""
        schemas = dict(self.job.at.schemas)
        seen = self.digests.get(run.seq, b"") if run.k else b""
        once = bool(self.loop.core.demands[run.stage].once)
        return SliceOrder(self.name, run, self.loop.argument(run), schemas, seen, once)

    def answered(self, run: Run, worker: str, answer: Answer) -> None:
        """Pass a worker's answer to the loop, unless another attempt at the slice counted."""
        more = answer.parcel is not None and not answer.parcel.outcome.done
        if not self.counts(run, more=more):
            return
        for key, schema in answer.schemas.items():
            self.job.at.schemas.setdefault(key, schema)
        self.tallies.mine().add(answer.tally)
        result: Outcome | Failure | None = None
        if answer.error:
            result = Failure(received(answer.error))
        elif answer.parcel is not None:
            result = dataclasses.replace(answer.parcel.outcome, value=answer.parcel)
        with self.lock:
            self.loop.runtime.replayed += answer.replayed
            self.homes.pop(run.seq, None)
            if not isinstance(result, Failure):
                self.digests.pop(run.seq, None)
            if isinstance(result, Outcome) and not result.done:
                self.homes[run.seq] = worker
                self.digests[run.seq] = answer.digest
        self.ended(run, result, answer.seconds)

    def lost(self, run: Run, worker: str, error: WorkerLostError, place: int = -1) -> None:
        """Fail a slice whose worker was lost while it read unit ``place`` (-1: unknown)."""
        at = self.worked_on(run, place)
        error.at = f"{at}; {error.at}" if error.at else at
        self.failed(run, worker, error)

    def stuck(self, run: Run, worker: str, place: int) -> None:
        """Fail a slice whose worker was ended, since a call in it exceeded its time limit.

        The call held Python's lock, so that the worker could not make it an error of its row.
        """
        steps = (node.calls for node in self.job.steps)
        limited = [fn for fn in steps if fn is not None and fn.timeout is not None]
        names = " or ".join(dict.fromkeys(fn.name for fn in limited))
        error = FunctionTimeoutError(
            f"{names} did not return in time, and held Python's lock",
            at=self.worked_on(run, place),
            why="nothing else could run in its process, not even to give up this one row: the"
            " process was ended",
            try_="a function that lets other threads run, such as a regular expression that cannot"
            " backtrack for ever",
            operator=names,
        )
        error.seconds = min((fn.timeout or 0.0 for fn in limited), default=0.0)
        self.failed(run, worker, error)

    def failed(self, run: Run, worker: str, error: BaseException) -> None:
        """Fail a slice that could not be sent, or whose answer could not be processed."""
        found: BaseException = error
        if isinstance(error, Exception) and not isinstance(error, DmlError):
            found = InternalError(
                "a slice could not be carried out by a worker",
                why=worded(error),
                try_="report this with the full traceback",
            )
            found.__cause__ = error
        self.moved_out(worker)
        if self.counts(run, lost=True):
            self.ended(run, Failure(found), 0.0)

    def unwanted(self, run: Run) -> bool:
        """Return whether the answer of slice ``run`` is no longer needed."""
        return self.closing or not self.race.wanted(run)

    def worked_on(self, run: Run, place: int) -> str:
        """Return as text the unit at ``place``, or the first and the last unit of the task."""
        task, reading = self.loop.units[run.seq[0]], self.job.reading
        inside = task.start <= place < task.stop
        places = (place,) if inside else (task.start, task.stop - 1)
        try:
            found = dict.fromkeys(str(reading.unit_at(each).place) for each in places)
        except Exception as unknown:  # noqa: BLE001 (a source that changed: the loss counts)
            return f"task {run.seq}; what it read is not known: {unknown!r}"
        return " to ".join(found)

    def differing(self, run: Run, why: str) -> DmlError:
        """Return the error for a repeated partition of ``run`` that differs from the first."""
        linked = (node for link in self.job.links[: run.stage] for node in link.steps)
        return differing(why, unproven((*self.job.stage.steps, *linked)), self.worked_on(run, -1))

    def moved_out(self, worker: str) -> None:
        """Remove a lost worker; tasks whose generators were there begin again on other workers."""
        with self.lock:
            self.homes = {seq: home for seq, home in self.homes.items() if home != worker}

    def opened(self, outcome: Outcome) -> Outcome:
        """Return a stored parcel's partition, ready for the consumer."""
        return unpack(outcome.value) if isinstance(outcome.value, Parcel) else outcome
