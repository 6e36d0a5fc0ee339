"""This file holds ``concat``: one input after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dml.expr.node import Node, op
from dml.expr.ops.merge import Merging, Turns, agreed

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position

CONCAT = int.from_bytes(b"concat", "big")


@op
class Concat(Merging):
    """All elements of ``input``, then all of the first of ``others``, and so on.

    Row ids are made of the input row's id and the number of the input.
    """

    input: Node
    others: tuple[Node, ...]

    verb: ClassVar[str] = "concat"
    total: bool = True

    def merge(
        self, openers: Sequence[Opener], epoch: int, position: Position | None, at: At
    ) -> Flow:
        """One input is open at a time."""
        return _Following(self, openers, epoch, position, at)


class _Following:
    def __init__(
        self,
        node: Concat,
        openers: Sequence[Opener],
        epoch: int,
        position: Position | None,
        at: At,
    ) -> None:
        start = position or {"turn": 0, "in": None}
        self.node, self.at = node, at
        self.turn: int = start["turn"]
        positions = [None] * len(openers)
        if self.turn < len(openers):
            positions[self.turn] = start["in"]
        self.turns = Turns(openers, epoch, positions)

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` elements of the input whose turn it is."""
        while self.turn < len(self.turns.openers):
            block = self.turns.pull(self.turn, most)
            if block is not None:
                agreed(self.node, block, self.turn + 1, self.at)
                ids = block.ids.derive(CONCAT + self.node.level, self.turn)
                return dataclasses.replace(block, ids=ids)
            self.turns.end(self.turn)
            self.turn += 1
        return None

    def position(self) -> Position:
        """Whose turn it is, and where that input is."""
        inner = self.turns.position()
        return {"turn": self.turn, "in": inner[self.turn] if self.turn < len(inner) else None}

    def close(self) -> None:
        """Close the input that is open."""
        self.turns.close()
