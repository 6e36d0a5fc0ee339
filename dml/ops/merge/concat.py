"""``concat`` returns the elements of several inputs, one input after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dml.expr.facts import Length
from dml.expr.node import Node, op
from dml.ops.merge.merge import Merging, agreed

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Concat(Merging):
    """Returns all elements of ``input``, then all of the first of ``others``, and so on.

    Row ids are derived from the input row's id and the number of the input.
    """

    input: Node
    others: tuple[Node, ...]

    verb: ClassVar[str] = "concat"
    mark: ClassVar[int] = int.from_bytes(b"concat", "big")
    total: bool = True

    def length(self, *given: Length) -> Length | None:
        """Return the sum of the inputs' lengths."""
        return sum(given)

    def merge(
        self, openers: Sequence[Opener], epoch: int, position: Position | None, at: At
    ) -> Flow:
        """Open a flow with one input open at a time."""
        return _Following(self, openers, epoch, position, at)


def joined(first: Node, others: tuple[Node, ...]) -> Concat:
    """Return one ``Concat`` of all nodes; a node that is a ``Concat`` is replaced by its inputs."""
    first, *rest = (
        each
        for node in (first, *others)
        for each in (node.inputs if isinstance(node, Concat) else (node,))
    )
    return Concat(first, tuple(rest))


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
        self.node, self.openers, self.epoch, self.at = node, openers, epoch, at
        self.turn: int = start["turn"]
        self.input = self._open(start["in"])

    def _open(self, position: Position | None) -> Flow | None:
        over = self.turn >= len(self.openers)
        return None if over else self.openers[self.turn](self.epoch, position)

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements of the current input; None at the end."""
        while self.input is not None:
            block = self.input.pull(most)
            if block is not None:
                agreed(self.node, block, self.turn + 1, self.at)
                return dataclasses.replace(block, ids=self.node.derived(block.ids, self.turn))
            self.input.close()
            self.turn += 1
            self.input = self._open(None)
        return None

    def position(self) -> Position:
        """Return the number of the current input, and its position."""
        return {"turn": self.turn, "in": None if self.input is None else self.input.position()}

    def close(self) -> None:
        """Close the input that is open."""
        if self.input is not None:
            self.input.close()
