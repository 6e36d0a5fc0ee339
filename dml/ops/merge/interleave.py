"""``interleave`` takes a few elements of each input in turn."""

from __future__ import annotations

from typing import Any, ClassVar

from dml.checks import element_count
from dml.expr.node import Node, op
from dml.ops.merge.turns import InputTurns, Weaving


@op
class Interleave(Weaving):
    """Takes ``block_length`` elements of each input in turn, and skips ended inputs.

    Row ids are derived from the input row's id and the number of the input.
    """

    input: Node
    others: tuple[Node, ...]
    block_length: int = 1

    verb: ClassVar[str] = "interleave"
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for an invalid ``block_length``, or a mix of rows and batches."""
        super().check()
        element_count("interleave block_length", self.block_length, least=1)

    def turns(self, state: list[Any] | None) -> InputTurns:
        """Return round-robin turns from the saved ``state`` on; None: from the first."""
        open_, place, taken = state or [list(range(len(self.inputs))), 0, 0]
        return _Round(self.block_length, list(open_), place, taken)

    def parameters_text(self) -> str:
        """Return as text the sources of the other inputs, and ``block_length``."""
        return f"{super().parameters_text()}, block_length={self.block_length}"


class _Round(InputTurns):
    """Round-robin turns of the ``open`` inputs; ``taken`` elements of the current one are taken."""

    def __init__(self, length: int, open_: list[int], place: int, taken: int) -> None:
        self.length, self.open, self.place, self.taken = length, open_, place, taken

    def copied(self) -> _Round:
        """Return an independent copy of the state."""
        return _Round(self.length, list(self.open), self.place, self.taken)

    def next(self) -> int:
        """Return the number of the current input, and count one element of it."""
        number = self.open[self.place]
        self.taken += 1
        if self.taken == self.length:
            self.place, self.taken = (self.place + 1) % len(self.open), 0
        return number

    def ended(self, number: int) -> None:
        """Remove the exhausted input ``number``; it is the turn of the open input after it."""
        place = self.open.index(number)
        del self.open[place]
        self.taken = 0
        self.place = place % len(self.open) if self.open else 0

    def state(self) -> list[Any]:
        """Return the state in the form that the constructor takes."""
        return [list(self.open), self.place, self.taken]
