"""This file runs a pipeline on threads of the caller's process, ahead of the caller."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from dml.errors import InternalError
from dml.exec.backends.sync import Feed
from dml.exec.messages import Consumed, Event, Run
from dml.exec.slices import WATCHDOG_S, Failure, Loop, Options, Outcome, Start


class _Crew:
    """Workers and the loop they share; knows no feed, so that a forgotten feed can die.

    The core is stepped by whoever has news, under one lock: a worker that ends a slice takes its
    next one itself, without a hop through another thread. Threads are made when a slice finds no
    idle one, and are daemons. ``dismiss`` takes no lock, since it may run inside garbage
    collection in any thread.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.lock = threading.Lock()
        self.tasks: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.idle, self.waiting, self.closing = 0, False, False
        self.broken: BaseException | None = None
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

    def wake(self) -> None:
        """Wake the consumer if it waits and has something to see; the caller holds the lock."""
        if self.waiting and (self.loop.offers or self.loop.core.finished or self.broken):
            self.waiting = False
            self.news.put(None)

    def dismiss(self) -> None:
        """Ask all workers to go, and wake the consumer; never blocks."""
        self.closing = True
        for _ in self.threads:
            self.tasks.put(None)
        self.news.put(None)

    def clean(self) -> None:
        """Forget what is stored and parked, unless somebody else is at it and will do so."""
        if self.lock.acquire(blocking=False):
            try:
                self.loop.forget()
            finally:
                self.lock.release()
            self.loop.runtime.close()


def _work(crew: _Crew) -> None:
    run: Run | None = None
    while True:
        run = run or crew.tasks.get()
        if run is None or crew.closing:
            break
        run = crew.perform(run)
    crew.clean()


class ThreadFeed(Feed):
    """Partitions of a run, in order, made ahead by worker threads as far as memory allows.

    The laws are those of ``Feed``. The threads end with ``close``, when the feed is forgotten, and
    at interpreter exit; a slice that is running then ends first, its result is dropped, and nobody
    waits for it. ``start`` must not hold the feed, or it is never forgotten.
    """

    def _begin(self) -> None:
        self._crew = _Crew(self._loop)
        self._dismiss = weakref.finalize(self, self._crew.dismiss)
        with self._crew.lock:
            self._crew.hand_out(self._loop.begin())

    def next(self) -> Outcome | None:
        """The next partition, or None after the last; raises what its unit raised."""
        crew, loop = self._crew, self._loop
        while not crew.closing:
            with crew.lock:
                self._check()
                self._let_go()
                result = self._offered()
                crew.closing |= result is None and loop.core.finished
                crew.waiting = result is None and not crew.closing
            if result is not None:
                return self._opened(result)
            if crew.waiting:
                self._wait()
        self.close()
        return None

    def release(self) -> None:
        """Tell that the partition last given is no longer held; ``next`` does it too."""
        with self._crew.lock:
            self._let_go()

    def close(self, join_s: float = 0.0) -> None:
        """Stop and forget all; may be called at any time, from anywhere, and never hangs.

        ``join_s`` waits up to so many seconds for slices that still run.
        """
        self._held = None
        self._dismiss()
        self._crew.clean()
        deadline = time.perf_counter() + join_s
        for worker in self._crew.threads if join_s else ():
            worker.join(max(0.0, deadline - time.perf_counter()))

    def _tell(self, event: Event) -> None:
        with self._crew.lock:
            self._step(event)

    def _let_go(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._step(Consumed(held))

    def _step(self, event: Event) -> None:
        """Step the core from the consumer's side; the lock is held."""
        try:
            self._crew.hand_out(self._loop.take(event))
        except BaseException as error:
            self._crew.broken = error
            raise

    def _offered(self) -> Outcome | Failure | None:
        """What stands next in order, if it is made; the lock is held."""
        if not self._loop.offers:
            return None
        self.at = self._held = self._loop.offers.popleft()
        return self._loop.stored[self.at]

    def _check(self) -> None:
        if self._crew.broken is not None:
            self._dismiss()
            raise InternalError(
                "the run stopped inside its scheduler", why=repr(self._crew.broken)
            ) from self._crew.broken

    def _wait(self) -> None:
        """Sleep until a worker has news, telling ``on_event`` when it takes long."""
        start = time.perf_counter()
        while True:
            try:
                self._crew.news.get(timeout=self._watchdog_s)
                break
            except queue.Empty:
                self._watch(time.perf_counter() - start)
        self._waited_s += time.perf_counter() - start

    def _watch(self, waited_s: float) -> None:
        with self._crew.lock:
            running = sorted(self._loop.core.running(), key=lambda pair: pair[1])
        now = time.perf_counter()
        oldest = next(((run, now - started) for run, started in running), None)
        self._stalled(oldest, waited_s)


class Threads:
    """Driver of ``executor="threads"``: worker threads in the caller's process, no cluster."""

    def open(
        self, units: Sequence[Any], start: Start | Sequence[Start], **options: Unpack[Options]
    ) -> ThreadFeed:
        """Begin a run over ``units``; the parameters are those of ``Sync.open``."""
        loop = Loop.over(units, start, options, slots=2)
        return ThreadFeed(loop, options.get("watchdog_s", WATCHDOG_S), options.get("on_event"))
