"""This file joins two flows: the right side in memory with an index, left rows looked up in it.

Where the right side does not fit, ``dml/expr/partitioning.py`` brings both to disk in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dml.errors import DmlError
from dml.expr.flow import CHUNK
from dml.expr.matches import Matches, Side, Unmet
from dml.expr.partitioning import ROW_BYTES, Partitioned, fitting, room

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.expr.ops.join import Join


class Joined:
    """Rows of the join; a Flow that reads the right side first.

    A position is that of the left side before the block at hand, and how many rows came since.
    Where the rows of the left side that came before matter, that is the number of all rows.
    """

    def __init__(
        self,
        node: Join,
        openers: Sequence[Opener],
        epoch: int,
        position: Position | None,
        at: At,
    ) -> None:
        self.start: Position = position or {"in": None, "drop": 0}
        self.node, self.at = node, at
        self.left: Flow = openers[0](epoch, self.start["in"])
        self.right: Flow = openers[1](epoch, None)
        self.source: Probing | Partitioned | None = None

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows."""
        if self.source is None:
            self.source = self._begun()
            self.source.skip(self.start["drop"])
        return self.source.pull(most)

    def _begun(self) -> Probing | Partitioned:
        """Read the right side, as far as it fits."""
        held: list[Block] = []
        held_bytes = 0
        while (block := self.right.pull(CHUNK)) is not None:
            held.append(block)
            held_bytes += block.nbytes + ROW_BYTES * block.n
            if held_bytes > room(block.schema, self.at.budget):
                sides = (self.left, self.right)
                return Partitioned(self.node, sides, held, self.at, self.start)
        self.right.close()
        return Probing(self.node, self.left, Side(self.node, held), self.start)

    def position(self) -> Position:
        """Where the left side was, and how many rows to leave out."""
        return self.start if self.source is None else self.source.position()

    def close(self) -> None:
        """Close both sides."""
        self.left.close()
        self.right.close()
        if self.source is not None:
            self.source.close()


class Probing:
    """Rows of ``left``, block by block, with those of ``side`` that have their keys."""

    def __init__(self, node: Join, left: Flow, side: Side, start: Position) -> None:
        self.node, self.left, self.side = node, left, side
        self.before, self.given = start["in"], 0
        self.now: Matches | Unmet | None = None
        self.cursor = self.piece = 0
        self.error: DmlError | None = None
        self.over = False

    def skip(self, rows: int) -> None:
        """Leave out rows that were given before; none of them is made."""
        while rows and (now := self._ready()) is not None:
            rows -= self._moved(min(rows, now.n - self.cursor))

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows, of a few megabytes."""
        now = self._ready()
        if now is None:
            return None
        start = self.cursor
        return now.rows(start, start + self._moved(min(most, now.n - start, self.piece)))

    def _moved(self, rows: int) -> int:
        self.cursor += rows
        self.given += rows
        return rows

    def _ready(self) -> Matches | Unmet | None:
        """What has rows to give; None at the end."""
        while self.now is None or self.cursor == self.now.n:
            if self.error is not None:
                raise self.error
            if self.over:
                return None
            self._next()
        return self.now

    def _next(self) -> None:
        if not self.node.whole:
            self.before, self.given = self.left.position(), 0
        block = self.left.pull(CHUNK)
        self.cursor = 0
        if block is None:
            self.over = True
            self.left.close()
            self.now = Unmet(self.node, self.side) if self.node.coalesced else None
            self.piece = fitting(self.side.row_bytes)
            return
        self.now = Matches(self.node, block, self.side, self.node.how)
        self.error = self.now.error
        self.piece = fitting(self.side.row_bytes + block.nbytes // block.n)

    def position(self) -> Position:
        """Where the left side was before the block at hand, and how many rows came since."""
        return {"in": self.before, "drop": self.given}

    def close(self) -> None:
        """Forget the right side."""
        self.now, self.over = None, True
