"""``cached_property`` here behaves as Python's own from 3.12 on: it takes no lock.

Before 3.12, a property had one lock for all instances. Threads that build and open pipelines at the
same time would wait for each other's files, and deadlock where two properties of one class need
each other on other instances. Without a lock, two threads may compute a value at the same time; the
two values are equal, and the first one is stored.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

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


__all__ = ["cached_property"]
