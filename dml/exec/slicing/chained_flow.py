"""Two flows are chained: the rows of the first, followed by those of the second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dml.data.block import Block
from dml.expr.flow import Flow, GatherQuota, Position


class Relay:
    """The rows of one flow, followed by those of another, which is opened after the first ends."""

    def __init__(self, first: Flow, rest: Callable[[], Flow]) -> None:
        self.flow: Any = first
        self.rest: Callable[[], Flow] | None = rest

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows of the current flow."""
        block: Block | None = self.flow.pull(most)
        return self._next().pull(most) if block is None and self.rest is not None else block

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """The next unit's blocks of the current flow."""
        blocks: list[Block] | None = self.flow.pull_piece(room)
        return self._next().pull_piece(room) if blocks is None and self.rest is not None else blocks

    def _next(self) -> Any:
        assert self.rest is not None  # noqa: S101 (checked by the callers)
        self.flow.close()
        self.flow, self.rest = self.rest(), None
        return self.flow

    @property
    def where(self) -> tuple[int, int]:
        """The place of the unit, and the atom, of the last rows."""
        found: tuple[int, int] = self.flow.where
        return found

    @property
    def wheres(self) -> list[tuple[int, int]]:
        """Place and atom of each block of the last unit."""
        found: list[tuple[int, int]] = self.flow.wheres
        return found

    def position(self) -> Position:
        """The position of the current flow."""
        found: Position = self.flow.position()
        return found

    def close(self) -> None:
        """Close the current flow."""
        self.flow.close()
