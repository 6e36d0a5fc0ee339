"""A source can be truncated to its first read units if a plan needs no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dml.base.cached_property import cached_property
from dml.expr.node import op
from dml.io.partial_source import PartOf
from dml.io.source import Source, Unit

if TYPE_CHECKING:
    import numpy as np

    from dml.data.block import Block
    from dml.kernels.rows.ids import RowIds


@op
class Leading(PartOf):
    """The first ``units`` read units of ``whole``, with unchanged numbers, rows and ids.

    Plans use it if no later unit is needed; users do not write it. ``row_count`` stays that of
    ``whole``, since orders and positions are those of ``whole``.
    """

    whole: Source
    units: int

    @property
    def undivided(self) -> Source:
        """The complete source."""
        return self.whole

    def there(self, unit: Unit) -> Unit:
        """Return the unit unchanged."""
        return unit

    @property
    def row_count(self) -> int | None:
        """Number of rows of ``whole``."""
        return self.whole.row_count

    @property
    def unit_count(self) -> int:
        """Number of units that are read."""
        return self.units

    @cached_property
    def atom_count(self) -> int | None:
        """Number of atoms of ``whole``."""
        return self.whole.atom_count

    def unit(self, index: int) -> Unit:
        """Return the unit ``index`` of ``whole``."""
        return self.whole.unit(index)

    def unit_of_atom(self, atom: int) -> int:
        """Return the index of the unit of ``whole``, at most ``units``."""
        return min(self.whole.unit_of_atom(atom), self.units)

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Return positions in ``whole``."""
        return self.whole.position_of(ids)

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of the row in ``whole``."""
        return self.whole.unit_of(ids)

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Read rows at any positions of ``whole``."""
        return self.whole.rows_at(index, columns)

    def title(self) -> str:
        """Return the title of ``whole``; plans show the truncation."""
        return self.whole.title()
