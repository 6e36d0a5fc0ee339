"""``take`` returns the first elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dml.checks import element_count
from dml.expr.facts import Length
from dml.expr.node import Node, op
from dml.ops.slice.counting_flow import CountingFlow, PlaceSlice, elements

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Take(PlaceSlice):
    """Returns the first ``n`` elements (rows, or batches after ``batch``), and reads no further."""

    input: Node
    n: int

    total: bool = True
    endless = False
    parameters_format = "{self.n}"

    def check(self) -> None:
        """Raise PlanError unless ``n`` is an integer of at least 0."""
        element_count("take", self.n)

    def length(self, *given: Length) -> Length | None:
        """Return the input's length, at most ``n``."""
        return min(self.n, given[0])

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that ends after ``n`` elements."""
        return _Taking(self, self.n, open_input, epoch, position)


class _Taking(CountingFlow[Take]):
    """A flow of the first elements; ``count`` of them are left, and at 0 the input is closed."""

    key = "left"

    def __init__(
        self, node: Take, first: int, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        super().__init__(node, first, open_input, epoch, position)
        if not self.count:
            self.close()

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements while some are left; None at the end."""
        block = self.input.pull(min(most, self.count)) if self.count else None
        if block is None:
            return None
        self.count -= elements(block, self.batched)
        if not self.count:
            self.close()
        return block
