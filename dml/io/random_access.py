"""The base class of sources with random access, in which every atom is a unit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from dml.data.block import Block
from dml.errors import InternalError, PlanError
from dml.io.source import Source, Unit
from dml.kernels.rows.ids import RowIds, source_key


class Addressed(Source):
    """A source that reads any rows at equal cost; subclasses have ``row_count`` and ``atom_rows``.

    Subclasses also define the bytes of a row (``row_bytes``), the name that row ids are derived
    from (``id_name``), and how columns of a range or an index become a block (``part``,
    ``picked``).
    """

    atom_rows: int
    row_bytes: float
    id_name: ClassVar[str] = ""
    addressable: bool = True

    @property
    def row_count(self) -> int:
        """Number of rows, always known."""
        raise InternalError(f"{type(self).__name__} does not count its rows")

    def part(self, start: int, stop: int, columns: tuple[str, ...], ids: RowIds) -> Block:
        """Return rows ``start`` to ``stop`` (exclusive) as a block with row ids ``ids``."""
        return self.picked(np.arange(start, stop, dtype=np.int64), columns, ids)

    def picked(self, index: np.ndarray, columns: tuple[str, ...], ids: RowIds) -> Block:
        """Return the rows at ``index`` (n,) int64 as a block, in that order."""
        raise InternalError(f"{type(self).__name__} has no rows")

    @property
    def key(self) -> int:
        """The high 64 bits of all row ids of the source, derived from ``id_name``."""
        return source_key(self.id_name)

    @property
    def atom_count(self) -> int:
        """Number of atoms; only the last may have fewer than ``atom_rows`` rows."""
        return -(-self.row_count // self.atom_rows)

    @property
    def unit_count(self) -> int:
        """Number of read units: one per atom."""
        return self.atom_count

    def unit(self, index: int) -> Unit:
        """Return read unit ``index``, which is the atom with that number."""
        if not 0 <= index < self.unit_count:
            raise InternalError(f"{self.title()} has no unit {index}")
        start = index * self.atom_rows
        rows = min(self.atom_rows, self.row_count - start)
        return Unit(
            index=index,
            atom=index,
            atoms=1,
            rows=rows,
            atom_rows=self.atom_rows,
            nbytes=int(rows * self.row_bytes),
            place=f"{self.id_name}, rows {start} to {start + rows - 1}",
        )

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of the first row in ``ids``; None if the row is not of this source."""
        high, low = ids.slice(0, 1).arrays()
        if int(high[0]) != self.key or int(low[0]) >= self.row_count:
            return None
        return self.unit(int(low[0]) // self.atom_rows)

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Yield the single block of ``unit``, or none if its atom is skipped."""
        if skip_atoms == 0:
            start = unit.index * self.atom_rows
            stop = min(start + self.atom_rows, self.row_count)
            yield self.part(start, stop, columns, RowIds.run(self.key, start, stop - start))

    def read_run(self, first: Unit, last: Unit, columns: tuple[str, ...]) -> Block:
        """Return consecutive units as one block, since their rows are contiguous."""
        start, stop = first.index * self.atom_rows, last.index * self.atom_rows + (last.rows or 0)
        return self.part(start, stop, columns, RowIds.run(self.key, start, stop - start))

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Return the row numbers as positions: (n,) int64."""
        return ids.low().astype(np.int64)

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Return the rows at global positions ``index`` (n,) int64, in that order."""
        if len(index) and not (index.min() >= 0 and index.max() < self.row_count):
            raise InternalError(f"{self.title()} has {self.row_count} rows; asked for others")
        return self.picked(index, columns, RowIds.at(self.key, index))


def check_atom_rows(atom_rows: object, operator: str) -> None:
    """Raise PlanError if ``atom_rows`` is not a positive integer."""
    if isinstance(atom_rows, bool) or not isinstance(atom_rows, int) or atom_rows < 1:
        raise PlanError(
            f"{operator} needs atom_rows of at least 1, got {atom_rows!r}",
            why="positions and batches of a source rest on atoms of so many rows",
            try_="leave atom_rows out: 65,536 rows or about 8 MiB",
        )
