"""This file makes instances of users' classes: one a process, for a class with its arguments.

What travels between processes is the class and the arguments, never an instance. Calls of one
instance never overlap.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dml.expr.calls import NotConstructedError, caught

# Instances that a process keeps for functions which were sent to it: the next run has them.
KEPT = 8


@dataclasses.dataclass(eq=False)
class Instance:
    """An object of the user's, and who may call it."""

    call: Callable[..., Any]
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


_GUARD = threading.Lock()
_MAKING: dict[bytes, threading.Lock] = {}
_LIVE: weakref.WeakValueDictionary[bytes, Instance] = weakref.WeakValueDictionary()
_KEPT: collections.OrderedDict[bytes, Instance] = collections.OrderedDict()


@dataclasses.dataclass(eq=False)
class Stateful:
    """``made(*args, **kwargs)`` as a function, constructed by the first call in a process.

    ``key`` names class and arguments; functions of equal keys share an instance. With ``many`` the
    calls give rows, all of which are made before the first is handed on.
    """

    made: type
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: bytes
    many: bool = False
    sent: bool = dataclasses.field(default=False, repr=False)
    instance: Instance | None = dataclasses.field(default=None, repr=False)

    def __call__(self, *given: Any) -> Any:
        """What the instance gives; NotConstructedError if there is none."""
        instance = self.instance or self._constructed()
        if self.many:
            return _children(instance, given)
        with instance.lock:
            return instance.call(*given)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to make its own."""
        kept = ("made", "args", "kwargs", "key", "many")
        return {**{name: getattr(self, name) for name in kept}, "sent": True, "instance": None}

    def _constructed(self) -> Instance:
        with _GUARD:
            making = _MAKING.setdefault(self.key, threading.Lock())
        with making:
            instance = _LIVE.get(self.key) or self._new()
        self.instance = instance
        if self.sent:
            _keep(self.key, instance)
        return instance

    def _new(self) -> Instance:
        made: list[Any] = []
        error = caught(lambda: made.append(self.made(*self.args, **self.kwargs)))
        if error is not None:
            raise NotConstructedError(str(error)) from error
        instance = Instance(made[0])
        with _GUARD:
            _LIVE[self.key] = instance
        return instance


def _keep(key: bytes, instance: Instance) -> None:
    """Hold ``instance`` beyond the run that made it; the one not asked for longest is let go."""
    with _GUARD:
        _KEPT[key] = instance
        _KEPT.move_to_end(key)
        dropped = _KEPT.popitem(last=False) if len(_KEPT) > KEPT else None
    del dropped  # what the user does then may take its time


def _children(instance: Instance, given: tuple[Any, ...]) -> Iterator[Any]:
    out: list[Any] = []
    with instance.lock:
        error = caught(lambda: out.extend(instance.call(*given)))
    yield from out
    if error is not None:
        raise error
