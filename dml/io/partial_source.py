"""The base class of sources that consist of some read units of another source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dml.data.schema import Schema
from dml.io.source import Source, Unit

if TYPE_CHECKING:
    import numpy as np

    from dml.data.block import Block
    from dml.expr.columns.value import Value
    from dml.kernels.rows.ids import RowIds


class PartOf(Source):
    """Some read units of ``undivided``, with their rows and ids unchanged.

    Units, atoms and positions are those of ``undivided`` unless a subclass numbers them anew.
    """

    def there(self, unit: Unit) -> Unit:
        """Return the unit of ``undivided`` that corresponds to ``unit``."""
        return unit

    @property
    def row_count(self) -> int | None:
        """Number of rows of ``undivided``."""
        return self.undivided.row_count

    @property
    def unit_count(self) -> int:
        """Number of units of ``undivided``."""
        return self.undivided.unit_count

    @property
    def atom_count(self) -> int | None:
        """Number of atoms of ``undivided``."""
        return self.undivided.atom_count

    def unit(self, index: int) -> Unit:
        """Return unit ``index`` of ``undivided``."""
        return self.undivided.unit(index)

    def unit_of_atom(self, atom: int) -> int:
        """Return the index of the unit of ``undivided`` that contains atom number ``atom``."""
        return self.undivided.unit_of_atom(atom)

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of ``undivided`` that contains the first row in ``ids``, or None."""
        return self.undivided.unit_of(ids)

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Return the positions of rows in ``undivided``: (n,) int64."""
        return self.undivided.position_of(ids)

    def infer(self) -> Schema:
        """Return the schema of ``undivided``."""
        return self.undivided.schema

    @property
    def columns_apart(self) -> bool:
        """True if reading fewer columns of ``undivided`` saves the bytes of the others."""
        return self.undivided.columns_apart

    @property
    def far(self) -> bool:
        """True if reading ``undivided`` requests bytes from other machines."""
        return self.undivided.far

    @property
    def addressable(self) -> bool:
        """True if ``undivided`` can read any rows directly, by ``rows_at``."""
        return self.undivided.addressable

    def identity(self) -> bytes:
        """Return the content digest of all data of ``undivided``, not only of this part."""
        return self.undivided.identity()

    def identity_bytes(self) -> float:
        """Return the bytes that ``identity`` of ``undivided`` would read now, for all its data."""
        return self.undivided.identity_bytes()

    def content_parts(self, *, quick: bool) -> Iterator[tuple[str, str, bytes]]:
        """Yield kind, description and digest of each component of all data of ``undivided``."""
        return self.undivided.content_parts(quick=quick)

    def opened(self) -> bytes:
        """Return a digest of all data of ``undivided`` that is valid within this process."""
        return self.undivided.opened()

    def revision(self) -> bytes:
        """Return a digest of all data of ``undivided`` that is valid on all machines."""
        return self.undivided.revision()

    def likeness(self) -> bytes:
        """Return the cheap digest of all data of ``undivided``; see ``Source.likeness``."""
        return self.undivided.likeness()

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Read the corresponding unit of ``undivided``."""
        return self.undivided.read(self.there(unit), columns, skip_atoms)

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Estimate the memory in bytes that reading the corresponding unit takes."""
        return self.undivided.working_bytes(self.there(unit), columns)

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the stored bytes that reading the corresponding unit fetches."""
        return self.undivided.stored_bytes(self.there(unit), columns)

    def changed_ns(self, unit: Unit) -> int:
        """Return the time in ns of the last change to the corresponding unit's data, or 0."""
        return self.undivided.changed_ns(self.there(unit))

    def may_match(self, unit: Unit, predicate: tuple[Value, ...]) -> bool:
        """Return False only if statistics prove that no row of the corresponding unit passes."""
        return self.undivided.may_match(self.there(unit), predicate)

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Return the bounds of ``undivided``, which also hold for a part of its rows."""
        return self.undivided.bounds(column)
