"""``window`` makes batches of rows that slide over the stream."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.checks import element_count
from dml.data.block import Block, concat
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import CHUNK, GatherQuota, read_rows
from dml.expr.node import Node, op
from dml.ops.unary import BatchesOfRows, SameColumns, require_unbatched

if TYPE_CHECKING:
    from collections.abc import Callable

    from dml.expr.flow import At, Flow, Opener, Position

# Key of row ids: several windows may have the same row.
WINDOW = 0x77696E646F77


@op
class Window(SameColumns, BatchesOfRows):
    """Makes sliding batches: batch w has the rows ``w * shift + i * stride`` for i below ``n``.

    With ``drop_last``, windows that reach beyond the end of the stream are dropped; without it they
    are shorter, and the last window is the last with at least one row. A row's id is derived from
    the input row's id and the row's place in the window.
    """

    input: Node
    n: int
    shift: int
    stride: int
    drop_last: bool

    rows: ClassVar[Rows] = Rows.WINDOWS
    gathers: ClassVar[int] = 1
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for sizes that are not positive, and for a batched input."""
        element_count("window size", self.n, least=1)
        element_count("window shift", self.shift, least=1)
        element_count("window stride", self.stride, least=1)
        require_unbatched(self.input, "window")

    @property
    def span(self) -> int:
        """Return the number of rows from the first row of a window to its last, both included."""
        return (self.n - 1) * self.stride + 1

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: a position is saved, one window is read again."""
        return ResumeCost(state_bytes=48, work_rows=self.span, work="one window")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that buffers the rows of one window, and drops rows before later windows."""
        room = GatherQuota(self, at.hold_bytes)
        return _Sliding(self, partial(open_input, epoch), position, room)

    def parameters_text(self) -> str:
        """Return as text the size, the shift, the stride, and ``drop_last`` if it is False."""
        parts = [str(self.n), f"shift={self.shift}", f"stride={self.stride}"]
        return ", ".join([*parts, *(["drop_last=False"] if not self.drop_last else [])])


class _Sliding:
    """A flow of windows: ``block`` buffers rows of the current window and of later ones.

    Rows are counted from where the input was opened: ``first`` is the first row of the current
    window, ``read`` the next one to read. ``places`` are pairs of a row and the position before it.
    """

    def __init__(
        self,
        node: Window,
        open_at: Callable[[Position | None], Flow],
        position: Position | None,
        room: GatherQuota,
    ) -> None:
        start = position or {"in": None, "skip": 0}
        self.node, self.room = node, room
        self.input = open_at(start["in"])
        self.first: int = start["skip"]
        self.read = 0
        self.block: Block | None = None
        self.places: deque[tuple[int, Position]] = deque([(0, self.input.position())])

    def pull(self, most: int) -> Block | None:
        """Return the next window; None at the end."""
        del most  # a pull returns one element
        node = self.node
        rows = self._rows()
        if rows is None or (rows.n < node.span and node.drop_last):
            return None
        window = rows.take(np.arange(0, min(rows.n, node.span), node.stride))
        ids = window.ids.derive(WINDOW + node.level, np.arange(window.n, dtype=np.uint64))
        self.first += node.shift
        return Block(window.schema, window.columns, ids)

    def _rows(self) -> Block | None:
        """Return the rows from ``first`` on, as many as a window spans, fewer only at the end."""
        held = self.block
        stale = self.first - self.read + (0 if held is None else held.n)
        kept = [] if held is None or stale >= held.n else [held.slice(stale, held.n)]
        while self.read < self.first:
            gap = self.input.pull(min(CHUNK, self.first - self.read))
            if gap is None:
                return None
            self.read += gap.n
        self.places.append((self.read, self.input.position()))
        self.room.empty()
        for block in kept:
            self.room.take(block)
        need = self.first + self.node.span - self.read
        fresh = read_rows(self.input, need, self.room) if need > 0 else []
        self.read += sum(block.n for block in fresh)
        parts = [*kept, *fresh]
        self.block = concat(parts) if parts else None
        return self.block

    def position(self) -> Position:
        """Return an input position before the current window, and the number of rows between."""
        while len(self.places) > 1 and self.places[1][0] <= self.first:
            self.places.popleft()
        row, place = self.places[0]
        if self.read <= self.first:
            row, place = self.read, self.input.position()
        return {"in": place, "skip": self.first - row}

    def close(self) -> None:
        """Close the input and drop the rows in memory."""
        self.block = None
        self.input.close()
