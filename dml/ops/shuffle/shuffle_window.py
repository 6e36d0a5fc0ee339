"""``shuffle(buffer_size)`` returns windows of the stream in keyed random order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.checks import element_count
from dml.data.block import Block, concat
from dml.errors import PlanError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import GatherQuota, read_rows
from dml.expr.node import Node, op
from dml.kernels.rows.permutation import window_permutation
from dml.kernels.rows.random import row_key
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class ShuffleWindow(SameColumns):
    """Permutes each window of ``n`` elements by a key of (seed, operator, epoch, window).

    One window is in memory at a time. The order depends on the input elements and on nothing else:
    not on partitions, workers or timing. Unless ``fresh``, all epochs have the same order.
    """

    input: Node
    n: int
    seed: int | None
    fresh: bool

    rows: ClassVar[Rows] = Rows.PERMUTED
    parameters_format = "buffer_size={self.n}, seed={self.seed}"
    gathers: ClassVar[int] = 2
    random: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for a window that is not positive, and for an invalid seed."""
        element_count("shuffle buffer_size", self.n, least=1)
        seeded(self.seed)

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: a window's position is saved, the window filled again."""
        return ResumeCost(state_bytes=48, work_rows=self.n, work="one window")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that fills a window, returns it permuted, and fills the next."""
        key = (at.key(self.seed), epoch if self.fresh else 0)
        room = GatherQuota(self, at.hold_bytes)
        window = BatchWindow(room) if self.batched else Gathered(room)
        return _Windows(self, partial(open_input, epoch), position, key, window)


class Gathered:
    """A window of rows, in one block."""

    def __init__(self, room: GatherQuota) -> None:
        self.room = room
        self.block: Block | None = None

    def fill(self, flow: Flow, n: int) -> int:
        """Buffer up to ``n`` further rows; return how many there were."""
        self.block = None
        parts = read_rows(flow, n, self.room.empty())
        self.block = concat(parts) if parts else None
        return self.block.n if self.block is not None else 0

    def give(self, order: np.ndarray) -> Block | None:
        """Return the rows at the indices ``order``; None if the window is empty."""
        return None if self.block is None else self.block.take(order)


class BatchWindow:
    """A window of batches, which are returned one by one."""

    def __init__(self, room: GatherQuota) -> None:
        self.room = room
        self.held: list[Block] = []

    def fill(self, flow: Flow, n: int) -> int:
        """Buffer up to ``n`` further batches; return how many there were."""
        self.held = []
        self.room.empty()
        while len(self.held) < n and (block := flow.pull(1)) is not None:
            self.room.take(block)
            self.held.append(block)
        return len(self.held)

    def give(self, order: np.ndarray) -> Block | None:
        """Return the batch at the first index of ``order``."""
        return self.held[int(order[0])]


class _Windows:
    def __init__(
        self,
        node: ShuffleWindow,
        open_at: Callable[[Position | None], Flow],
        position: Position | None,
        key: tuple[int, int],
        window: Gathered | BatchWindow,
    ) -> None:
        start = position or {"in": None, "window": 0, "given": 0}
        self.node, self.key, self.window = node, key, window
        self.number: int = start["window"]
        self.input = open_at(start["in"])
        self.before: Position = self.input.position()
        self.order = np.zeros(0, dtype=np.int64)
        self.given = 0
        if start["given"]:
            self._fill()
            self.given = start["given"]
            if self.given > len(self.order):
                self.close()
                raise KeyError("given")  # the caller reports a position that does not fit

    def _fill(self) -> None:
        self.before = self.input.position()
        held = self.window.fill(self.input, self.node.n)
        seed, epoch = self.key
        key = int(row_key(self.number, 0, seed, self.node.ordinal, epoch))
        self.order, self.given = window_permutation(key, held), 0

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements of the current window, or of the next; None at the end."""
        if self.given == len(self.order):
            self.number += len(self.order) > 0
            self._fill()
        if not len(self.order):
            return None
        step = 1 if self.node.batched else most
        order = self.order[self.given : self.given + step]
        self.given += len(order)
        return self.window.give(order)

    def position(self) -> Position:
        """Return where the window began, its number, and how many elements were returned since."""
        if self.given == len(self.order) > 0:
            return {"in": self.input.position(), "window": self.number + 1, "given": 0}
        return {"in": self.before, "window": self.number, "given": self.given}

    def close(self) -> None:
        """Close the input and drop the window."""
        self.order = self.order[:0]
        self.given = 0
        self.input.close()


def seeded(seed: object) -> None:
    """Raise PlanError for a seed that is neither None nor an integer."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise PlanError(
            f"seed must be an integer or None, got {seed!r}",
            why="random numbers are keyed by whole numbers",
            try_="seed=1, or no seed= for the one of with_options(seed=...)",
        )
