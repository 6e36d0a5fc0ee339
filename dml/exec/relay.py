"""This file gives the rows of one flow, and behind them those of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dml.expr.block import Block
from dml.expr.flow import Flow, Position, Room


class Relay:
    """The rows of one flow, and behind them those of another, which is opened then."""

    def __init__(self, first: Flow, rest: Callable[[], Flow]) -> None:
        self.flow: Any = first
        self.rest: Callable[[], Flow] | None = rest

    def pull(self, most: int) -> Block | None:
        """As the flows do."""
        block: Block | None = self.flow.pull(most)
        return self._next().pull(most) if block is None and self.rest is not None else block

    def pull_piece(self, room: Room) -> list[Block] | None:
        """As the flows do."""
        blocks: list[Block] | None = self.flow.pull_piece(room)
        return self._next().pull_piece(room) if blocks is None and self.rest is not None else blocks

    def _next(self) -> Any:
        assert self.rest is not None  # noqa: S101 (asked for by who calls)
        self.flow.close()
        self.flow, self.rest = self.rest(), None
        return self.flow

    @property
    def where(self) -> tuple[int, int]:
        """The unit's place and the atom of the rows given last."""
        found: tuple[int, int] = self.flow.where
        return found

    @property
    def wheres(self) -> list[tuple[int, int]]:
        """The same of the blocks of the unit given last."""
        found: list[tuple[int, int]] = self.flow.wheres
        return found

    def position(self) -> Position:
        """As the flows do."""
        found: Position = self.flow.position()
        return found

    def close(self) -> None:
        """Stop."""
        self.flow.close()
