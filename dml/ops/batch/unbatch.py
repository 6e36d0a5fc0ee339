"""``unbatch`` turns batches into rows again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.errors import PlanError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import LocalFlow
from dml.expr.node import Node, op
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Unbatch(SameColumns):
    """Unbatch returns the rows of each batch, with their ids in the batch.

    Each batch is an atom for the operators above.
    """

    input: Node

    # keeps ids and columns; each batch is a run
    parameters_format = ""
    rows: ClassVar[Rows] = Rows.RUNS
    # The batch's position is saved, the batch is read again.
    resume_cost = ResumeCost(state_bytes=32, work="one batch")
    batched = False
    hands_on: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for an input of rows."""
        if not self.input.batched:
            raise PlanError(
                "unbatch without batch",
                why="its input is rows already",
                try_=".batch(n) before it, or leave it out",
            )

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow over the rows of one batch after the other."""
        return LocalFlow(_next_batch, open_input, epoch, position)


def _next_batch(input_: Flow) -> Iterator[Block] | None:
    block = input_.pull(1)
    return None if block is None else iter((block,))
