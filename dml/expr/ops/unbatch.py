"""This file holds ``unbatch``: batches become rows again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.errors import PlanError
from dml.expr.computed import cached_property
from dml.expr.facts import Held, Rows
from dml.expr.flow import LocalFlow
from dml.expr.node import Node, op
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Unbatch(Node):
    """The rows of each batch, one by one, with the ids that they had in it.

    Each batch is an atom of what follows.
    """

    input: Node

    # keeps ids and columns; each batch is a run
    rows: ClassVar[Rows] = Rows.RUNS
    hands_on: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Batches below."""
        if not self.input.batched:
            raise PlanError(
                "unbatch without batch",
                why="its input is rows already",
                try_=".batch(n) before it, or leave it out",
            )

    @cached_property
    def batched(self) -> bool:
        """Elements are rows from here on."""
        return False

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    @property
    def held(self) -> Held:
        """Where the batch at hand began, and how many of its rows were given."""
        return Held(state_bytes=32, work="one batch")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Batch after batch."""
        return LocalFlow(_next_batch, open_input, epoch, position)

    def shown(self) -> str:
        """Nothing."""
        return ""


def _next_batch(input_: Flow) -> Iterator[Block] | None:
    block = input_.pull(1)
    return None if block is None else iter((block,))
