"""This file holds the place where pipelines of one run part: below it, rows are made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import Held, Rows
from dml.expr.node import Node, op

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.expr.schema import Schema


@op
class Shared(Node):
    """The elements of the input, which the pipelines of one run take from each other.

    No verb makes it: ``dml.collect_all`` puts it into the pipelines that it runs. Nothing moves
    across it, so that what lies below is the same in all of them. By itself it changes nothing.
    """

    input: Node
    number: int

    rows: ClassVar[Rows] = Rows.KEPT
    total: bool = True
    keeps_in_memory: bool = True

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    @property
    def held(self) -> Held:
        """Nothing of its own."""
        return Held()

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """The input itself, where nobody else takes from it."""
        return open_input(epoch, position)

    def shown(self) -> str:
        """Which of those of one run."""
        return str(self.number)
