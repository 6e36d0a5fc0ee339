"""``cached_property`` here behaves as Python's own from 3.12 on: it takes no lock.

Before 3.12, a property had one lock for all instances. Threads that build and open pipelines at the
same time would wait for each other's files, and deadlock where two properties of one class need
each other on other instances. Without a lock, two threads may compute a value at the same time; the
two values are equal, and the first one is stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

M = TypeVar("M", bound=Callable[..., Any])

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - as in functools
        """An attribute that is computed on its first access and stored in the instance."""

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute and store the value."""
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))


def results_key(method: str) -> str:
    """Return the key in an instance's ``__dict__`` of the results of a ``remembered`` method."""
    return f"_{method}_by_argument"


def remembered(method: M) -> M:
    """Return a method of one argument that computes each result once, and keeps it in the instance.

    As for a ``cached_property``, two threads may compute equal results at the same time. The
    results lie in the instance's ``__dict__`` under ``results_key(method.__name__)``.
    """
    name = results_key(method.__name__)

    @functools.wraps(method)
    def found(instance: Any, given: Any) -> Any:
        results = instance.__dict__.setdefault(name, {})
        result = results.get(given, results)
        if result is results:
            result = results[given] = method(instance, given)
        return result

    return cast("M", found)


__all__ = ["cached_property", "remembered", "results_key"]
