"""A driver runs tasks in the caller's own thread, so that a debugger sees everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Unpack

from dml.exec.scheduler.messages import (
    Arrive,
    Consumed,
    Event,
    Run,
    Settled,
    Tick,
    Unordered,
)
from dml.exec.scheduler.policy import Seq
from dml.exec.tasks.slices import (
    WATCHDOG_S,
    DriverLoop,
    Failure,
    OnEvent,
    Options,
    Outcome,
    Start,
    Tasks,
)

# Tells whether the results of work in the current context are no longer needed.
LEFT: ContextVar[Callable[[], bool]] = ContextVar("left", default=lambda: False)


class LeftError(BaseException):
    """Raised in a thread that waits for a partition which is no longer needed."""


class SyncFeed:
    """Partitions of a run, in order, each made on request.

    ``next()`` returns the partitions of each unit in order, unit by unit, whatever the policy, the
    slots and the memory; the exception of a unit is raised at its place. A partition is charged to
    the memory limit until ``release()``, the next ``next()`` or ``close()``. Only one thread at a
    time may call the feed. ``at`` is the place (unit, slice, ...) of the last partition.
    """

    at: Seq = ()
    threaded = False
    """Whether slices run side by side in threads of this process."""

    def __init__(self, loop: DriverLoop, watchdog_s: float, on_event: OnEvent | None) -> None:
        self._loop, self._watchdog_s, self._on_event = loop, watchdog_s, on_event
        self._held: Seq | None = None
        self._waited_s = 0.0
        self._pending: deque[Run] = deque()
        self._begin()

    def give(self, task: Any) -> int:
        """Add a task to a run whose tasks arrive one by one, and return its number."""
        number = self._loop.units.add(task)  # type: ignore[union-attr]
        self._tell(Arrive(1, last=False))
        return number

    def forget(self, number: int) -> None:
        """Remove a task that has delivered all its partitions."""
        self._loop.units.pop(number, None)  # type: ignore[union-attr]

    @property
    def parallel(self) -> int:
        """Number of slices of the last stage that may run at once."""
        return int(self._loop.core.state.loads[-1].parallel)

    def narrow(self, width: int | None) -> None:
        """Run at most ``width`` slices of a stage at once from now on; None ends a bound."""
        self._loop.core.width = width
        self._tell(Tick())

    def unlocked(self) -> None:
        """Note that slices do not hold the GIL, so that more may run at once where they wait."""
        self._loop.core.tuning.unlocked()

    def alone(self) -> None:
        """Run slices one at a time, since their functions hold the GIL."""
        self.narrow(1)
        self._loop.core.tuning.locked()

    @property
    def ready(self) -> bool:
        """Whether ``next`` returns a partition without waiting for a worker."""
        return bool(self._loop.offers)

    @property
    def unfinished(self) -> int:
        """Number of tasks that have not delivered all their partitions."""
        return self._loop.core.live

    def next(self, more: Callable[[], None] | None = None) -> Outcome | None:
        """Return the next partition, or None after the last; raise the error of its unit.

        After an exception or ``close``, return None. Only feeds with parallel workers use ``more``.
        """
        self.release()
        while not self._loop.offers:
            if self._loop.core.finished:
                self.close()
                return None
            if not self._pending:
                self._await()
            run = self._pending[0]
            self._ran(run, *self._loop.runtime.perform(run, self._loop.argument(run)))
        self.at = self._held = self._loop.offers.popleft()
        return self._opened(self._loop.stored[self.at])

    def release(self) -> None:
        """Release the last partition, which the consumer no longer holds; ``next`` does so, too."""
        if self._held is not None:
            held, self._held = self._held, None
            self._tell(Consumed(held))

    def settled(self) -> None:
        """Tell the core that the first rows have settled all schemas: units may run in parallel."""
        self._tell(Settled())

    def unordered(self) -> None:
        """Deliver partitions as they are made from now on, whatever their order."""
        self._tell(Unordered())

    def close(self) -> None:
        """Stop, drop stored partitions and close parked generators; may be called at any time."""
        self._held = None
        self._pending.clear()
        self._loop.forget()
        self._loop.runtime.close()

    def stats(self) -> dict[str, float]:
        """Return counts of slices, failures, replays and forced starts; seconds; peak bytes."""
        loop = self._loop
        return {
            "slices": loop.tally.slices,
            "busy_s": loop.tally.busy_s,
            "failures": loop.tally.failures,
            "replayed": loop.runtime.replayed,
            "waited_s": self._waited_s,
            "peak_bytes": loop.core.peak_bytes,
            "forced": loop.core.forced,
        }

    def _begin(self) -> None:
        core = self._loop.core
        if core.ledger is not None:
            core.ledger.join(core, partial(self._tell, Tick()))
        self._pending.extend(self._loop.begin())

    def _tell(self, event: Event) -> None:
        self._pending.extend(self._loop.take(event))

    def _await(self) -> None:
        """Let the core start the slice that the caller waits for, even beyond the memory limit."""
        self._loop.core.awaited = True
        self._tell(Tick())
        self._loop.core.awaited = self._loop.core.ledger is None

    def _opened(self, result: Outcome | Failure) -> Outcome:
        if isinstance(result, Outcome):
            return result
        self.close()
        raise result.error

    def _ran(self, run: Run, result: Outcome | Failure | None, seconds: float) -> None:
        """Note the end of a slice; after an interrupt, which skips this, it is run again."""
        self._pending.popleft()
        self._waited_s += seconds
        if seconds > self._watchdog_s:
            self._stalled((run, seconds), seconds)
        self._pending.extend(self._loop.end(run, result, seconds))

    def _stalled(self, oldest: tuple[Run, float] | None, waited_s: float) -> None:
        """Report a stall to ``on_event``, with the slice that has run longest and its seconds."""
        if self._on_event is None:
            return
        event: dict[str, Any] = {"event": "stalled", "waited_s": waited_s}
        if oldest is not None:
            run, seconds = oldest
            stage = self._loop.core.demands[run.stage].name
            event |= {"stage": stage, "unit": run.seq[0], "slice": run.k, "running_s": seconds}
        self._on_event(event)


class Sync:
    """Driver of ``executor="sync"``: one slot, no threads, every partition made on request."""

    def open(
        self, units: Tasks, start: Start | Sequence[Start], **options: Unpack[Options]
    ) -> SyncFeed:
        """Begin a run over ``units``, each passed to ``start``, in delivery order.

        ``start`` is a generator function that yields a unit's partitions. For several stages, it is
        a sequence of such functions; later ones get the value of a partition.
        """
        loop = DriverLoop.over(units, start, options, slots=1)
        return SyncFeed(loop, options.get("watchdog_s", WATCHDOG_S), options.get("on_event"))
