"""This file holds ``take``: the first elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dml.errors import PlanError
from dml.expr.facts import Held, Length, Rows
from dml.expr.node import Node, op
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


def count(name: str, n: object, least: int = 0, others: str = "") -> None:
    """Refuse what is no whole number of at least ``least``; PlanError says ``others`` to try."""
    if isinstance(n, bool) or not isinstance(n, int) or n < least:
        raise PlanError(
            f"{name} needs an integer of at least {least}, got {n!r}",
            why="it counts elements: rows, or batches after .batch()",
            try_=f"{name.split(maxsplit=1)[0]} with {max(least, 1)} or more{others}",
        )


def elements(block: Block, batched: bool) -> int:  # noqa: FBT001 - a fact, passed on
    """How many elements a pulled block is: its rows, or one batch."""
    return 1 if batched else block.n


@op
class Take(Node):
    """The first ``n`` elements (rows, or batches after ``batch``), and no work for others."""

    input: Node
    n: int

    rows: ClassVar[Rows] = Rows.SLICE
    total: bool = True

    def check(self) -> None:
        """``n`` counts."""
        count("take", self.n)

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """No more than ``n``."""
        return min(self.n, given[0])

    @property
    def endless(self) -> bool:
        """Never: it stops."""
        return False

    @property
    def held(self) -> Held:
        """One number."""
        return Held(state_bytes=16)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Pull what is left."""
        return _Taking(self, open_input, epoch, position)

    def shown(self) -> str:
        """How many."""
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
        """Up to ``most`` elements while some are left."""
        block = self.input.pull(min(most, self.left)) if self.left else None
        if block is None:
            return None
        self.left -= elements(block, self.batched)
        if not self.left:
            self.input.close()
        return block

    def position(self) -> Position:
        """The input's, and how many are left."""
        return {"in": self.input.position(), "left": self.left}

    def close(self) -> None:
        """Close the input."""
        self.input.close()
