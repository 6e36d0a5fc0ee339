"""``randomize_block_order`` permutes the pieces of a source, without mixing their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import ResumeCost
from dml.expr.node import op
from dml.ops.shuffle.shuffle_atoms import ShuffleAtoms

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class OrderAtoms(ShuffleAtoms):
    """Returns the pieces of the source in keyed random order, each with its rows in order.

    A piece is an atom of an addressable source, otherwise a read unit. Unlike in
    ``shuffle(window="atoms")``, no rows are buffered or mixed.
    """

    verb: ClassVar[str] = "randomize_block_order"
    parameters_format = "seed={self.seed}"
    # The source is read in the permuted order.
    resume_cost = ResumeCost()

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open the input, whose pieces come permuted."""
        return open_input(epoch, position)
