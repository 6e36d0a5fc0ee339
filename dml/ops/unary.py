"""Operators with the columns of their one input share a base, and functions that check inputs."""

from __future__ import annotations

from typing import Any

from dml.errors import PlanError
from dml.expr.node import Node


class SameColumns(Node):
    """The base of operators whose output has the columns of their input."""

    input: Node


class BatchesOfRows(Node):
    """The base of operators that make batches of ``n`` rows, but for the last ones."""

    n: int

    batched = True

    @property
    def batch_rows(self) -> int:  # type: ignore[override]
        """Return ``n``, the rows of a full batch."""
        return self.n


def names_text(node: Any) -> str:
    """Return the columns ``names`` of ``node`` as text: its parameters."""
    return ", ".join(map(repr, node.names))


def require_rows(given: Node, verb: str, does: str = "works on", try_: str = "") -> None:
    """Raise PlanError if ``given`` is batched; ``verb``, ``does``, ``try_`` are for the message."""
    if given.batched:
        raise PlanError(
            f"{verb} after batch",
            why=f"it {does} rows, and its input is batches",
            try_=try_ or f"{verb} before .batch()",
        )


def require_unbatched(given: Node, verb: str, try_: str = "") -> None:
    """Raise PlanError if ``given`` is batched, for a ``verb`` that makes batches itself."""
    if given.batched:
        raise PlanError(
            f"{verb} over batches",
            why="its input is batched already",
            try_=try_ or f".{verb}(...) in place of .batch(...)",
        )
