"""A call of a user's function that takes longer than its ``timeout=`` is abandoned.

The call runs in a helper thread, while the thread that needs its result waits. Python cannot end a
thread, so an abandoned call continues in its thread, and its result is discarded. A worker process
with an abandoned call is ended once it has answered; in other processes, each thread may abandon
one call at a time.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from contextvars import Context, copy_context
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from dml.base.fork_guard import ForkGuard, end_copy
from dml.base.single_thread import SINGLE, single_threaded
from dml.base.thread_seconds import work_for
from dml.expr.user_call import TimedOutError

# Seconds after which a helper thread without a call ends.
IDLE_S = 0.5


class _Order(NamedTuple):
    """Work for a helper thread, in the context of thread ``waiting``, which waits for the result.

    If the work itself calls functions with time limits, ``watch`` records when each call begins.
    """

    waiting: int
    context: Context
    work: Callable[..., Any]
    args: tuple[Any, ...]
    watch: CallWatch | None


class _Running(NamedTuple):
    """A call that began at the monotonic time ``began`` and may take ``limit_s`` seconds."""

    began: float
    limit_s: float


class CallWatch:
    """The current call of a helper thread, read by the thread that may abandon it."""

    def __init__(self) -> None:
        self.running: _Running | None = None
        self._lock, self._stopped = threading.Lock(), False

    def begin(self, limit_s: float) -> None:
        """Record that a call begins now."""
        began = time.monotonic()
        GIVEN_UP.due(int((began + limit_s) * 1e9))
        self.running = _Running(began, limit_s)

    def end(self) -> None:
        """Record that the call has ended; raise AbandonedError if it was abandoned meanwhile."""
        with self._lock:
            self.running = None
            if self._stopped:
                raise AbandonedError
        GIVEN_UP.due(-1)

    def stop(self, call: _Running | None = None) -> bool:
        """Abandon the current call; return False if it is no longer ``call`` (None: any call)."""
        with self._lock:
            self._stopped = call is None or self.running is call
            return self._stopped


class AbandonedError(BaseException):
    """Raised in a helper thread whose call was abandoned, to end its work; no result is used."""


class CallThread:
    """A thread that works for one other thread at a time.

    Between calls it keeps no reference to arguments or results, since the memory of arrays is
    reused once nothing refers to them.
    """

    def __init__(self) -> None:
        self.orders = queue.SimpleQueue[_Order | None]()
        self.done = threading.Lock()
        self.done.acquire()
        self.made: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._serve, name="dml-call", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with ForkGuard():
            while self._worked():
                self.done.release()

    def _worked(self) -> bool:
        """Do the next work; return False if there was none for a while, so the thread ends."""
        order = self._next()
        if order is None:
            return False
        waiting, context, work, args, watch = order
        mine, began = threading.get_ident(), time.thread_time()
        if watch is not None:
            WATCHES[mine] = watch
        try:
            with single_threaded() if context.get(SINGLE) else nullcontext():
                self.made = context.run(work, *args)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self.error = error
        end_copy()
        WATCHES.pop(mine, None)
        work_for(waiting, time.thread_time() - began)
        return True

    def _next(self) -> _Order | None:
        while True:
            try:
                return self.orders.get(timeout=IDLE_S)
            except queue.Empty:
                try:
                    IDLE.remove(self)
                except ValueError:  # another thread has just taken this helper
                    continue
                return None

    def result(self) -> Any:
        """Return the result of the work, or raise its exception, and release this thread.

        Until then no other thread can use this helper, which would overwrite the result.
        """
        made, error, self.made, self.error = self.made, self.error, None, None
        IDLE.append(self)
        if error is None:
            return made
        try:
            raise error
        finally:
            del error  # it refers to this frame


# The watches of helper threads that work on loops of calls, by thread.
WATCHES: dict[int, CallWatch] = {}
# Helper threads without a call, the last used one last.
IDLE: list[CallThread] = []


class GivenUpCalls:
    """The calls that this process has abandoned and that still run, by waiting thread.

    ``most`` is the number of them that a thread may have; None in a worker process, which is ended
    after its answer. ``due`` is called with the monotonic time in nanoseconds at which a call must
    end, and with -1 when it has ended. A parent process can use it to end this process if the call
    holds the GIL, so that this process cannot abandon it.
    """

    def __init__(self) -> None:
        self.most: int | None = 1
        self.due: Callable[[int], None] = lambda _: None
        self.count = 0
        self._running: WeakKeyDictionary[threading.Thread, list[threading.Thread]] = (
            WeakKeyDictionary()
        )

    @property
    def spent(self) -> bool:
        """True if this process is a worker that must end, as abandoned calls may still run."""
        return self.most is None and self.count > 0

    def add(self, thread: threading.Thread) -> bool:
        """Record the thread of an abandoned call; return True if there are now too many."""
        mine = self._running.setdefault(threading.current_thread(), [])
        mine[:] = [each for each in mine if each.is_alive()]
        mine.append(thread)
        self.count += 1
        return self.most is not None and len(mine) > self.most

    def forget(self) -> None:
        """Remove all calls in a forked child, which has none of their threads."""
        self.count = 0
        self._running.clear()


GIVEN_UP = GivenUpCalls()


def _forget_watches() -> None:
    """In a forked child, keep only the watch of the forking thread, since thread ids are reused."""
    mine = WATCHES.get(threading.get_ident())
    WATCHES.clear()
    if mine is not None:
        WATCHES[threading.get_ident()] = mine


os.register_at_fork(after_in_child=_forget_watches)
os.register_at_fork(after_in_child=IDLE.clear)
os.register_at_fork(after_in_child=GIVEN_UP.forget)


def answered(helper: CallThread, seconds: float) -> bool:
    """Return True if the call of ``helper`` ends within ``seconds``; tests replace this."""
    return helper.done.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


def within(left_s: float, limit_s: float, call: Callable[..., Any], *args: Any) -> Any:
    """Return ``call(*args)``; raise TimedOutError if that takes longer than ``left_s`` seconds.

    ``limit_s`` is the user's time limit, and ``left_s`` the unused part of it.
    """
    helper = _begun(None, call, args)
    GIVEN_UP.due(time.monotonic_ns() + int(left_s * 1e9))
    ended = False
    try:
        ended = answered(helper, left_s)
    finally:  # also if a signal such as Ctrl-C interrupts the wait
        GIVEN_UP.due(-1)
        if not ended:
            helper.orders.put(None)  # the thread ends after the call
    if not ended:
        raise TimedOutError(limit_s, too_many=GIVEN_UP.add(helper.thread))
    return helper.result()


def watched(limit_s: float, loop: Callable[..., Any], *args: Any) -> Any:
    """Return ``loop(*args)``; raise TimedOutError if a function call in it exceeds its limit.

    The whole loop runs in a helper thread, so that a call costs a few microseconds instead of a
    change of threads. When a call is abandoned, the loop ends after it, and the caller owns the
    lists to which the loop has appended. ``limit_s`` is the least limit of the functions.
    """
    watch = CallWatch()
    helper, ended = _begun(watch, loop, args), False
    try:
        while not ended:
            call = watch.running
            wait_s = limit_s if call is None else call.began + call.limit_s - time.monotonic()
            ended = answered(helper, wait_s)
            if not ended and call is not None and watch.stop(call):
                raise TimedOutError(call.limit_s, too_many=GIVEN_UP.add(helper.thread))
    finally:  # also if a signal such as Ctrl-C interrupts the wait
        GIVEN_UP.due(-1)
        if not ended:
            watch.stop()
            helper.orders.put(None)
    return helper.result()


def _begun(watch: CallWatch | None, work: Callable[..., Any], args: tuple[Any, ...]) -> CallThread:
    """Start ``work(*args)`` in a helper thread, and return this thread."""
    try:
        helper = IDLE.pop()
    except IndexError:
        helper = CallThread()
    helper.orders.put(_Order(threading.get_ident(), copy_context(), work, args, watch))
    return helper


class TimeLimited:
    """A function whose calls may take ``limit_s`` seconds each.

    With ``many`` the function returns an iterable. The time to compute the items of an iterable or
    iterator is part of the call.
    """

    def __init__(self, call: Callable[..., Any], limit_s: float, *, many: bool = False) -> None:
        self.call, self.limit_s, self.many = call, limit_s, many

    def __call__(self, *args: Any) -> Any:
        """Return the function's result; raise TimedOutError if that takes too long."""
        watch = WATCHES.get(threading.get_ident())
        if watch is None or watch.running is not None:  # a call of a call is not the loop's
            return self._alone(args)
        watch.begin(self.limit_s)
        try:
            return self.call(*args)
        finally:
            watch.end()

    def _alone(self, args: tuple[Any, ...]) -> Any:
        began = time.monotonic()
        made = within(self.limit_s, self.limit_s, self._made, *args)
        if not isinstance(made, Iterator):
            return made
        return LimitedIterator(made, self.limit_s, time.monotonic() - began)

    def _made(self, *args: Any) -> Any:
        made = self.call(*args)
        return iter(made) if self.many and not isinstance(made, list | tuple) else made

    def loop(self, work: Callable[..., Any], *args: Any) -> Any:
        """Return ``work(*args)``, which calls this function; one helper thread runs all calls."""
        return watched(self.limit_s, work, *args)


class LimitedIterator(Iterator[Any]):
    """The items of ``made``, the result of a call that took ``spent_s`` of its ``limit_s`` seconds.

    Time that the consumer spends on an item does not count.
    """

    def __init__(self, made: Iterator[Any], limit_s: float, spent_s: float) -> None:
        self.made: Iterator[Any] | None = made
        self.limit_s, self.left_s = limit_s, limit_s - spent_s

    def __next__(self) -> Any:
        """Return the next item; raise TimedOutError if all items so far took too long."""
        if self.made is None:
            raise StopIteration
        return self._within(next, self.made)

    def close(self) -> None:
        """Close a generator whose remaining items are not needed."""
        close = getattr(self.made, "close", None)
        if close is not None:
            self._within(close)
        self.made = None

    def _within(self, call: Callable[..., Any], *args: Any) -> Any:
        began = time.monotonic()
        try:
            return within(self.left_s, self.limit_s, call, *args)
        except TimedOutError:
            self.made = None
            raise
        finally:
            self.left_s -= time.monotonic() - began
