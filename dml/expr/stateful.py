"""This file makes instances of users' classes: few a process, for a class with its arguments.

There is one for each call at once, or as many as a step's ``concurrency`` allows. What travels
between processes is the class and the arguments, never an instance. Calls of one instance never
overlap.
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
from dml.expr.calls import NotConstructedError, caught

# Instances that a process keeps for functions which were sent to it: the next run has them.
KEPT = 8


@dataclasses.dataclass(eq=False)
class Instance:
    """An object of the user's, once it is made, and who may call it."""

    call: Callable[..., Any] | None = None
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Pool:
    """The instances of a class with its arguments in this process; all who name it share them."""

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self._turns = itertools.count()
        self._guard = threading.Lock()

    def taken(self, most: int | None) -> Instance:
        """One that nobody else may call until its lock is given back.

        There is another for each call at once, but no more than ``most``: then one is waited for.
        """
        for instance in self.instances:
            if instance.lock.acquire(blocking=False):
                return instance
        with self._guard:
            found = None
            if most is None or len(self.instances) < most:
                found = Instance()
                found.lock.acquire()
                self.instances.append(found)
        if found is None:
            found = self.instances[next(self._turns) % len(self.instances)]
            found.lock.acquire()
        return found


_GUARD = threading.Lock()
_LIVE: weakref.WeakValueDictionary[bytes, Pool] = weakref.WeakValueDictionary()
_KEPT: collections.OrderedDict[bytes, Pool] = collections.OrderedDict()


@dataclasses.dataclass(eq=False)
class Stateful:
    """``made(*args, **kwargs)`` as a function, constructed by the first call in a process.

    ``key`` names class and arguments; functions of equal keys share instances. There are as many in
    a process as are called at once, up to ``most``. With ``many`` the calls give rows, all of which
    are made before the first is handed on.
    """

    made: type
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: bytes
    many: bool = False
    most: int | None = None
    sent: bool = dataclasses.field(default=False, repr=False)
    pool: Pool | None = dataclasses.field(default=None, repr=False)

    def __call__(self, *given: Any) -> Any:
        """What an instance gives; NotConstructedError if there is none."""
        if self.many:
            return self._children(given)
        instance = (self.pool or self._pooled()).taken(self.most)
        try:
            made = (instance.call or self._constructed(instance))(*given)
            return _collected(made) if isinstance(made, Iterator) else made
        finally:
            instance.lock.release()

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to make its own."""
        kept = ("made", "args", "kwargs", "key", "many", "most")
        return {**{name: getattr(self, name) for name in kept}, "sent": True, "pool": None}

    def _children(self, given: tuple[Any, ...]) -> Iterator[Any]:
        out: list[Any] = []
        instance = (self.pool or self._pooled()).taken(self.most)
        try:
            call = instance.call or self._constructed(instance)
            error = caught(lambda: out.extend(call(*given)))
        finally:
            instance.lock.release()
        yield from _again(out, error)

    def _pooled(self) -> Pool:
        with _GUARD:
            pool = _LIVE.get(self.key)
            if pool is None:
                pool = _LIVE[self.key] = Pool()
        self.pool = pool
        if self.sent:
            _keep(self.key, pool)
        return pool

    def _constructed(self, instance: Instance) -> Callable[..., Any]:
        """What to call of an instance that is not made yet, or could not be; its lock is held."""
        made: list[Any] = []
        error = caught(lambda: made.append(self.made(*self.args, **self.kwargs)))
        if error is not None:
            raise NotConstructedError(worded(error)) from error
        call: Callable[..., Any] = made[0]
        instance.call = call
        return call


def _keep(key: bytes, pool: Pool) -> None:
    """Hold ``pool`` beyond the run that made it; the one not asked for longest is let go."""
    with _GUARD:
        _KEPT[key] = pool
        _KEPT.move_to_end(key)
        dropped = _KEPT.popitem(last=False) if len(_KEPT) > KEPT else None
    del dropped  # what the user does then may take its time


def _collected(made: Iterator[Any]) -> Iterator[Any]:
    """All that an iterator gives, which works on the instance: then the error that ended it."""
    out: list[Any] = []
    error = caught(lambda: out.extend(made))
    return _again(out, error)


def _again(out: list[Any], error: BaseException | None) -> Iterator[Any]:
    yield from out
    if error is not None:
        raise error
