"""This file says how an operator opens pipelines that a function gave, inside of its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dml.errors import PlanError


class ReadingAhead(Protocol):
    """Opens flows and reads them ahead, side by side."""

    def open(
        self,
        opener: Callable[[], Any],
        position: Any,
        most_bytes: int,
        meanwhile: Callable[[], Callable[[], None] | None],
        /,
    ) -> Any:
        """The flow that ``opener`` gives, which is at ``position``, as one that is ``ReadAhead``.

        It and its rows may hold ``most_bytes``. While somebody waits for them, what ``meanwhile``
        refers to is called now and then, if it is there yet.
        """

    def own_bytes(self, most_bytes: int, /) -> int:
        """What is left of these bytes for the flow itself."""


class ReadAhead(Protocol):
    """What one sees beside the rows of a flow that is read ahead."""

    @property
    def over(self) -> bool:
        """True if all of it was read, and it holds nothing but rows that wait."""

    @property
    def nbytes(self) -> int:
        """Bytes of rows that wait."""

    def look(self, *, wait: bool) -> int:
        """Rows at hand, which ``pull`` gives at once; 0 at the end.

        Unless ``wait``, also 0 where none have come, or something else stands before the next one.
        """


class Nested(Protocol):
    """Opens pipelines inside a run."""

    def __call__(self, node: Any, epoch: int, position: Any, most_bytes: int, /) -> Any:
        """The flow of ``node`` at an epoch, from a position of such a flow (None: the start).

        The pipeline may hold ``most_bytes``.
        """

    def reading(self, flows: int, at_once: int | None, /) -> ReadingAhead | None:
        """What reads so many flows ahead, at most ``at_once`` (None: as many as there are workers).

        None where nothing is read before it is asked for.
        """


class Unopened:
    """Where a plan runs without a session, as in a static graph; PlanError."""

    def __call__(self, _node: Any, _epoch: int, _position: Any, _most_bytes: int, /) -> Any:
        """PlanError."""
        raise PlanError(
            "a pipeline cannot be opened inside of this run",
            why="a static graph is made before any function is called that gives a pipeline",
            try_="iter(ds), with executor= or scheduler= as you like",
        )

    def reading(self, _flows: int, _at_once: int | None, /) -> None:
        """Nothing is read."""


unopened = Unopened()
