"""This file reads a ``DataSource``: its parts are the units, what it gives is cut into atoms.

Where a part does not say how many rows it has its unit is open. A source that has ``take`` is
addressable, and its parts are not looked at: every atom is a unit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dml.errors import DmlError, InternalError, PlanError, SourceError
from dml.expr.block import Block
from dml.expr.calls import UserFunction
from dml.expr.computed import cached_property
from dml.expr.fingerprint import digest
from dml.expr.interrupts import closes, interrupts
from dml.expr.node import op
from dml.expr.schema import Schema
from dml.expr.sources.addressed import Addressed, check_atom_rows
from dml.expr.sources.arriving import block_over, conformed, cut, width_of
from dml.expr.sources.given import Given, given
from dml.expr.sources.source import ATOM_BYTES, ATOM_ROWS, Source, Unit, balanced
from dml.kernels.ids import RowIds, source_key
from dml.plugins import DataSource, SourcePart


class Plugged(Source):
    """What both kinds of given sources are."""

    given: Given
    atom_rows: int | None

    def check(self) -> None:
        """Atoms have rows."""
        if self.atom_rows is not None:
            check_atom_rows(self.atom_rows, self.given.name)

    def infer(self) -> Schema:
        """What the source said."""
        return self.given.schema

    @property
    def calls(self) -> UserFunction | None:
        """The source: a user's own, which may have a name in this run only."""
        return self.given.fn

    @property
    def far(self) -> bool:
        """For all that is known."""
        return True

    def identity(self) -> bytes:
        """What the source said."""
        return self.given.fn.digest if self.given.fn.reason else self.given.content

    def identity_bytes(self) -> float:
        """What a source reads that says its content when it is asked for, nobody knows."""
        asked = callable(self.given.known) and "content" not in vars(self.given)
        return math.inf if asked and not self.given.fn.reason else 0

    def likeness(self) -> bytes:
        """Names and rows of the parts."""
        return digest("parts", [(part.name, part.rows) for part in self.given.parts])

    def shown(self) -> str:
        """Name and, if they are given, rows of an atom."""
        atoms = "" if self.atom_rows is None else f", atom_rows={self.atom_rows}"
        return f"{self.given.name!r}{atoms}"


@op
class GivenParts(Plugged):
    """Rows of a ``DataSource`` in the order of its parts: a part with rows, or open, is a unit."""

    given: Given
    atom_rows: int | None = None

    unit_name: ClassVar[str] = "part"
    to_shrink: ClassVar[str] = "a smaller atom_rows= (rows are read so many at a time)"

    @cached_property
    def _parts(self) -> tuple[SourcePart, ...]:
        return tuple(part for part in self.given.parts if part.rows != 0)

    @cached_property
    def _keys(self) -> tuple[int, ...]:
        """What the ids of each part's rows share."""
        name = self.given.name
        return tuple(source_key(f"{name}/{p.name}" if p.name else name) for p in self._parts)

    def _each(self, part: SourcePart) -> int:
        """Rows of an atom of ``part``."""
        rows = self.atom_rows or self.given.source.atom_rows
        if rows is not None:
            return rows
        if part.rows and part.nbytes:
            return balanced(part.rows, part.nbytes)
        return self._atom_rows

    @cached_property
    def _atom_rows(self) -> int:
        """Rows of an atom, judged by the types alone."""
        width = sum(map(width_of, self.given.schema.values()))
        return max(1, min(ATOM_ROWS, ATOM_BYTES // max(1, width)))

    @cached_property
    def _counted(self) -> bool:
        return all(part.rows is not None for part in self._parts)

    @cached_property
    def _atom_ends(self) -> list[int | None]:
        """The number of the atom after each unit; None from the first open unit on."""
        found: list[int | None] = []
        end: int | None = 0
        for part in self._parts:
            open_ = end is None or part.rows is None
            end = None if open_ else (end or 0) + -(-(part.rows or 0) // self._each(part))
            found.append(end)
        return found

    @property
    def row_count(self) -> int | None:
        """Rows of all parts, if each says how many."""
        return sum(part.rows or 0 for part in self._parts) if self._counted else None

    @property
    def unit_count(self) -> int:
        """Parts that have rows, or may have."""
        return len(self._parts)

    @property
    def atom_count(self) -> int | None:
        """Atoms of all parts."""
        return self._atom_ends[-1] if self._atom_ends else 0

    def unit(self, index: int) -> Unit:
        """Part ``index``."""
        if not 0 <= index < self.unit_count:
            raise InternalError(f"{self.title()} has no unit {index}")
        part = self._parts[index]
        each, rows = self._each(part), part.rows
        width = sum(map(width_of, self.given.schema.values()))
        known = part.nbytes if rows is not None else None
        nbytes = (each if rows is None else rows) * width if known is None else known
        return Unit(
            index=index,
            atom=self._atom_ends[index - 1] if index else 0,
            atoms=None if rows is None else -(-rows // each),
            rows=rows,
            atom_rows=each,
            nbytes=nbytes,
            place=self._place(part),
        )

    def _place(self, part: SourcePart) -> str:
        return f"{self.given.name}, {part.name}" if part.name else self.given.name

    def unit_of_atom(self, atom: int) -> int:
        """Index of the part that holds atom number ``atom``."""
        return bisect_right([end for end in self._atom_ends if end is not None], atom)

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Atoms cut out of what the source gives; what is skipped is read, and dropped.

        SourceError where the source raises, gives other columns, or other rows than it said.
        """
        part, key = self._parts[unit.index], self._keys[unit.index]
        if not columns and part.rows is not None:
            for start in range(skip_atoms * unit.atom_rows, part.rows, unit.atom_rows):
                rows = min(unit.atom_rows, part.rows - start)
                yield Block(Schema(), (), RowIds.run(key, start, rows))
            return
        schema = self.given.columns(columns)
        row = 0
        for table in cut(self._batches(part, columns), unit.atom_rows, unit.most_bytes):
            if row >= skip_atoms * unit.atom_rows:
                yield block_over(table, RowIds.run(key, row, table.num_rows), schema)
            row += table.num_rows
        if part.rows not in (None, row):
            raise SourceError(
                f"{unit.place} gave {row} rows, and had said {part.rows}",
                why="positions rest on what is said",
                try_="SourcePart(name, rows=None) where the number is not known",
            )

    def _batches(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """What the source gives, in the types that it promised, until it ends or raises."""
        wanted = columns or self.given.schema.names[:1]  # rows are counted by some column
        schema = self.given.columns(wanted)
        row, place = 0, self._place(part)
        try:
            for batch in self.given.source.read(part, wanted):
                yield conformed(batch, schema, place, row)
                row += batch.num_rows
        except DmlError:
            raise
        except BaseException as error:
            if interrupts(error) or closes(error):
                raise
            told = self.given.raised(error, place, row)
            raise told from told.__cause__

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """What the source said of the part, which it may hold as a whole; else two atoms."""
        part = self._parts[unit.index]
        return part.nbytes if part.nbytes is not None else 2 * unit.nbytes

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the parts in ascending order, and the position of each one's first row."""
        keys = np.array(self._keys, dtype=np.uint64)
        firsts = np.array([0, *accumulate(p.rows or 0 for p in self._parts)][:-1], dtype=np.int64)
        order = np.argsort(keys)
        return keys[order], firsts[order]

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Rows of the parts before, and the row's number in its own part."""
        keys, starts = self._starts
        high, low = ids.arrays()
        found: np.ndarray = starts[np.searchsorted(keys, high)] + low.astype(np.int64)
        return found

    def unit_of(self, ids: RowIds) -> Unit | None:
        """The part of a row, by its key."""
        high = int(ids.slice(0, 1).arrays()[0][0])
        return self.unit(self._keys.index(high)) if high in self._keys else None


@op
class GivenRows(Plugged, Addressed):
    """Rows of a ``DataSource`` that has ``take``: any of them, anywhere, atoms as units."""

    given: Given
    atom_rows: int

    @property
    def id_name(self) -> str:  # type: ignore[override]
        """The name of the source."""
        return self.given.name

    @cached_property
    def row_count(self) -> int:
        """Rows of all parts."""
        return sum(part.rows or 0 for part in self.given.parts)

    @property
    def row_bytes(self) -> float:
        """Bytes of a row, as the parts say, or judged by the types."""
        known = [part.nbytes for part in self.given.parts if part.nbytes is not None]
        if known and len(known) == len(self.given.parts) and self.row_count:
            return sum(known) / self.row_count
        return float(sum(map(width_of, self.given.schema.values())))

    def part(self, start: int, stop: int, columns: tuple[str, ...], ids: RowIds) -> Block:
        """Rows ``start`` to ``stop``."""
        return self.picked(np.arange(start, stop, dtype=np.int64), columns, ids)

    def picked(self, index: np.ndarray, columns: tuple[str, ...], ids: RowIds) -> Block:
        """The rows at ``index``, as the source gives them."""
        schema = self.given.columns(columns)
        if not columns or not len(index):
            return block_over(pa.Table.from_batches([], schema.to_arrow()), ids, schema)
        place = f"{self.given.name}, {len(index)} rows from {int(index[0])} on"
        try:
            table = conformed(self.given.source.take(index, columns), schema, place, 0)
        except DmlError:
            raise
        except BaseException as error:
            if interrupts(error):
                raise
            told = self.given.raised(error, place, int(index[0]))
            raise told from told.__cause__
        if table.num_rows != len(index):
            raise SourceError(
                f"{self.given.name} gave {table.num_rows} rows for {len(index)} positions",
                at=place,
                try_="take(index, columns) gives a row for every position, also twice",
            )
        return block_over(table, ids, schema)


def read_datasource(
    source: DataSource, nonce: bytes, fingerprint: str | None = None, atom_rows: int | None = None
) -> Source:
    """The node over a user's source; PlanError for what is none."""
    if not isinstance(source, DataSource):
        raise PlanError(
            f"read_datasource needs a DataSource, got {source!r}",
            why=f"it is of type {type(source).__name__}",
            try_="an instance of a subclass of dml.DataSource, or the name of an installed one",
        )
    found = given(source, nonce, fingerprint)
    if type(source).take is DataSource.take:
        return GivenParts(found, atom_rows)
    for part in found.parts:
        if part.rows is None:
            raise PlanError(
                f"{found.name} has take(), and its part {part.name!r} does not say its rows",
                why="positions are counted over all parts",
                try_="SourcePart(name, rows=n)",
            )
    each = atom_rows if atom_rows is not None else source.atom_rows
    return GivenRows(found, _usual_rows(found) if each is None else each)


def _usual_rows(found: Given) -> int:
    """Rows of an atom of about 8 MiB, judged as ``GivenRows`` does."""
    width = GivenRows(found, 1).row_bytes
    return max(1, min(ATOM_ROWS, int(ATOM_BYTES // max(1.0, width))))
