"""``Seek`` is a ``skip`` over a source that starts reading at the first row it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dml.expr.node import op
from dml.ops.slice.skip import Skip

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Seek(Skip):
    """``skip(n)`` over a source that is read from row ``drop`` of atom ``atom`` of ``unit`` on.

    Plans use it if rows correspond one-to-one to those of the source. Users write ``skip``;
    positions of both are interchangeable.
    """

    unit: int = 0
    atom: int = 0
    drop: int = 0

    parameters_format = "{self.n}: from unit {self.unit}, atom {self.atom}, row {self.drop}"

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open the input after the skipped rows."""
        start = {"unit": self.unit, "atom": self.atom, "drop": self.drop}
        return super().flow(open_input, epoch, position or {"in": start, "left": 0}, at)
