"""This file says how an operator opens a pipeline that a function gave, inside of its run."""

from __future__ import annotations

from typing import Any, Protocol

from dml.errors import PlanError


class Nested(Protocol):
    """Opens a pipeline inside a run."""

    def __call__(self, node: Any, epoch: int, position: Any, most_bytes: int, /) -> Any:
        """The flow of ``node`` at an epoch, from a position of such a flow (None: the start).

        The pipeline may hold ``most_bytes``.
        """


def unopened(_node: Any, _epoch: int, _position: Any, _most_bytes: int) -> Any:
    """Where a plan runs without a session, as in a static graph; PlanError."""
    raise PlanError(
        "a pipeline cannot be opened inside of this run",
        why="a static graph is made before any function is called that gives a pipeline",
        try_="iter(ds), with executor= or scheduler= as you like",
    )
