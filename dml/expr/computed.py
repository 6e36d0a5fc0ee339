"""This file holds ``cached_property`` as Python has it from 3.12 on: without a lock.

Before, one lock was there for a property of all instances. Threads that build and open pipelines at
the same time would wait for each other's files, and for ever where two properties of one class need
each other's of other instances. What is computed twice at once is equal; the first one stays.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - as in functools
        """A value of an instance that is computed when it is first asked for."""

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """The value, kept from now on."""
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))


__all__ = ["cached_property"]
