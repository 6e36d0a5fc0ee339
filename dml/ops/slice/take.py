"""``take`` gives the first elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dml.checks import element_count
from dml.data.schema import Schema
from dml.expr.facts import Length, ResumeCost, Rows
from dml.expr.node import Node, op

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


def elements(block: Block, batched: bool) -> int:  # noqa: FBT001 - a fact, passed on
    """Return how many elements a pulled block is: its rows, or one batch."""
    return 1 if batched else block.n


@op
class Take(Node):
    """Gives the first ``n`` elements (rows, or batches after ``batch``), and computes no more."""

    input: Node
    n: int

    rows: ClassVar[Rows] = Rows.SLICE
    total: bool = True

    def check(self) -> None:
        """Refuse an ``n`` that is no integer of at least 0 (PlanError)."""
        element_count("take", self.n)

    def infer(self) -> Schema:
        """Return the input's schema."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """Return the input's length, ``n`` at most."""
        return min(self.n, given[0])

    @property
    def endless(self) -> bool:
        """Return False: it ends."""
        return False

    @property
    def held(self) -> ResumeCost:
        """Return the resumption cost: one number of state, no repeated work."""
        return ResumeCost(state_bytes=16)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that ends after ``n`` elements."""
        return _Taking(self, open_input, epoch, position)

    def shown(self) -> str:
        """Return the number of elements."""
        return str(self.n)


class _Taking:
    def __init__(
        self, node: Take, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start = position or {"in": None, "left": node.n}
        self.left: int = start["left"]
        self.batched = node.batched
        self.input = open_input(epoch, start["in"])
        if not self.left:
            self.input.close()

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements while some are left; None at the end."""
        block = self.input.pull(min(most, self.left)) if self.left else None
        if block is None:
            return None
        self.left -= elements(block, self.batched)
        if not self.left:
            self.input.close()
        return block

    def position(self) -> Position:
        """Return the input's position, and how many elements are left."""
        return {"in": self.input.position(), "left": self.left}

    def close(self) -> None:
        """Close the input."""
        self.input.close()
