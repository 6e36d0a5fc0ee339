"""This file divides what a source reads: every n-th read unit, or every n-th file."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np

from dml.errors import InternalError, PlanError
from dml.expr.computed import cached_property
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.ops.shard import check_shard
from dml.expr.sources.part_of import PartOf
from dml.expr.sources.source import Source, Unit

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.kernels.ids import RowIds

UNITS, FILES = "units", "files"
# Operators that make rows of one row, or of the rows of one atom: of whichever units these are.
CROSSED = (Rows.SAME, Rows.FEWER, Rows.MORE, Rows.ATOMS)


@op
class UnitShard(PartOf):
    """The read units ``index``, ``index + num_shards``, ... of ``source``; others are not read.

    Rows and ids are those of ``source``, in its order. Units, atoms and positions are counted anew.
    """

    source: Source
    num_shards: int
    index: int

    def check(self) -> None:
        """At least one shard, and one of them."""
        check_shard(self.num_shards, self.index)

    @property
    def undivided(self) -> Source:
        """What is divided."""
        return self.source

    @cached_property
    def _units(self) -> range:
        """The numbers of the units in ``source``."""
        return range(self.index, self.source.unit_count, self.num_shards)

    @cached_property
    def _step(self) -> int:
        """From a unit to the next, as a number that machines can hold."""
        return min(self.num_shards, max(1, self.source.unit_count))

    @cached_property
    def _equal(self) -> Unit | None:
        """The first unit, if all but the last one of ``source`` are as large; None otherwise."""
        return self.source.unit(0) if self.addressable and self.source.unit_count else None

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows before each unit of ``source``, and before each unit of the shard."""
        rows = [self.source.unit(number).rows or 0 for number in range(self.source.unit_count)]
        return np.cumsum([0, *rows]), np.cumsum([0, *rows[self.index :: self.num_shards]])

    @cached_property
    def _atom_ends(self) -> list[int | None]:
        """Atoms up to the end of each unit; None from the first open one on."""
        atoms = (self.source.unit(number).atoms for number in self._units)
        return list(accumulate(atoms, lambda a, b: None if a is None or b is None else a + b))

    @cached_property
    def row_count(self) -> int | None:
        """Rows of the shard, where ``source`` counts its own."""
        if self.source.row_count is None or not self._units:
            return None if self._units else 0
        if self._equal is None:
            return int(self._starts[1][-1])
        last = self.source.unit(self._units[-1]).rows or 0
        return (len(self._units) - 1) * (self._equal.rows or 0) + last

    @property
    def unit_count(self) -> int:
        """Units of the shard."""
        return len(self._units)

    @cached_property
    def atom_count(self) -> int | None:
        """Atoms of the shard; None where a unit is open."""
        if not self._units:
            return 0
        if self._equal is None:
            return self._atom_ends[-1]
        last = self.source.unit(self._units[-1]).atoms or 0
        return (len(self._units) - 1) * (self._equal.atoms or 0) + last

    def unit(self, index: int) -> Unit:
        """Unit ``index`` of the shard."""
        if not 0 <= index < self.unit_count:
            raise InternalError(f"{self.title()} has no unit {index}")
        found = self.source.unit(self._units[index])
        return dataclasses.replace(found, index=index, atom=self._first_atom(index))

    def _first_atom(self, index: int) -> int | None:
        """The number of the first atom of a unit."""
        if self._equal is not None:
            return index * (self._equal.atoms or 0)
        return self._atom_ends[index - 1] if index else 0

    def there(self, unit: Unit) -> Unit:
        """The unit as ``source`` numbers it."""
        number = self._units[unit.index]
        return dataclasses.replace(unit, index=number, atom=self.source.unit(number).atom)

    def unit_of_atom(self, atom: int) -> int:
        """Index of the unit that holds atom number ``atom``."""
        if self._equal is not None:
            return min(atom // (self._equal.atoms or 1), self.unit_count)
        return bisect_right(cast("list[int]", self._atom_ends), atom)

    def unit_of(self, ids: RowIds) -> Unit | None:
        """The unit of a row, if it is one of the shard's."""
        found = self.source.unit_of(ids)
        if found is None or found.index not in self._units:
            return None
        index = self._units.index(found.index)
        return dataclasses.replace(found, index=index, atom=self._first_atom(index))

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Positions among the rows of the shard."""
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
        """The rows at positions among those of the shard."""
        if not len(index):
            return self.source.rows_at(index, columns)
        rows = 1 if self._equal is None else self._equal.rows or 1
        number = index // rows * self._step + self.index
        return self.source.rows_at(number * rows + index % rows, columns)

    def title(self) -> str:
        """The source, and which part of it."""
        return f"{self.source.title()}.shard({self.num_shards}, {self.index}, by={UNITS!r})"


def divided(node: Node, num_shards: int, index: int, by: str) -> Node:
    """``node`` over a part of its source: every ``num_shards``-th of its units, or of its files.

    PlanError where rows of ``node`` do not follow from the units of one source each by itself, and
    for files of a source that has none.
    """
    check_shard(num_shards, index)
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
