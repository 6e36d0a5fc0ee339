"""A source can be truncated to its first read units if a plan needs no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dml.expr.node import op
from dml.io.partial_source import PartOf
from dml.io.source import Source

if TYPE_CHECKING:
    import numpy as np

    from dml.data.block import Block


@op
class Leading(PartOf):
    """The first ``units`` read units of ``whole``, with unchanged numbers, rows and ids.

    Plans use this source if no later unit is needed; users do not write it. ``row_count`` is that
    of ``whole``, since orders and positions are those of ``whole``.
    """

    whole: Source
    units: int

    @property
    def undivided(self) -> Source:
        """The complete source."""
        return self.whole

    @property
    def unit_count(self) -> int:
        """Number of units that are read."""
        return self.units

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Read rows at any positions of ``whole``."""
        return self.whole.rows_at(index, columns)

    def title(self) -> str:
        """Return the title of ``whole``; plans show the truncation."""
        return self.whole.title()
