"""Instances of users' classes are pooled per process, by class and constructor arguments.

A process has one instance per concurrent call, limited by the step's ``concurrency``. Processes
send each other the class and the arguments, never an instance. Calls of one instance never overlap.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dml.errors import worded
from dml.expr.user_call import NotConstructedError, TimedOutError, caught
from dml.udfs.calling.time_limit import within

# Most pools that a process keeps, after a run, of functions that were sent to it.
KEPT = 8


@dataclasses.dataclass(eq=False)
class PooledInstance:
    """An object of the user's class, constructed on first use, and the lock of its calls."""

    call: Callable[..., Any] | None = None
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class InstancePool:
    """The instances of a class with given arguments in this process, shared by equal functions."""

    def __init__(self) -> None:
        self.instances: list[PooledInstance] = []
        self._turns = itertools.count()
        self._guard = threading.Lock()

    def acquire(self, most: int | None) -> PooledInstance:
        """Return an instance, locked for the caller, who must release ``instance.lock``.

        If all instances are locked, create one; if there are already ``most`` (None: no limit),
        wait.
        """
        for instance in self.instances:
            if instance.lock.acquire(blocking=False):
                return instance
        with self._guard:
            found = None
            if most is None or len(self.instances) < most:
                found = PooledInstance()
                found.lock.acquire()
                self.instances.append(found)
        if found is None:
            found = self.instances[next(self._turns) % len(self.instances)]
            found.lock.acquire()
        return found


_GUARD = threading.Lock()
_LIVE: weakref.WeakValueDictionary[bytes, InstancePool] = weakref.WeakValueDictionary()
_KEPT: collections.OrderedDict[bytes, InstancePool] = collections.OrderedDict()


@dataclasses.dataclass(eq=False)
class Stateful:
    """A class used as a function: calls construct and share instances ``made(*args, **kwargs)``.

    ``key`` is the digest of class and arguments; functions of equal keys share instances. A process
    has as many instances as there are concurrent calls, up to ``most``. With ``many`` each call
    returns an iterable of rows, all of which are computed before the first one is returned. A call
    may take ``limit_s`` seconds (None: any time), not counting the construction.
    """

    made: type
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: bytes
    many: bool = False
    most: int | None = None
    limit_s: float | None = None
    sent: bool = dataclasses.field(default=False, repr=False)
    pool: InstancePool | None = dataclasses.field(default=None, repr=False)

    def __call__(self, *given: Any) -> Any:
        """Return the result of an instance; raise NotConstructedError if construction fails."""
        if self.many:
            return self._children(given)
        instance = (self.pool or self._pooled()).acquire(self.most)
        try:
            call = instance.call or self._constructed(instance)
            if self.limit_s is not None:
                return within(self.limit_s, self.limit_s, _called, call, given)
            return _called(call, given)
        except TimedOutError:
            instance.call = None  # the call goes on with the object, so another one takes its place
            raise
        finally:
            instance.lock.release()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state from which another process constructs its own instances."""
        kept = ("made", "args", "kwargs", "key", "many", "most", "limit_s")
        return {**{name: getattr(self, name) for name in kept}, "sent": True, "pool": None}

    def _children(self, given: tuple[Any, ...]) -> Iterator[Any]:
        out: list[Any] = []
        instance = (self.pool or self._pooled()).acquire(self.most)
        try:
            call = instance.call or self._constructed(instance)
            if self.limit_s is None:
                error = caught(_extend, out, call, given)
            else:
                error = caught(within, self.limit_s, self.limit_s, _extend, out, call, given)
            if isinstance(error, TimedOutError):
                out, instance.call = out.copy(), None  # the call goes on with both
        finally:
            instance.lock.release()
        yield from _again(out, error)

    def _pooled(self) -> InstancePool:
        with _GUARD:
            pool = _LIVE.get(self.key)
            if pool is None:
                pool = _LIVE[self.key] = InstancePool()
        self.pool = pool
        if self.sent:
            _keep(self.key, pool)
        return pool

    def _constructed(self, instance: PooledInstance) -> Callable[..., Any]:
        """Construct and return the object of ``instance``; the caller holds its lock."""
        made: list[Any] = []
        error = caught(lambda: made.append(self.made(*self.args, **self.kwargs)))
        if error is not None:
            raise NotConstructedError(worded(error)) from error
        call: Callable[..., Any] = made[0]
        instance.call = call
        return call


def _keep(key: bytes, pool: InstancePool) -> None:
    """Keep ``pool`` beyond its run; evict the least recently used pool if there are too many."""
    with _GUARD:
        _KEPT[key] = pool
        _KEPT.move_to_end(key)
        dropped = _KEPT.popitem(last=False) if len(_KEPT) > KEPT else None
    del dropped  # outside of the lock, since a destructor of the user's may take its time


def _called(call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Return the result of ``call``; an iterator is read to its end first."""
    made = call(*given)
    return _collected(made) if isinstance(made, Iterator) else made


def _extend(out: list[Any], call: Callable[..., Any], given: tuple[Any, ...]) -> None:
    out.extend(call(*given))


def _collected(made: Iterator[Any]) -> Iterator[Any]:
    """Read all of ``made`` now, which uses the instance; return an iterator that replays it."""
    out: list[Any] = []
    error = caught(lambda: out.extend(made))
    return _again(out, error)


def _again(out: list[Any], error: BaseException | None) -> Iterator[Any]:
    yield from out
    if error is not None:
        raise error
