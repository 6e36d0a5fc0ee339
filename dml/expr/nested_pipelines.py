"""Operators open pipelines that a user's function returned through these interfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dml.errors import PlanError


class ReadingAhead(Protocol):
    """Opens flows and prefetches from them concurrently."""

    def open(
        self,
        opener: Callable[[], Any],
        position: Any,
        most_bytes: int,
        meanwhile: Callable[[], Callable[[], None] | None],
        /,
    ) -> Any:
        """The flow that ``opener`` opens at ``position``, as a ``ReadAhead`` flow.

        The flow and its prefetched rows may hold ``most_bytes``. While a consumer waits for rows,
        the callback that ``meanwhile`` returns is called from time to time, once there is one.
        """

    def own_bytes(self, most_bytes: int, /) -> int:
        """The part of ``most_bytes`` that is left for the flow itself."""


class ReadAhead(Protocol):
    """The state of a prefetching flow, beside its rows."""

    @property
    def over(self) -> bool:
        """True if the input is exhausted, and only prefetched rows are left."""

    @property
    def nbytes(self) -> int:
        """Bytes of prefetched rows."""

    def look(self, *, wait: bool) -> int:
        """The number of rows that ``pull`` returns without waiting; 0 at the end.

        Unless ``wait``, also 0 where no rows have arrived, or where something else precedes the
        next row.
        """


class Nested(Protocol):
    """Opens pipelines within a run."""

    def __call__(self, node: Any, epoch: int, position: Any, most_bytes: int, /) -> Any:
        """The flow of ``node`` at an epoch, from a position of such a flow (None: the start).

        The pipeline may hold ``most_bytes``.
        """

    def reading(self, flows: int, at_once: int | None, /) -> ReadingAhead | None:
        """A prefetcher of ``flows`` flows, at most ``at_once`` at a time (None: one per worker).

        None if this run does not prefetch.
        """


class Unopened:
    """The ``Nested`` of plans that run without a session, such as a static graph."""

    def __call__(self, _node: Any, _epoch: int, _position: Any, _most_bytes: int, /) -> Any:
        """Raise PlanError."""
        raise PlanError(
            "a pipeline cannot be opened inside of this run",
            why="a static graph is made before any function is called that gives a pipeline",
            try_="iter(ds), with executor= or scheduler= as you like",
        )

    def reading(self, _flows: int, _at_once: int | None, /) -> None:
        """No prefetcher."""


unopened = Unopened()
