"""``skip`` gives all elements but the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dml.checks import element_count
from dml.data.schema import Schema
from dml.expr.facts import Length, ResumeCost, Rows
from dml.expr.node import Node, op
from dml.ops.slice.take import elements

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Skip(Node):
    """Skip gives all elements but the first ``n`` (rows, or batches after ``batch``)."""

    input: Node
    n: int

    rows: ClassVar[Rows] = Rows.SLICE
    total: bool = True

    def check(self) -> None:
        """Refuse an ``n`` that is no integer of at least 0 (PlanError)."""
        element_count("skip", self.n)

    def infer(self) -> Schema:
        """Return the input's schema."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """Return the input's length without the first ``n`` elements."""
        return max(0, given[0] - self.n)

    @property
    def held(self) -> ResumeCost:
        """Return the resumption cost: one number of state, no repeated work."""
        return ResumeCost(state_bytes=16)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that drops the first ``n`` elements."""
        return _Skipping(self, open_input, epoch, position)

    def shown(self) -> str:
        """Return the number of elements."""
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
        """Return up to ``most`` elements after the skipped ones; None at the end."""
        while self.left:
            block = self.input.pull(self.left)
            if block is None:
                return None
            self.left -= elements(block, self.batched)
        return self.input.pull(most)

    def position(self) -> Position:
        """Return the input's position, and how many elements are still to be dropped."""
        return {"in": self.input.position(), "left": self.left}

    def close(self) -> None:
        """Close the input."""
        self.input.close()
