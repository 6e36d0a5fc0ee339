"""This file runs a pipeline on threads of the caller's process, ahead of the caller."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from dml.exec.backends.crew import Crew, CrewFeed
from dml.exec.messages import Run
from dml.exec.slices import WATCHDOG_S, Failure, Loop, Options, Outcome, Start


class _Threads(Crew):
    """A worker that ends a slice takes its next one itself, without a hop through another thread.

    Threads are made when a slice finds no idle one, and are daemons.
    """

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.tasks: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self.idle = 0
        self.threads: list[threading.Thread] = []

    def hand_out(self, runs: Iterable[Run]) -> None:
        """Give slices to idle workers, or to new ones; the caller holds the lock."""
        for run in runs:
            self.tasks.put(run)
            if self.idle:
                self.idle -= 1
                continue
            name = f"dml-{len(self.threads)}"
            worker = threading.Thread(target=_work, args=(self,), name=name, daemon=True)
            self.threads.append(worker)
            worker.start()

    def perform(self, run: Run) -> Run | None:
        """Run one slice, tell the core, and return the slice to run next, if there is one."""
        try:
            result, seconds = self.loop.perform(run)
        except BaseException as error:  # noqa: BLE001  (even an exit is the consumer's to see)
            result, seconds = Failure(error), 0.0
        with self.lock:
            try:
                return self.finish(run, result, seconds)
            except BaseException as error:  # noqa: BLE001  (or the consumer would wait for ever)
                self.broken = error
                return None
            finally:
                self.wake()

    def finish(self, run: Run, result: Outcome | Failure | None, seconds: float) -> Run | None:
        """Take a result into the loop; the caller holds the lock."""
        runs = [] if self.closing else self.loop.end(run, result, seconds)
        self.hand_out(runs[1:])
        if runs:
            return runs[0]
        self.idle += 1
        return None

    def leave(self) -> None:
        """Ask all threads to go; never blocks."""
        for _ in self.threads:
            self.tasks.put(None)

    def join(self, deadline: float) -> None:
        """Wait for slices that still run, until ``deadline`` at the latest."""
        for worker in self.threads:
            worker.join(max(0.0, deadline - time.perf_counter()))


def _work(crew: _Threads) -> None:
    run: Run | None = None
    while True:
        run = run or crew.tasks.get()
        if run is None or crew.closing:
            break
        run = crew.perform(run)
    crew.clean()


class Threads:
    """Driver of ``executor="threads"``: worker threads in the caller's process, no cluster."""

    def open(
        self, units: Sequence[Any], start: Start | Sequence[Start], **options: Unpack[Options]
    ) -> CrewFeed:
        """Begin a run over ``units``; the parameters are those of ``Sync.open``."""
        loop = Loop.over(units, start, options, slots=2)
        crew = _Threads(loop)
        return CrewFeed(crew, options.get("watchdog_s", WATCHDOG_S), options.get("on_event"))
