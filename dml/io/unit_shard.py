"""A source can be sharded into every n-th read unit, or every n-th file."""

from __future__ import annotations

import dataclasses
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from dml.base.cached_property import cached_property
from dml.checks import shard
from dml.errors import InternalError, PlanError
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.io.partial_source import PartOf
from dml.io.source import Source, Unit

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.kernels.rows.ids import RowIds

UNITS, FILES = "units", "files"
# Operators whose output depends on one row, or on one atom, whichever units are read.
CROSSED = (Rows.SAME, Rows.FEWER, Rows.MORE, Rows.ATOMS)


@op
class UnitShard(PartOf):
    """The read units ``index``, ``index + num_shards``, ... of ``source``; the rest is not read.

    Rows and ids are those of ``source``, in its order. Units, atoms and positions are renumbered.
    """

    source: Source
    num_shards: int
    index: int

    def check(self) -> None:
        """Raise PlanError unless ``num_shards`` > 0 and 0 <= ``index`` < ``num_shards``."""
        shard(self.num_shards, self.index)

    @property
    def undivided(self) -> Source:
        """The source that is sharded."""
        return self.source

    @cached_property
    def _units(self) -> range:
        """Numbers of the units in ``source``."""
        return range(self.index, self.source.unit_count, self.num_shards)

    @cached_property
    def _step(self) -> int:
        """Distance in ``source`` between units of the shard, at most the number of units."""
        return min(self.num_shards, max(1, self.source.unit_count))

    @cached_property
    def _equal(self) -> Unit | None:
        """The first unit if ``source`` is addressable (its units have equal sizes), else None."""
        return self.source.unit(0) if self.addressable and self.source.unit_count else None

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Number of rows before each unit of ``source``, and before each unit of the shard."""
        rows = [self.source.unit(number).rows or 0 for number in range(self.source.unit_count)]
        return np.cumsum([0, *rows]), np.cumsum([0, *rows[self.index :: self.num_shards]])

    @cached_property
    def _atom_ends(self) -> list[int | None]:
        """Number of atoms up to the end of each unit; None from the first open unit on."""
        atoms = (self.source.unit(number).atoms for number in self._units)
        return list(accumulate(atoms, lambda a, b: None if a is None or b is None else a + b))

    @cached_property
    def row_count(self) -> int | None:
        """Number of rows of the shard; None if that of ``source`` is unknown."""
        if self.source.row_count is None or not self._units:
            return None if self._units else 0
        if self._equal is None:
            return int(self._starts[1][-1])
        last = self.source.unit(self._units[-1]).rows or 0
        return (len(self._units) - 1) * (self._equal.rows or 0) + last

    @property
    def unit_count(self) -> int:
        """Number of units of the shard."""
        return len(self._units)

    @cached_property
    def atom_count(self) -> int | None:
        """Number of atoms of the shard; None if a unit is open."""
        if not self._units:
            return 0
        if self._equal is None:
            return self._atom_ends[-1]
        last = self.source.unit(self._units[-1]).atoms or 0
        return (len(self._units) - 1) * (self._equal.atoms or 0) + last

    def unit(self, index: int) -> Unit:
        """Return unit ``index`` of the shard."""
        if not 0 <= index < self.unit_count:
            raise InternalError(f"{self.title()} has no unit {index}")
        found = self.source.unit(self._units[index])
        return dataclasses.replace(found, index=index, atom=self._first_atom(index))

    def _first_atom(self, index: int) -> int | None:
        """Return the number of the first atom of a unit."""
        if self._equal is not None:
            return index * (self._equal.atoms or 0)
        return self._atom_ends[index - 1] if index else 0

    def there(self, unit: Unit) -> Unit:
        """Return the unit as numbered in ``source``."""
        number = self._units[unit.index]
        return dataclasses.replace(unit, index=number, atom=self.source.unit(number).atom)

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of the first row in ``ids``; None if it does not belong to the shard."""
        found = self.source.unit_of(ids)
        if found is None or found.index not in self._units:
            return None
        index = self._units.index(found.index)
        return dataclasses.replace(found, index=index, atom=self._first_atom(index))

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Return the positions of rows among the rows of the shard: (n,) int64."""
        at = self.source.position_of(ids)
        found: np.ndarray
        if self._equal is not None:
            rows = self._equal.rows or 1
            found = at // rows // self._step * rows + at % rows
        else:
            there, here = self._starts
            number = np.searchsorted(there, at, side="right") - 1
            found = here[number // self._step] + at - there[number]
        return found

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Read the rows at positions ``index`` among the rows of the shard, in that order."""
        if not len(index):
            return self.source.rows_at(index, columns)
        rows = 1 if self._equal is None else self._equal.rows or 1
        number = index // rows * self._step + self.index
        return self.source.rows_at(number * rows + index % rows, columns)

    def title(self) -> str:
        """Return the title of the source with the shard."""
        return f"{self.source.title()}.shard({self.num_shards}, {self.index}, by={UNITS!r})"


def divided(node: Node, num_shards: int, index: int, by: str) -> Node:
    """Return ``node`` over every ``num_shards``-th unit or file (``by``) of its source.

    Raise PlanError if an operator of ``node`` has several inputs, or combines rows of several
    atoms, and for ``by="files"`` if the source does not read files.
    """
    shard(num_shards, index)
    source, *steps = node.chain()
    for step in steps:
        if step.rows not in CROSSED or step.batched or len(step.inputs) > 1:
            raise PlanError(
                f"shard by={by!r} divides what one source reads",
                why=f"{step.title()} lies between a source and the shard",
                try_=f".shard({num_shards}, {index}, by={by!r}) right behind the source",
            )
    part = _part(source, num_shards, index, by)
    for step in steps:
        below = part
        part = step.map_inputs(lambda _input, below=below: below)  # type: ignore[misc]
    return part


def _part(source: Node, num_shards: int, index: int, by: str) -> Node:
    if not isinstance(source, Source):
        raise InternalError(f"{source.title()} is no source")
    if by == UNITS:
        whole, number = source, index
        if isinstance(source, UnitShard):  # a part of a part is a smaller part of the whole
            whole, number = source.source, source.index + source.num_shards * index
            num_shards *= source.num_shards
        return UnitShard(whole, num_shards, number).placed(source.where)
    part = source.files_shard(num_shards, index)
    if part is None:
        raise PlanError(
            f"shard by={FILES!r} of a source whose files cannot be divided",
            why=f"{source.title()} does not read a list of files",
            try_=f".shard({num_shards}, {index}, by={UNITS!r})",
        )
    return part.placed(source.where)
