"""The common base of drivers with workers: a loop under one lock, and the feed that consumes it."""

from __future__ import annotations

import abc
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from dml.errors import InternalError
from dml.exec.drivers.sync import LEFT, LeftError, SyncFeed
from dml.exec.scheduler.messages import Consumed, Event, Run, Tick
from dml.exec.tasks.slices import DriverLoop, Failure, OnEvent, Outcome

TICK_S = 0.5  # between two checks by a waiting consumer
MORE_S = 0.1  # between two checks by a consumer that adds tasks while it waits
CLEAN_S = 0.1  # wait after which this thread is taken to hold the lock that crews share


class Crew(abc.ABC):
    """Workers of one kind, and the loop that tells them what to run.

    Any thread that has a result steps the core, under one lock. A subclass defines how slices are
    handed out (``hand_out``) and how its workers are dismissed (``leave``), and passes the result
    of each slice to ``ended``. ``dismiss`` takes no lock, since garbage collection may call it in
    any thread. A crew does not refer to its feed, so that a dropped feed is freed.
    """

    def __init__(self, loop: DriverLoop) -> None:
        self.loop = loop
        self.ledger = loop.core.ledger
        self.lock = threading.Lock() if self.ledger is None else self.ledger.lock
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.waiting = self.closing = self.eager = False
        self.broken: BaseException | None = None
        self.threads = list[threading.Thread]()  # that run slices

    @abc.abstractmethod
    def hand_out(self, runs: Iterable[Run]) -> None:
        """Give slices to workers; the caller holds the lock."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Ask all workers to stop, without blocking."""

    def join(self, deadline: float) -> None:
        """Wait until running slices have ended, at most until ``deadline`` (``perf_counter``)."""
        for thread in list(self.threads):
            thread.join(max(0.0, deadline - time.perf_counter()))

    def ended(self, run: Run, result: Outcome | Failure | None, seconds: float) -> None:
        """Pass a slice's result (None: its task is over) to the loop, and start the next slices."""
        with self.lock:
            self.proceed(partial(self.loop.end, run, result, seconds))
            with self._breaking():
                self.others()
            self.wake()

    def proceed(self, take: Callable[[], Iterable[Run]]) -> None:
        """Hand out the slices that ``take`` returns, unless closing; the caller holds the lock."""
        with self._breaking():
            if not self.closing:
                self.hand_out(take())

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Pass any error of the block to the consumer, which would wait for ever otherwise."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self.broken = error
            self.wake()

    def others(self) -> None:
        """Let the run's other crews start slices if they can; the caller holds the lock."""
        if self.ledger is not None:
            self.ledger.changed(self.loop.core)

    def relaunch(self) -> None:
        """Start slices after another crew has freed resources; the caller holds the lock."""
        self.proceed(partial(self.loop.take, Tick()))

    def tick(self) -> None:  # noqa: B027 (not every kind of worker needs it)
        """Do periodic work of this kind of worker while the consumer waits."""

    def opened(self, outcome: Outcome) -> Outcome:
        """Return a stored partition in the form for the consumer."""
        return outcome

    def wake(self) -> None:
        """Wake the consumer if it has something to receive; the caller holds the lock."""
        seen = self.loop.offers or self.loop.core.finished or self.broken
        if self.waiting and (seen or self.eager):
            self.waiting = False
            self.news.put(None)

    def dismiss(self) -> None:
        """Ask all workers to stop, and wake the consumer, without blocking."""
        self.closing = True
        self.leave()
        self.news.put(None)

    def clean(self) -> None:
        """Drop stored and parked partitions, unless another thread has the lock and will do so."""
        # other crews release a shared lock soon, unless this thread holds it
        if self.lock.acquire(timeout=0.0 if self.ledger is None else CLEAN_S):
            try:
                self.loop.forget()
                self.others()
            finally:
                self.lock.release()
            self.loop.runtime.close()


class CrewFeed(SyncFeed):
    """Partitions of a run, in order, which a crew computes ahead as far as memory allows.

    The guarantees are those of ``SyncFeed``. The crew is dismissed by ``close``, when the feed is
    dropped, and at interpreter exit. A slice that still runs then is not waited for, and its result
    is dropped. Arguments of tasks must not reference the feed, or it is never freed.
    """

    def __init__(self, crew: Crew, watchdog_s: float, on_event: OnEvent | None) -> None:
        self._crew = crew
        super().__init__(crew.loop, watchdog_s, on_event)

    def _begin(self) -> None:
        self._dismiss = weakref.finalize(self, self._crew.dismiss)
        with self._crew.lock:
            if self._crew.ledger is not None:
                self._crew.ledger.join(self._loop.core, self._crew.relaunch)
            self._crew.hand_out(self._loop.begin())

    def next(self, more: Callable[[], None] | None = None) -> Outcome | None:
        """Return the next partition, or None after the last; raise the error of its unit.

        ``more``, which may add tasks, is called repeatedly while the caller waits.
        """
        crew, loop = self._crew, self._loop
        crew.eager = more is not None
        while not crew.closing:
            with crew.lock:
                self._check()
                self._let_go()
                result = self._offered()
                crew.closing |= result is None and loop.core.finished
                crew.waiting = result is None and not crew.closing
                loop.core.awaited = crew.waiting or crew.ledger is None
                if crew.waiting and crew.ledger is not None:
                    crew.relaunch()
            if result is not None:
                return self._opened(result)
            if crew.waiting:
                self._wait(more)
            if more is not None and not crew.closing:
                more()
        self.close()
        return None

    def close(self, join_s: float = 0.0) -> None:
        """Stop and drop everything, on any thread; wait up to ``join_s`` seconds for slices."""
        self._held = None
        self._dismiss()
        self._crew.clean()
        if join_s:
            self._crew.join(time.perf_counter() + join_s)

    def _opened(self, result: Outcome | Failure) -> Outcome:
        return self._crew.opened(super()._opened(result))

    def _tell(self, event: Event) -> None:
        with self._crew.lock:
            self._step(event)

    def _let_go(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._step(Consumed(held))

    def _step(self, event: Event) -> None:
        """Pass an event to the core, and start slices; the caller holds the lock."""
        try:
            self._crew.hand_out(self._loop.take(event))
            self._crew.others()
        except BaseException as error:
            self._crew.broken = error
            raise

    def _offered(self) -> Outcome | Failure | None:
        """Return the next partition in order, or None; the caller holds the lock."""
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

    def _wait(self, more: Callable[[], None] | None) -> None:
        """Wait for a result of a worker, and report to ``on_event`` when it takes long.

        Raise LeftError once the output of this thread is not needed, since it would wait for ever.
        """
        start, told, left = time.perf_counter(), 1, LEFT.get()
        tick_s = min(TICK_S if more is None else MORE_S, self._watchdog_s)
        while True:
            with suppress(queue.Empty):  # what interrupts the rest has no other error as its cause
                self._crew.news.get(timeout=tick_s)
                break
            if self._over():
                break
            if left():
                raise LeftError
            if more is not None:
                more()
            self._crew.tick()
            waited_s = time.perf_counter() - start
            if waited_s >= told * self._watchdog_s:
                told += 1
                self._watch(waited_s)
        self._waited_s += time.perf_counter() - start

    def _over(self) -> bool:
        """Return True if all workers are lost, so that waiting is useless; here always False."""
        return False

    def _watch(self, waited_s: float) -> None:
        with self._crew.lock:
            running = sorted(self._loop.core.running(), key=lambda pair: pair[1])
        now = time.perf_counter()
        oldest = next(((run, now - started) for run, started in running), None)
        self._stalled(oldest, waited_s)
