"""This file holds ``interleave``: a few elements of each input in turn."""

from __future__ import annotations

from typing import Any, ClassVar

from dml.expr.node import Node, op
from dml.expr.ops.take import count
from dml.expr.ops.weave import Turns, Weaving


@op
class Interleave(Weaving):
    """``block_length`` elements of each input in turn; an input that is over is left out.

    Row ids are made of the input row's id and the number of the input.
    """

    input: Node
    others: tuple[Node, ...]
    block_length: int = 1

    verb: ClassVar[str] = "interleave"
    total: bool = True

    def check(self) -> None:
        """``block_length`` counts."""
        super().check()
        count("interleave block_length", self.block_length, least=1)

    def turns(self, state: list[Any] | None) -> Turns:
        """Round and round."""
        open_, place, taken = state or [list(range(len(self.inputs))), 0, 0]
        return _Round(self.block_length, list(open_), place, taken)

    def shown(self) -> str:
        """The other inputs, and how many of each."""
        return f"{super().shown()}, block_length={self.block_length}"


class _Round:
    """Of the inputs that are open, whose turn it is, and how many of its elements were taken."""

    def __init__(self, length: int, open_: list[int], place: int, taken: int) -> None:
        self.length, self.open, self.place, self.taken = length, open_, place, taken

    @property
    def over(self) -> bool:
        """True if no input is open."""
        return not self.open

    def copied(self) -> _Round:
        """The same."""
        return _Round(self.length, list(self.open), self.place, self.taken)

    def next(self) -> int:
        """The input at whose place the cycle is."""
        number = self.open[self.place]
        self.taken += 1
        if self.taken == self.length:
            self.place, self.taken = (self.place + 1) % len(self.open), 0
        return number

    def ended(self, number: int) -> None:
        """The next one takes its place."""
        place = self.open.index(number)
        del self.open[place]
        self.taken = 0
        self.place = place % len(self.open) if self.open else 0

    def state(self) -> list[Any]:
        """As it is given to the constructor."""
        return [list(self.open), self.place, self.taken]
