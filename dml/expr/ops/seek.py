"""This file holds the seek: a ``skip`` that begins to read where its rows begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dml.expr.node import op
from dml.expr.ops.skip import Skip

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Seek(Skip):
    """``skip(n)`` over a source: opens it at ``unit``, in its ``atom``, past ``drop`` rows of that.

    Plans hold it where one row is one row from the source on; users write ``skip``, and a saved
    position of either is one of the other.
    """

    unit: int = 0
    atom: int = 0
    drop: int = 0

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open the input past the skipped rows."""
        start = {"unit": self.unit, "atom": self.atom, "drop": self.drop}
        return super().flow(open_input, epoch, position or {"in": start, "left": 0}, at)

    def shown(self) -> str:
        """How many are skipped, and where reading begins."""
        return f"{self.n}: from unit {self.unit}, atom {self.atom}, row {self.drop}"
