"""Operators use these interfaces to open pipelines that a user's function returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dml.errors import PlanError


class ReadingAhead(Protocol):
    """Opens flows, and prefetches rows of all of them concurrently."""

    def open(
        self,
        opener: Callable[[], Any],
        position: Any,
        most_bytes: int,
        meanwhile: Callable[[], Callable[[], None] | None],
        /,
    ) -> Any:
        """Return a flow that prefetches; ``opener`` opens it at ``position``.

        Its attributes are ``nbytes``, the bytes of the prefetched rows, and ``over``, True if the
        input is exhausted and only prefetched rows are left. Its method ``look(wait=)`` returns the
        number of rows that ``pull`` can return without waiting; 0 at the end. With ``wait``, it
        waits for the first row. Otherwise the number is also 0 if no row has arrived yet, or if
        something else, such as an error, precedes the next row.

        The flow and its prefetched rows may hold ``most_bytes`` together. While a consumer waits
        for rows, ``meanwhile()`` is called, and if it returns a callback, so is the callback.
        """

    def own_bytes(self, most_bytes: int, /) -> int:
        """Return how many of ``most_bytes`` the flow itself may hold besides prefetched rows."""


class Nested(Protocol):
    """Opens pipelines inside a run."""

    def __call__(self, node: Any, epoch: int, position: Any, most_bytes: int, /) -> Any:
        """Return the flow of ``node`` over ``epoch``, from ``position`` (None: the start).

        The opened pipeline may hold ``most_bytes``.
        """

    def reading(self, flows: int, at_once: int | None, /) -> ReadingAhead | None:
        """Return a prefetcher of ``flows`` flows; None if this run does not prefetch.

        It reads at most ``at_once`` flows at a time (None: one per worker).
        """


class Unopened:
    """The ``Nested`` of plans that run without a session, such as a static graph."""

    def __call__(self, _node: Any, _epoch: int, _position: Any, _most_bytes: int, /) -> Any:
        """Raise PlanError: no pipeline can be opened in a static graph."""
        raise PlanError(
            "a pipeline cannot be opened inside of this run",
            why="a static graph is made before any function is called that gives a pipeline",
            try_="iter(ds), with executor= or scheduler= as you like",
        )

    def reading(self, _flows: int, _at_once: int | None, /) -> None:
        """Return None: without a session, nothing is prefetched."""


unopened = Unopened()
