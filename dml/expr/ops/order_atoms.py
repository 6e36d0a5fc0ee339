"""This file holds ``randomize_block_order``: permute what a source can seek to, as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import Held
from dml.expr.node import Node, op
from dml.expr.ops.shuffle_atoms import ShuffleAtoms

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class OrderAtoms(ShuffleAtoms):
    """Pieces of the source in keyed order, the rows of each in their own.

    As ``shuffle(window="atoms")``, but that nothing is held and no rows are mixed.
    """

    input: Node
    size: int
    seed: int | None
    fresh: bool

    verb: ClassVar[str] = "randomize_block_order"

    @property
    def held(self) -> Held:
        """Nothing: the source is read in that order."""
        return Held()

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """The pieces as they come."""
        return open_input(epoch, position)

    def shown(self) -> str:
        """The seed."""
        return f"seed={self.seed}"
