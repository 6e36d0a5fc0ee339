"""This file runs a pipeline on processes of this host, for work that holds Python's lock."""

from __future__ import annotations

import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from dml.errors import WorkerLostError
from dml.exec.backends.crew import CrewFeed
from dml.exec.backends.remote import RemoteCrew
from dml.exec.channel import Channel, Message
from dml.exec.desk import Answer, Order, written
from dml.exec.job import Job
from dml.exec.messages import Run
from dml.exec.meter import Tallies
from dml.exec.slices import WATCHDOG_S, Failure, Loop, Options

# One thread for each of these libraries: a worker is one slot.
SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
GONE_S = 10.0


class Worker:
    """A worker process and the connection to it."""

    _names = itertools.count()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.name = f"worker-{next(self._names)}"
        self.jobs: set[str] = set()
        path = os.pathsep.join(sys.path)  # modules are found as they are here
        single = dict.fromkeys(SINGLE, "1")
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 (this interpreter, no words of others)
                [sys.executable, "-P", "-m", "dml.exec.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **single, "PYTHONPATH": path},
            )
        self.channel = Channel(ours)

    def do(self, order: Order, job: Message) -> Answer:
        """Carry out an order; WorkerLostError if the process dies meanwhile."""
        try:
            if order.name not in self.jobs:
                self.channel.post(job)
                self.jobs.add(order.name)
            self.channel.send(order)
            answer: Answer = self.channel.receive()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return answer

    def forget(self, name: str) -> bool:
        """Let go of a run; False if the process is gone."""
        if name not in self.jobs:
            return self.process.poll() is None
        self.jobs.discard(name)
        try:
            self.channel.send(("close", name))
        except OSError:
            return False
        return True

    def _lost(self) -> WorkerLostError:
        self.channel.close()
        try:
            code = self.process.wait(GONE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return WorkerLostError(
            "a worker process died",
            at=f"process {self.process.pid}",
            why=f"killed by signal {-code}" if code < 0 else f"it ended with code {code}",
            try_="a larger memory_limit= if it ran out of memory; its work is done again",
        )

    def close(self) -> None:
        """End the process."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


class Pool:
    """Workers that wait for the next run: starting one takes a third of a second."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    def take(self) -> Worker:
        """A worker that lives."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
        return Worker()

    def give_back(self, worker: Worker) -> None:
        """A worker that has nothing to do."""
        with self._lock:
            self._idle.append(worker)

    def close(self) -> None:
        """End those that wait."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()


POOL = Pool()


class _Processes(RemoteCrew):
    """A thread per worker sends orders and waits for answers."""

    def __init__(self, loop: Loop, job: Job, tallies: Tallies, count: int) -> None:
        super().__init__(loop, job, tallies)
        self.message = Message(("job", self.name, *written(job)))
        self.desks = {f"desk-{i}": _Desk(self, f"desk-{i}") for i in range(count)}

    def hand_out(self, runs: Iterable[Run]) -> None:
        """Give each slice to the home of its task, or to who has the least to do."""
        for run in runs:
            home = self.homes.get(run.seq)
            least = min(self.desks.values(), key=lambda desk: desk.waiting)
            (self.desks[home] if home else least).take(run)

    def leave(self) -> None:
        """Ask all workers to go; never blocks."""
        for desk in self.desks.values():
            desk.tasks.put(None)

    def join(self, deadline: float) -> None:
        """Wait for slices that still run, until ``deadline`` at the latest."""
        for desk in self.desks.values():
            if desk.thread is not None:
                desk.thread.join(max(0.0, deadline - time.perf_counter()))


class _Desk:
    """The place of one worker: if it dies, another one sits down."""

    def __init__(self, crew: _Processes, name: str) -> None:
        self.crew, self.name = crew, name
        self.tasks: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self.waiting = 0
        self.worker: Worker | None = None

    def take(self, run: Run) -> None:
        """One more slice for this place; the caller holds the lock."""
        self.waiting += 1
        self.tasks.put(run)
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, name=self.name, daemon=True)
            self.thread.start()

    def work(self) -> None:
        """Serve slices until the crew is dismissed."""
        crew = self.crew
        while (run := self.tasks.get()) is not None and not crew.closing:
            self.serve(run)
        if self.worker is not None and self.worker.forget(crew.name):
            POOL.give_back(self.worker)
        crew.clean()

    def serve(self, run: Run) -> None:
        """One slice: its answer, or the loss of the worker, goes to the crew."""
        crew = self.crew
        with crew.lock:
            order = crew.order(run)
        self.worker = self.worker or POOL.take()
        try:
            answer = self.worker.do(order, crew.message)
        except WorkerLostError as error:
            self.worker = None
            crew.moved_out(self.name)
            self.waiting -= 1
            crew.ended(run, Failure(error), 0.0)
        else:
            self.waiting -= 1
            crew.answered(run, self.name, answer)


class Processes:
    """Driver of ``executor="processes"``: worker processes on this host, no cluster."""

    def open(
        self, tasks: Sequence[Any], job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> CrewFeed:
        """Begin the tasks of ``job``; for the rest see ``Options``."""
        loop = Loop.over(tasks, (), options, slots=2)
        count = int(loop.core.total["cpu"])
        crew = _Processes(loop, job, tallies, count)
        return CrewFeed(crew, options.get("watchdog_s", WATCHDOG_S), options.get("on_event"))
