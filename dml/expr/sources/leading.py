"""This file cuts a source short: the first read units of another, where no more is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dml.expr.computed import cached_property
from dml.expr.node import op
from dml.expr.sources.part_of import PartOf
from dml.expr.sources.source import Source, Unit

if TYPE_CHECKING:
    import numpy as np

    from dml.expr.block import Block
    from dml.kernels.ids import RowIds


@op
class Leading(PartOf):
    """The first ``units`` read units of ``whole``, as they are there: same numbers, rows, ids.

    Plans hold it where nothing beyond is needed; users do not write it. ``row_count`` stays the
    whole's, since orders and positions are those of the whole.
    """

    whole: Source
    units: int

    @property
    def undivided(self) -> Source:
        """The whole."""
        return self.whole

    def there(self, unit: Unit) -> Unit:
        """The same."""
        return unit

    @property
    def row_count(self) -> int | None:
        """Rows of the whole."""
        return self.whole.row_count

    @property
    def unit_count(self) -> int:
        """The units that are read."""
        return self.units

    @cached_property
    def atom_count(self) -> int | None:
        """Atoms of the whole."""
        return self.whole.atom_count

    def unit(self, index: int) -> Unit:
        """The whole's unit."""
        return self.whole.unit(index)

    def unit_of_atom(self, atom: int) -> int:
        """The whole's unit, or the end."""
        return min(self.whole.unit_of_atom(atom), self.units)

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Positions in the whole."""
        return self.whole.position_of(ids)

    def unit_of(self, ids: RowIds) -> Unit | None:
        """The whole's."""
        return self.whole.unit_of(ids)

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Rows anywhere in the whole."""
        return self.whole.rows_at(index, columns)

    def title(self) -> str:
        """The whole's: that it is cut short is said by the plan."""
        return self.whole.title()
