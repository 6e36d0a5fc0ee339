"""A call of a user's function that takes longer than its ``timeout=`` is given up.

The call runs in a helper thread, while the thread that needs its result waits. Python cannot end a
thread, so a call that is given up goes on in its thread, and its result is dropped. A worker
process in which that happened is ended once it has answered; in other processes each thread may
give up one call at a time.
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

from dml.base.fork_guard import end_copy, guarded
from dml.base.single_thread import SINGLE, single_threaded
from dml.base.thread_seconds import work_for
from dml.expr.user_call import TimedOutError

# Seconds after which a helper thread without a call ends.
IDLE_S = 0.5


class _Order(NamedTuple):
    """Work to do: in the context of thread ``waiting``, which waits for the result.

    If the work calls limited functions itself, ``watch`` notes when each of these calls begins.
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
    """The call that a helper thread makes at present, for the thread that may give it up."""

    def __init__(self) -> None:
        self.running: _Running | None = None
        self._lock, self._stopped = threading.Lock(), False

    def begin(self, limit_s: float) -> None:
        """Note that a call begins now."""
        began = time.monotonic()
        GIVEN_UP.due(int((began + limit_s) * 1e9))
        self.running = _Running(began, limit_s)

    def end(self) -> None:
        """Note that the call is over; raise AbandonedError if it was given up meanwhile."""
        with self._lock:
            self.running = None
            if self._stopped:
                raise AbandonedError
        GIVEN_UP.due(-1)

    def stop(self, call: _Running | None = None) -> bool:
        """Let the work end after its current call, unless that is no longer ``call``, if given."""
        with self._lock:
            self._stopped = call is None or self.running is call
            return self._stopped


class AbandonedError(BaseException):
    """Raised in a helper thread whose call was given up: nothing of its work is used any more."""


class CallThread:
    """A thread that works for one other thread at a time.

    It keeps no reference to what it worked on, since arrays that nothing else refers to are used
    again.
    """

    def __init__(self) -> None:
        self.orders = queue.SimpleQueue[_Order | None]()
        self.done = threading.Lock()
        self.done.acquire()
        self.made: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(
            target=guarded, args=(self._serve,), name="dml-call", daemon=True
        )
        self.thread.start()

    def _serve(self) -> None:
        while self._worked():
            self.done.release()

    def _worked(self) -> bool:
        """Do the next work; return False if this thread is to end instead."""
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
        """Return the result of the work, or raise its exception, and forget it.

        Only then may another thread have this helper, which would lose the result.
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
    """The calls that this process has given up, and which of them still run, by waiting thread.

    ``most`` is how many of them a thread may have running: None in a worker process, which is ended
    after its answer. ``due`` is called with the time at which a call must end, in monotonic
    nanoseconds, and with -1 when it has: a call that holds Python's lock stops this process from
    giving it up, but not another one from ending this process.
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
        """True if this process is a worker that is to be ended, since calls may still run in it."""
        return self.most is None and self.count > 0

    def add(self, thread: threading.Thread) -> bool:
        """Record the thread of a call that is given up; return True if there are too many now."""
        mine = self._running.setdefault(threading.current_thread(), [])
        mine[:] = [each for each in mine if each.is_alive()]
        mine.append(thread)
        self.count += 1
        return self.most is not None and len(mine) > self.most

    def forget(self) -> None:
        """Forget all calls in a forked child, which has none of their threads."""
        self.count = 0
        self._running.clear()


GIVEN_UP = GivenUpCalls()


def _forget_watches() -> None:
    """Keep only the watch of the forking thread, in a forked child: identifiers are used again."""
    mine = WATCHES.get(threading.get_ident())
    WATCHES.clear()
    if mine is not None:
        WATCHES[threading.get_ident()] = mine


os.register_at_fork(after_in_child=_forget_watches)
os.register_at_fork(after_in_child=IDLE.clear)
os.register_at_fork(after_in_child=GIVEN_UP.forget)


def answered(helper: CallThread, seconds: float) -> bool:
    """Return whether the call of ``helper`` ends within ``seconds``; tests replace this clock."""
    return helper.done.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


def within(left_s: float, limit_s: float, call: Callable[..., Any], *args: Any) -> Any:
    """Return ``call(*args)``; raise TimedOutError if that takes longer than ``left_s`` seconds.

    ``limit_s`` is the time limit that the user gave, of which ``left_s`` is left.
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
    """Return ``loop(*args)``, which calls limited functions; raise TimedOutError for a slow call.

    The loop runs in a helper thread as a whole, so that a call costs a few microseconds, and not a
    change of threads. After a call that is given up, the loop does not go on: what it appended to a
    list until then is the caller's. ``limit_s`` is the least limit of the functions.
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
    """Let a helper thread begin the work, and return it."""
    try:
        helper = IDLE.pop()
    except IndexError:
        helper = CallThread()
    helper.orders.put(_Order(threading.get_ident(), copy_context(), work, args, watch))
    return helper


class TimeLimited:
    """A function whose calls may take ``limit_s`` seconds each.

    With ``many`` the function returns an iterable; computing its items is a part of the call, as it
    is for an iterator that any function returns.
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
        """Return ``work(*args)``, which calls this function, for the price of few threads."""
        return watched(self.limit_s, work, *args)


class LimitedIterator(Iterator[Any]):
    """The items of ``made``, which a call returned after ``spent_s`` of its ``limit_s`` seconds.

    Seconds in which the consumer works on an item do not count.
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
        """Close a generator whose other items are not needed."""
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
