"""This file holds ``shuffle(buffer_size)``: windows of the stream in keyed random order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.errors import PlanError
from dml.expr.block import Block, concat
from dml.expr.facts import Held, Rows
from dml.expr.flow import Room, read_rows
from dml.expr.node import Node, op
from dml.expr.ops.take import count
from dml.expr.schema import Schema
from dml.kernels.permute import window_permutation
from dml.kernels.random import row_key

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class ShuffleWindow(Node):
    """Every run of ``n`` elements that reach it, permuted by a key of (seed, operator, epoch, run).

    Holds one window. The order depends on what reaches it and on nothing else: not on partitions,
    workers or timing. ``fresh`` False keeps one order over epochs.
    """

    input: Node
    n: int
    seed: int | None
    fresh: bool

    rows: ClassVar[Rows] = Rows.PERMUTED
    gathers: ClassVar[int] = 2
    random: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """A positive window."""
        count("shuffle buffer_size", self.n, least=1)
        seeded(self.seed)

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    @property
    def held(self) -> Held:
        """Where the window began; the window is filled again."""
        return Held(state_bytes=48, work_rows=self.n, work="one window")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Fill a window, give it in order of its permutation, fill the next."""
        key = (at.key(self.seed), epoch if self.fresh else 0)
        room = Room(self, at.hold_bytes)
        window = Batches(room) if self.batched else Gathered(room)
        return _Windows(self, partial(open_input, epoch), position, key, window)

    def shown(self) -> str:
        """Size and seed."""
        return f"buffer_size={self.n}, seed={self.seed}"


class Gathered:
    """A window of rows: one block, gathered in any order."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.block: Block | None = None

    def fill(self, flow: Flow, n: int) -> int:
        """Hold the next ``n`` rows; how many there were."""
        self.block = None
        parts = read_rows(flow, n, self.room.empty())
        self.block = concat(parts) if parts else None
        return self.block.n if self.block is not None else 0

    def give(self, order: np.ndarray) -> Block | None:
        """The rows at ``order``."""
        return None if self.block is None else self.block.take(order)


class Batches:
    """A window of batches: given one by one."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.held: list[Block] = []

    def fill(self, flow: Flow, n: int) -> int:
        """Hold the next ``n`` batches; how many there were."""
        self.held = []
        self.room.empty()
        while len(self.held) < n and (block := flow.pull(1)) is not None:
            self.room.take(block)
            self.held.append(block)
        return len(self.held)

    def give(self, order: np.ndarray) -> Block | None:
        """The first batch of ``order``: an element at a time."""
        return self.held[int(order[0])]


class _Windows:
    def __init__(
        self,
        node: ShuffleWindow,
        open_at: Callable[[Position | None], Flow],
        position: Position | None,
        key: tuple[int, int],
        window: Gathered | Batches,
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
                raise KeyError("given")  # which is said of a position that does not fit

    def _fill(self) -> None:
        self.before = self.input.position()
        held = self.window.fill(self.input, self.node.n)
        seed, epoch = self.key
        key = int(row_key(self.number, 0, seed, self.node.ordinal, epoch))
        self.order, self.given = window_permutation(key, held), 0

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` elements of the window at hand, or of the next."""
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
        """Where the window began, its number, and how much of it was given."""
        if self.given == len(self.order) > 0:
            return {"in": self.input.position(), "window": self.number + 1, "given": 0}
        return {"in": self.before, "window": self.number, "given": self.given}

    def close(self) -> None:
        """Close the input and drop the window."""
        self.order = self.order[:0]
        self.given = 0
        self.input.close()


def seeded(seed: object) -> None:
    """Refuse a seed that is neither None nor an integer (PlanError)."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise PlanError(
            f"seed must be an integer or None, got {seed!r}",
            why="random numbers are keyed by whole numbers",
            try_="seed=1, or no seed= for the one of with_options(seed=...)",
        )
