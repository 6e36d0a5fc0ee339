"""``Shared`` marks where pipelines of one run branch: the rows below it are computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Shared(SameColumns):
    """Returns the elements of the input, which several pipelines of one run share.

    Users do not write this operator: ``dml.collect_all`` adds it to the pipelines that it runs. No
    rewrite moves operators across it, so that the operators below are the same in all these
    pipelines. In a pipeline that runs alone it has no effect.
    """

    input: Node
    number: int

    rows: ClassVar[Rows] = Rows.KEPT
    parameters_format = "{self.number}"
    total: bool = True
    keeps_in_memory: bool = True

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open the input itself, for a pipeline that runs alone."""
        return open_input(epoch, position)
