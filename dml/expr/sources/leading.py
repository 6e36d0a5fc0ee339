"""This file cuts a source short: the first read units of another, where no more is needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from dml.expr.node import op
from dml.expr.schema import Schema
from dml.expr.sources.source import Source, Unit

if TYPE_CHECKING:
    import numpy as np

    from dml.expr.block import Block
    from dml.expr.value import Value
    from dml.kernels.ids import RowIds


@op
class Leading(Source):
    """The first ``units`` read units of ``whole``, as they are there: same numbers, rows, ids.

    Plans hold it where nothing beyond is needed; users do not write it. ``row_count`` stays the
    whole's, since orders and positions are those of the whole.
    """

    whole: Source
    units: int

    def infer(self) -> Schema:
        """The whole's."""
        return self.whole.schema

    @property
    def row_count(self) -> int | None:
        """Rows of the whole."""
        return self.whole.row_count

    @property
    def columns_apart(self) -> bool:
        """As the whole's."""
        return self.whole.columns_apart

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

    def identity(self) -> bytes:
        """The whole's."""
        return self.whole.identity()

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """As the whole does."""
        return self.whole.read(unit, columns, skip_atoms)

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """As the whole does."""
        return self.whole.working_bytes(unit, columns)

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """As the whole does."""
        return self.whole.stored_bytes(unit, columns)

    def changed_ns(self, unit: Unit) -> int:
        """The whole's."""
        return self.whole.changed_ns(unit)

    @property
    def far(self) -> bool:
        """As the whole is."""
        return self.whole.far

    def may_match(self, unit: Unit, predicate: tuple[Value, ...]) -> bool:
        """As the whole does."""
        return self.whole.may_match(unit, predicate)

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Positions in the whole."""
        return self.whole.position_of(ids)

    def unit_of(self, ids: RowIds) -> Unit | None:
        """The whole's."""
        return self.whole.unit_of(ids)

    def likeness(self) -> bytes:
        """The whole's."""
        return self.whole.likeness()

    @property
    def addressable(self) -> bool:
        """As the whole is."""
        return self.whole.addressable

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Rows anywhere in the whole."""
        return self.whole.rows_at(index, columns)

    def title(self) -> str:
        """The whole's: that it is cut short is said by the plan."""
        return self.whole.title()
