"""This file holds ``skip``: all but the first elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import Held, Length, Rows
from dml.expr.node import Node, op
from dml.expr.ops.take import count, elements
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Skip(Node):
    """All elements but the first ``n`` (rows, or batches after ``batch``)."""

    input: Node
    n: int

    rows: ClassVar[Rows] = Rows.SLICE
    total: bool = True

    def check(self) -> None:
        """``n`` counts."""
        count("skip", self.n)

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """Without the first ``n``."""
        return max(0, given[0] - self.n)

    @property
    def held(self) -> Held:
        """One number."""
        return Held(state_bytes=16)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Drop, then pass on."""
        return _Skipping(self, open_input, epoch, position)

    def shown(self) -> str:
        """How many."""
        return str(self.n)


class _Skipping:
    def __init__(
        self, node: Skip, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start = position or {"in": None, "left": node.n}
        self.left: int = start["left"]
        self.batched = node.batched
        self.input = open_input(epoch, start["in"])

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` elements past the skipped ones."""
        while self.left:
            block = self.input.pull(self.left)
            if block is None:
                return None
            self.left -= elements(block, self.batched)
        return self.input.pull(most)

    def position(self) -> Position:
        """The input's, and how many are still to be dropped."""
        return {"in": self.input.position(), "left": self.left}

    def close(self) -> None:
        """Close the input."""
        self.input.close()
