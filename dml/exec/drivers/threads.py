"""A driver runs tasks in threads of the caller's process, ahead of the caller."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Unpack

from dml.base.single_thread import single_threaded
from dml.errors import WorkerLostError
from dml.exec.drivers.crew import Crew, CrewFeed
from dml.exec.scheduler.messages import Run
from dml.exec.tasks.error_row import started
from dml.exec.tasks.slices import WATCHDOG_S, DriverLoop, Failure, Options, Outcome, Start, Tasks

# Seconds of a slice from which on it is worth asking how long it waited for a processor.
LONG_S = 0.001
# Seconds that an ending process waits for slices that still run.
ENDING_S = 5.0


class RunQueue:
    """Measures how long the current thread waited for a processor; 0 where the system hides it."""

    def __init__(self) -> None:
        self._before_s = self._read()

    def waited_s(self) -> float:
        """Return the seconds since the last call in which the thread waited for a processor."""
        now_s = self._read()
        waited_s, self._before_s = now_s - self._before_s, now_s
        return waited_s

    def _read(self) -> float:
        try:  # the file is not kept open: there may be many threads
            file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            try:
                return int(os.read(file, 128).split()[1]) * 1e-9
            finally:
                os.close(file)
        except (OSError, ValueError, IndexError):
            return 0.0


class _Threads(Crew):
    """Worker threads; each takes its next slice itself, without a switch to another thread.

    A thread is started when a slice finds no idle one. All threads are daemons.
    """

    def __init__(self, loop: DriverLoop) -> None:
        super().__init__(loop)
        self.tasks: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self.idle = 0
        _CREWS.add(self)

    def hand_out(self, runs: Iterable[Run]) -> None:
        """Give slices to idle workers, or to new ones; the caller holds the lock."""
        for run in runs:
            self.tasks.put(run)
            if self.idle:
                self.idle -= 1
                continue
            name = f"dml-{len(self.threads)}"
            worker = threading.Thread(target=_work, args=(self,), name=name, daemon=True)
            try:
                started(worker)
            except WorkerLostError:
                if not self.loop.core.tuning.stop():
                    raise
                continue  # the other threads take the slice in their turn
            self.threads.append(worker)

    def perform(self, run: Run, waits: RunQueue) -> Run | None:
        """Run one slice, report it to the core, and return the slice to run next, or None."""
        try:
            with single_threaded():
                result, seconds = self.loop.runtime.perform(run, self.loop.argument(run))
        except BaseException as error:  # noqa: BLE001  (even an exit is the consumer's to see)
            result, seconds = Failure(error), 0.0
        if isinstance(result, Outcome) and seconds - result.cpu_s > LONG_S:
            result.queued_s = min(waits.waited_s(), seconds - result.cpu_s)
        with self.lock:
            try:
                runs = [] if self.closing else self.loop.end(run, result, seconds)
                self.hand_out(runs[1:])
                self.others()
                self.idle += not runs
                return runs[0] if runs else None
            except BaseException as error:  # noqa: BLE001  (or the consumer would wait for ever)
                self.broken = error
                return None
            finally:
                self.wake()

    def leave(self) -> None:
        """Ask all threads to stop, without blocking."""
        for _ in self.threads:
            self.tasks.put(None)


def _work(crew: _Threads) -> None:
    run: Run | None = None
    waits = RunQueue()
    while True:
        run = run or crew.tasks.get()
        if run is None or crew.closing:
            break
        run = crew.perform(run, waits)
    crew.clean()


_CREWS: weakref.WeakSet[_Threads] = weakref.WeakSet()


def _end_all() -> None:
    """End the slices of open runs at interpreter exit, before libraries they use are torn down."""
    deadline = time.perf_counter() + ENDING_S
    for crew in list(_CREWS):
        crew.dismiss()
    for crew in list(_CREWS):
        crew.join(deadline)


atexit.register(_end_all)


class ThreadsFeed(CrewFeed):
    """Partitions of a run, in order, made by threads of this process."""

    threaded = True


class Threads:
    """Driver with worker threads in the caller's process."""

    def open(
        self, units: Tasks, start: Start | Sequence[Start], **options: Unpack[Options]
    ) -> CrewFeed:
        """Begin a run over ``units``; the parameters are those of ``Sync.open``."""
        loop = DriverLoop.over(units, start, options, slots=2, tuning=options.get("tuning"))
        crew = _Threads(loop)
        return ThreadsFeed(crew, options.get("watchdog_s", WATCHDOG_S), options.get("on_event"))
