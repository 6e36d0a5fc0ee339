"""``skip`` returns all elements except the first ones."""

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
class Skip(PlaceSlice):
    """Returns all elements except the first ``n`` (rows, or batches after ``batch``)."""

    input: Node
    n: int

    total: bool = True
    parameters_format = "{self.n}"

    def check(self) -> None:
        """Raise PlanError unless ``n`` is an integer of at least 0."""
        element_count("skip", self.n)

    def length(self, *given: Length) -> Length | None:
        """Return the input's length without the first ``n`` elements."""
        return max(0, given[0] - self.n)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that drops the first ``n`` elements."""
        return _Skipping(self, self.n, open_input, epoch, position)


class _Skipping(CountingFlow[Skip]):
    """A flow without the first elements; ``count`` of them are still to be dropped."""

    key = "left"

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements after the skipped ones; None at the end."""
        while self.count:
            block = self.input.pull(self.count)
            if block is None:
                return None
            self.count -= elements(block, self.batched)
        return self.input.pull(most)
