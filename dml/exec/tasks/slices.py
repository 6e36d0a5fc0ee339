"""Run tasks in slices: a slice makes one partition; the task's generator is parked in between."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypedDict

from dml.base.fork_guard import ForkGuard
from dml.base.thread_seconds import thread_seconds
from dml.errors import NonDeterminismError, ReplayError, WorkerLostError
from dml.exec.memory.slice_gauge import GAUGE
from dml.exec.scheduler.concurrency import Tuning
from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import (
    Arrive,
    Close,
    Event,
    Free,
    Offer,
    Run,
    SliceDone,
    TaskFailed,
)
from dml.exec.scheduler.policy import MIB, Demand, Policy, Seq
from dml.exec.scheduler.shared_slots import Ledger
from dml.exec.tasks.replay_check import not_again

LIMIT_BYTES = 256 * MIB
WATCHDOG_S = 60.0

OnEvent = Callable[[dict[str, Any]], None]
OnSlice = Callable[[Run, "Outcome | Failure | None", float], None]
Start = Callable[[Any], Iterator["Outcome"]]
"""Begins the work of one unit (stage 0) or of one partition's value (later stages)."""


After = Callable[[bytes, Any], bytes]
"""Computes the digest of a task's partitions, from that of the earlier ones and the next value."""


@dataclass(slots=True)
class Outcome:
    """One partition, ``value`` with ``rows`` rows, as the result of a slice.

    ``rows_in`` are the input rows of its task, counted with the first partition; None: not known.
    ``held_bytes`` is the memory of ``value`` until it is consumed, ``parked_bytes`` that of the
    generator while it waits for the next slice, ``working_bytes`` the memory measured in addition
    to both while the slice ran. ``seconds`` and ``cpu_s`` are the elapsed and processor time of the
    slice's thread, ``others_s`` the processor time of other threads of the process. ``beside`` is
    the number of slices that ran when this one ended, including this one; ``share_s`` is the
    seconds since the slice was handed out, divided by ``beside``. ``queued_s`` are seconds in which
    the slice waited for a processor, if that was measured. With ``done`` the task has no
    further partition; without it, the next slice may still find that there is none. ``ends`` are
    rows of a unit that is read slowly: those inside atoms at which blocks ended since the partition
    before, then the last end. A repeated task ends its blocks there again (``ReadTask.ends``).
    """

    value: Any
    held_bytes: int
    rows: int
    done: bool = False
    parked_bytes: int = 0
    working_bytes: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    others_s: float = 0.0
    beside: int = 1
    share_s: float = 0.0
    queued_s: float = 0.0
    rows_in: int | None = None
    ends: tuple[int, ...] = ()


class Arriving(dict[int, Any]):
    """Tasks that arrive one by one, by number; each is removed when it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def add(self, task: Any) -> int:
        """Add a task, and return its number."""
        number, self.count = self.count, self.count + 1
        self[number] = task
        return number


Tasks: TypeAlias = "Sequence[Any] | Arriving"


class NotSent:
    """Placeholder for a task's argument, not sent to a worker that has parked the generator."""


class NotSentError(Exception):
    """Raised if a worker has lost a task's generator, and was not sent the task's argument."""


class Runtime:
    """The parked generators of one process; results are the same if a generator is dropped.

    In stages with ``once``, whose work must not be repeated, a dropped generator leads to an error.

    Parameters
    ----------
    starts : one ``Start`` per stage; each must yield the same partitions whenever it is called with
        the same argument, since a dropped generator is begun again and run up to its place
    after : function that adds a partition to a task's digest; None if repeated work isn't compared
    once : for each stage, the label of an operator whose tasks must begin only once, or ""
    """

    def __init__(
        self, starts: Sequence[Start], after: After | None = None, once: Sequence[str] = ()
    ) -> None:
        self.starts, self.after = tuple(starts), after
        self.once, self._begun = once, set[Seq]()
        self.replayed = 0
        self._parked: dict[Seq, _Begun] = {}

    def perform(
        self, run: Run, argument: Any, seen: bytes = b""
    ) -> tuple[Outcome | Failure | None, float]:
        """Return partition ``run.k`` of task ``run.seq`` and the seconds that it took to make.

        None stands for it if there is no such partition. ``seen`` is the digest of the task's
        earlier partitions. The failure has the error of the task; WorkerLostError if ``run.fault``
        requests a loss; NotSentError if ``argument`` is NotSent and the generator is not parked
        here; NonDeterminismError if a task that is begun again has fewer partitions than before, or
        a digest other than ``seen``; and ReplayError if the task must not be begun again.
        """
        start = time.perf_counter()
        try:
            task = self._resumed(run, argument, seen)
            with Measuring() as measured, ForkGuard():
                outcome = next(task.partitions, None)
            self._park(run, task, outcome)
            measured.note(outcome)
        except Exception as error:  # noqa: BLE001  (delivered at its place in order)
            return Failure(error), time.perf_counter() - start
        return outcome, time.perf_counter() - start

    def _resumed(self, run: Run, argument: Any, seen: bytes) -> _Begun:
        """Return the parked generator of a task, or a new one that has made the same partitions."""
        if run.fault == "drop":
            self.drop(run.seq)
        parked = self._parked.pop(run.seq, None)
        ends: Sequence[int] = getattr(argument, "ends", ())
        reached = ends[-1] if ends else 0
        # of two attempts at a slice, the one that did not count may have reached another row
        same = isinstance(argument, NotSent) or (parked is not None and parked.reached == reached)
        if parked is None or parked.k != run.k or not same:
            if self.once and self.once[run.stage]:
                self._begin_once(run)
            if isinstance(argument, NotSent):
                raise NotSentError(f"task {run.seq}, {run.k}")
            partitions = iter(self.starts[run.stage](argument))
            parked = _Begun(run.k, partitions, reached)
            if run.k:
                self._fast_forward(parked.partitions, run, seen)
        return parked

    def _park(self, run: Run, task: _Begun, outcome: Outcome | None) -> None:
        """Keep the generator of a task for its next slice, or close it if there is none."""
        if run.fault == "lose":
            raise WorkerLostError("a slice was lost on purpose", why=f"task {run.seq}, {run.k}")
        if outcome is not None and not outcome.done:
            reached = outcome.ends[-1] if outcome.ends else task.reached
            self._parked[run.seq] = _Begun(run.k + 1, task.partitions, reached)
        elif hasattr(task.partitions, "close"):
            task.partitions.close()

    def _begin_once(self, run: Run) -> None:
        """Record the start of a task that must start once; raise ReplayError if it has started."""
        if run.k or run.seq in self._begun:
            lost = WorkerLostError(
                "a task had to begin again", why="what it had made, or where it stood, was lost"
            )
            raise not_again(self.once[run.stage], lost)
        self._begun.add(run.seq)

    def _fast_forward(self, partitions: Iterator[Outcome], run: Run, seen: bytes) -> None:
        """Make and discard the task's first ``run.k`` partitions.

        Raise NonDeterminismError if there are fewer, or if digests are compared and differ.
        """
        found = b""
        for k in range(run.k):
            outcome = next(partitions, None)
            if outcome is None:
                raise NonDeterminismError(
                    f"unit {run.seq[0]} gave {k} partitions when run again, {run.k} before",
                    why="the same input must give the same partitions whenever it is run",
                    try_="declare the function impure, or remove its hidden state",
                )
            self.replayed += 1
            if seen and self.after is not None:
                found = self.after(found, outcome.value)
        if found != seen and self.after is not None:
            raise NonDeterminismError(
                f"unit {run.seq[0]} gave other partitions when run again",
                why=f"the first {run.k} of them are not those that were handed on before",
                try_="declare the function impure, or remove its hidden state",
            )

    def drop(self, seq: Seq) -> None:
        """Discard the generator of task ``seq``, if it is parked."""
        self._parked.pop(seq, None)

    def close(self) -> None:
        """Close and discard all generators (their ``finally`` clauses run)."""
        while self._parked:
            _, task = self._parked.popitem()
            if hasattr(task.partitions, "close"):
                task.partitions.close()


class _Begun(NamedTuple):
    """A task's generator before partition ``k``, and the row that its blocks have reached."""

    k: int
    partitions: Iterator[Outcome]
    reached: int


class Measuring:
    """Measures the memory and the time of a slice, which is made in the ``with`` block."""

    def __enter__(self) -> Self:
        self._begun, self._started = GAUGE.begin(), time.perf_counter()
        self._cpu_s, self._all_s = thread_seconds(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._taken_bytes = GAUGE.end(self._begun)
        self._seconds = time.perf_counter() - self._started
        self._cpu_s = thread_seconds() - self._cpu_s
        self._all_s = time.process_time() - self._all_s

    def note(self, outcome: Outcome | None) -> None:
        """Set the measured values of the partition that the slice made."""
        if outcome is not None:
            outcome.working_bytes = max(0, self._taken_bytes - outcome.parked_bytes)
            outcome.seconds, outcome.cpu_s = self._seconds, self._cpu_s
            outcome.others_s = max(0.0, self._all_s - self._cpu_s)


@dataclass(slots=True)
class Failure:
    """An exception in place of a partition; if ``final``, its slice is not run again."""

    error: BaseException
    final: bool = False


@dataclass(slots=True)
class RunTotals:
    """Totals of a run: slices and failures as counts, the time of slices in seconds."""

    slices: int = 0
    busy_s: float = 0.0
    failures: int = 0


class Reports(TypedDict, total=False):
    """Receivers of a driver's reports: of long waits, and of the end of each slice."""

    on_event: OnEvent | None
    on_slice: OnSlice | None


class Options(Reports, total=False):
    """Options of every driver's ``open``, in addition to the tasks and how they start.

    ``stages`` has, for each stage, the resources that a task needs; ``slots``, ``limit_bytes``,
    ``policy``, ``ordered``, ``settling``, ``ahead`` and ``ledger`` are those of ``Core``. A wait
    longer than ``watchdog_s`` seconds is reported to ``on_event`` as a dict, and the end of each
    slice to ``on_slice``, with its result and seconds. ``on_core`` is called
    with the core before the run begins; ``speculative`` is the value of that setting. With
    ``tuning``, threads may run more slices at once than there are slots.
    """

    stages: Sequence[Demand]
    slots: Mapping[str, float] | int
    limit_bytes: int
    policy: Policy | None
    ordered: bool
    settling: bool
    ahead: int | None
    watchdog_s: float
    on_core: Callable[[Core], None]
    speculative: bool | str
    ledger: Ledger | None
    tuning: Tuning | None


@dataclass(slots=True)
class DriverLoop:
    """Connects a Core with a Runtime: carries out actions, and stores partitions until consumed.

    Only one thread at a time may call methods, except ``argument``, which uses only a started task.
    """

    core: Core
    runtime: Runtime
    units: Tasks
    offers: deque[Seq] = field(default_factory=deque)
    stored: dict[Seq, Outcome | Failure] = field(default_factory=dict)
    ends: dict[Seq, array[int]] = field(default_factory=dict)
    tally: RunTotals = field(default_factory=RunTotals)
    on_slice: OnSlice | None = None

    @classmethod
    def over(
        cls,
        units: Tasks,
        start: Start | Sequence[Start],
        options: Options,
        slots: int,
        tuning: Tuning | None = None,
    ) -> DriverLoop:
        """Return the loop of a run over ``units``; ``slots`` is used if ``options`` has none."""
        core = Core(
            options.get("stages", (Demand(),)),
            options.get("slots", slots),
            options.get("limit_bytes", LIMIT_BYTES),
            options.get("policy"),
            ordered=options.get("ordered", True),
            settling=options.get("settling", False),
            ahead=options.get("ahead"),
            ledger=options.get("ledger"),
            tuning=tuning,
        )
        if "on_core" in options:
            options["on_core"](core)
        starts, once = (start,) if callable(start) else start, [d.once for d in core.demands]
        made = cls(core, Runtime(starts, once=once if any(once) else ()), units)
        made.on_slice = options.get("on_slice")
        return made

    def begin(self) -> list[Run]:
        """Announce to the core all tasks, or that tasks will arrive; return the first slices."""
        if isinstance(self.units, Arriving):
            return self.take(Arrive(0, last=False))
        return self.take(Arrive(len(self.units)))

    def take(self, event: Event) -> list[Run]:
        """Pass an event to the core, carry out its actions, and return the slices to run now."""
        runs: list[Run] = []
        for action in self.core.step(event, time.perf_counter()):
            if isinstance(action, Run):
                runs.append(action)
            elif isinstance(action, Offer):
                self.offers.append(action.seq)
            elif isinstance(action, Free):
                self.stored.pop(action.seq, None)
        return runs

    def end(self, run: Run, result: Outcome | Failure | None, seconds: float) -> list[Run]:
        """Store the result of a slice and inform the core; return the slices to run now."""
        if self.core.closed:
            return []
        self.tally.slices += 1
        self.tally.busy_s += seconds
        if self.on_slice is not None:
            self.on_slice(run, result, seconds)
        place = (*run.seq, run.k)
        if isinstance(result, Failure):
            return self._failed(run, result)
        if result is None:
            self.stored.pop(place, None)  # the failure of an earlier attempt
            return self.take(SliceDone(run.seq, None, seconds, more=False))
        self.stored[place] = result
        if result.done:
            self.ends.pop(run.seq, None)
        elif result.ends:
            known = self.ends.setdefault(run.seq, array("q"))
            del known[-1:]  # where the partition before ended, if not inside an atom
            known.extend(result.ends)
        result.beside = len(self.core.active)
        task = self.core.active.get(run.seq)
        if task is not None:
            result.share_s = (time.perf_counter() - task.started) / result.beside
        more, held = not result.done, result.held_bytes
        sizes = result.parked_bytes, result.working_bytes
        rows = result.rows if result.rows_in is None else result.rows_in
        times = result.cpu_s + result.queued_s, held / max(1, result.rows), result.others_s
        return self.take(SliceDone(run.seq, held, seconds, more, *sizes, rows, *times))

    def _failed(self, run: Run, result: Failure) -> list[Run]:
        """Store the error of a slice; return the slices to run now."""
        self.tally.failures += 1
        error, once = result.error, self.core.demands[run.stage].once
        if once and isinstance(error, WorkerLostError):
            error = error if isinstance(error, ReplayError) else not_again(once, error)
        self.stored[*run.seq, run.k] = Failure(error)
        lost = isinstance(error, WorkerLostError) and not (once or result.final)
        return self.take(TaskFailed(run.seq, lost))

    def forget(self) -> None:
        """Close the core and drop every stored partition, but not the parked generators."""
        self.take(Close())
        self.offers.clear()
        self.stored.clear()
        self.ends.clear()

    def argument(self, run: Run) -> Any:
        """Return the argument of the task: a value in ``units`` in stage 0, later stored pieces."""
        if run.stage == 0:
            task, ends = self.units[run.seq[0]], self.ends.get(run.seq)
            return task if ends is None else replace(task, ends=ends)
        source = self.stored[run.seq]
        return source.value if isinstance(source, Outcome) else None


class PartitionFeed(Protocol):
    """Partitions of a run, in order, from a driver."""

    def next(self) -> Outcome | None:
        """Return the next partition; None if exhausted."""

    def settled(self) -> None:
        """Tell the driver that every schema is known, so that units may be read out of order."""

    def close(self) -> None:
        """Stop the driver."""


Driven: TypeAlias = Callable[[int, int], PartitionFeed]
"""A function that starts the driver of a job at a unit's place and an atom's number in the unit."""
