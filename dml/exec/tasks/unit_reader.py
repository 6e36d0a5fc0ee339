"""Read the units of a source in the order of an epoch, as input of the steps of a stage."""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import numpy as np

from dml.base.thread_seconds import thread_seconds
from dml.data.block import Block
from dml.errors import DmlError
from dml.events import Tally
from dml.exec.memory.memory_shares import sized
from dml.exec.tasks.levels import opened
from dml.exec.tasks.steps import Steps, Stopwatch
from dml.exec.tasks.unit_input import Atom
from dml.expr.columns.computation import Predicate
from dml.expr.flow import At
from dml.io.source import Unit
from dml.kernels.rows.permutation import IndexPermutation
from dml.ops.shuffle.shuffle_all import ShuffleAll
from dml.ops.shuffle.shuffle_atoms import ShuffleAtoms
from dml.physical.operators import Coalesce, LateScan, stage_tree
from dml.physical.plan import Stage

# Units that are tried, and how many of them must have no row that passes the filter; in a source of
# fewer than ``LEAST_UNITS`` units, trying would cost more than it could save.
TRIED, SPARED, LEAST_UNITS = 4, 3, 16
# The least ratio of the bytes of the other columns to those of the filter's columns, which are read
# twice if a row passes.
RATIO = 2

_PAYS: weakref.WeakKeyDictionary[Stage, bool] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class Reading:
    """Reads one epoch of the first stage: the unit at each place, and the blocks of each unit.

    With ``finishing``, columns get the form in which they are delivered. Partitions end after a
    multiple of ``grain`` rows of an atom, or with it. ``spanning`` permits pieces with rows of
    several units. ``begun`` is called with a place before work on its unit, to attribute a crash.
    """

    def __init__(
        self,
        stage: Stage,
        at: At,
        *,
        finishing: bool = False,
        whole_bytes: int = 0,
        grain: int = 1,
        spanning: bool = False,
    ) -> None:
        self.stage, self.at, self.finishing = stage, at, finishing
        self.whole_bytes, self.grain = whole_bytes, grain
        self.begun: Callable[[int], None] = lambda _: None
        self._seen: tuple[int, Unit] | None = None  # one tuple, since threads share it
        source, order = stage.source, stage.order
        self.places = source.unit_count
        tree = stage_tree(stage, spanning=spanning and grain == 1, looks=at.store.looks)
        joins = (each.units for each in tree.chain() if isinstance(each, Coalesce))
        self.units_each = next(joins, 1)
        self.watch, self.top = Stopwatch(), opened(tree, at)
        # all steps in one object; the level's own, which has learned about functions, if it has all
        alone = self.top.below is None
        self.steps = self.top.steps if alone else Steps(stage.steps, at, 1)
        late = any(isinstance(each, LateScan) for each in tree.chain())
        self.late = Late(stage, at) if late else None
        self.rows_order: IndexPermutation | None = None
        self.unit_order: IndexPermutation | None = None
        if isinstance(order, ShuffleAll):
            self.rows_order = order.permutation(at, at.epoch)
        elif isinstance(order, ShuffleAtoms):
            self.unit_order = order.order(at, at.epoch, self.places)

    def unit_at(self, place: int) -> Unit:
        """Return the unit that is read at ``place`` of the reading order."""
        seen = self._seen
        if seen is not None and seen[0] == place:  # readers ask several times
            return seen[1]
        index = place
        if self.unit_order is not None:
            index = int(self.unit_order.forward(np.array([place], dtype=np.int64))[0])
        unit = sized(self.stage.source.unit(index), self.whole_bytes)
        unit = dataclasses.replace(unit, most_bytes=self.at.hold_bytes)
        self._seen = place, unit
        return unit

    def atoms(
        self, unit: Unit, mine: Callable[[], Tally], skip_atoms: int
    ) -> Iterator[tuple[Block, tuple[Block]]]:
        """Yield the atoms of ``unit`` as they are read, counted and timed in the tally ``mine()``.

        There are none if the filter's columns prove that no row passes the filter.
        """
        if self.late is not None and self.late.spares(unit, skip_atoms, mine):
            return
        source = self.stage.source
        blocks = iter(self.read(unit, skip_atoms))
        fetched = source.stored_bytes(unit, self.stage.columns)
        while True:
            begun = self.watch.begin()
            try:
                block = next(blocks, None)
            except DmlError as error:
                raise error.under(source.label()) from error.__cause__
            seconds, cpu_s = self.watch.end(begun, made=block is not None)
            if block is None:
                return
            mine().block(0, 0, block.n, fetched, block.value_bytes, seconds, cpu_s)
            fetched = 0
            yield block, (block,)

    def slow_atoms(
        self,
        unit: Unit,
        mine: Callable[[], Tally],
        ended: Callable[[int, bool], None],
        skip_atoms: int,
    ) -> Iterator[Atom]:
        """Return the atoms of ``unit``, whose blocks may end inside atoms (``Unit.ends``).

        ``ended`` is called with the row at which each block ends, and whether it lies inside an
        atom.
        """
        blocks = (block for block, _ in self.atoms(unit, mine, skip_atoms))
        return ((None, each) for each in _by_atom(blocks, unit, ended, skip_atoms))

    def uncounted(self, unit: Unit, skip_atoms: int) -> Iterator[tuple[Block, tuple[Block]]]:
        """Return the atoms of ``unit``, which will be read again and counted then."""
        return ((block, (block,)) for block in self.read(unit, skip_atoms))

    def read(self, unit: Unit, skip_atoms: int) -> Iterator[Block]:
        """Return the blocks of ``unit``, one per atom; none if statistics exclude the unit."""
        source, stage = self.stage.source, self.stage
        if self.rows_order is not None:
            return self._permuted(unit, skip_atoms)
        if stage.predicate and not source.may_match(unit, stage.predicate):
            return iter(())
        return source.read(unit, stage.columns, skip_atoms)

    def again(self, unit: Unit) -> Iterator[Block]:
        """Return the blocks of ``unit``, read page by page, to inspect its first rows.

        The result is empty if rows of the whole source are shuffled.
        """
        if self.rows_order is not None:
            return iter(())
        unit = dataclasses.replace(unit, at_once=False, most_bytes=self.at.hold_bytes)
        return self.read(unit, 0)

    def _permuted(self, unit: Unit, skip_atoms: int) -> Iterator[Block]:
        """Yield one block of rows from anywhere in the source, with as many rows as ``unit``."""
        order = self.rows_order
        if skip_atoms or order is None or unit.atom is None:
            return
        start = unit.atom * unit.atom_rows
        index = order.forward(np.arange(start, start + (unit.rows or 0), dtype=np.int64))
        yield self.stage.source.rows_at(index, self.stage.columns)


def _by_atom(
    blocks: Iterator[Block], unit: Unit, ended: Callable[[int, bool], None], skip_atoms: int
) -> Iterator[Iterator[Block]]:
    """Yield the blocks of each atom; the consumer must use up an atom before the next one.

    ``ended`` is called with the row at which each block ends, and whether it lies inside an atom.
    """
    row = skip_atoms * unit.atom_rows

    def atom(block: Block | None) -> Iterator[Block]:
        nonlocal row
        while block is not None:
            row += block.n
            inside = row % unit.atom_rows != 0
            ended(row, inside)
            yield block
            block = next(blocks, None) if inside else None

    while (first := next(blocks, None)) is not None:
        yield atom(first)


class Late:
    """Late materialization: reads the columns of a stage's filter first, in one epoch.

    If no row of a unit passes the filter, the other columns of the unit are not decoded. Whether
    that pays is judged from a few units all over the data, which are the same wherever the stage
    runs. The judgement never changes the output: a unit without a passing row has none.
    """

    def __init__(self, stage: Stage, at: At) -> None:
        self.stage, self.at = stage, at
        self.source, self.first = stage.source, stage.first
        self.predicate = Predicate(stage.predicate)

    def spares(self, unit: Unit, skip_atoms: int, mine: Callable[[], Tally]) -> bool:
        """Return True, and count the rows, if no row of ``unit`` from ``skip_atoms`` on passes.

        Return False without reading if reading the filter's columns first does not pay, or if
        statistics exclude the unit.
        """
        if not self._pays(mine) or not self.source.may_match(unit, self.stage.predicate):
            return False
        started, cpu = time.perf_counter(), thread_seconds()
        passes, rows, held_bytes = self._looked_at(unit, skip_atoms)
        seconds, cpu_s = time.perf_counter() - started, thread_seconds() - cpu
        fetched, others = self._stored(unit)
        spared = 0 if passes else others
        mine().tried(0, fetched, spared, seconds, cpu_s)
        if not passes:
            mine().block(0, 0, rows, 0, held_bytes, 0.0)
            mine().block(1, rows, 0, held_bytes, 0, 0.0)
        return not passes

    def _looked_at(self, unit: Unit, skip_atoms: int) -> tuple[bool, int, int]:
        """Return whether a row may pass, and how many rows and bytes were read to find out.

        Pages are read one by one, up to the first passing row. An error counts as a passing row:
        reading all columns raises it again, after the rows before it.
        """
        rows = held_bytes = 0
        unit = dataclasses.replace(unit, at_once=False)
        try:
            with closing(cast("Any", self.source.read(unit, self.first, skip_atoms))) as blocks:
                for block in blocks:
                    rows, held_bytes = rows + block.n, held_bytes + block.nbytes
                    kept = self.predicate.keep(block, self.at)
                    if kept is None or len(kept):
                        return True, rows, held_bytes
        except DmlError:
            return True, rows, held_bytes
        return False, rows, held_bytes

    def _stored(self, unit: Unit) -> tuple[int, int]:
        """Return the stored bytes of the filter's columns, and of the other columns."""
        first = self.source.stored_bytes(unit, self.first)
        return first, self.source.stored_bytes(unit, self.stage.columns) - first

    def _pays(self, mine: Callable[[], Tally]) -> bool:
        """Return whether reading the filter's columns first pays; the first caller decides."""
        known = _PAYS.get(self.stage)
        if known is None:
            with _LOCK:
                known = _PAYS.get(self.stage)
                if known is None:
                    known = _PAYS[self.stage] = self._judged(mine)
        return known

    def _judged(self, mine: Callable[[], Tally]) -> bool:
        count = self.source.unit_count
        if count < LEAST_UNITS:
            return False
        places = [count * (2 * k + 1) // (2 * TRIED) for k in range(TRIED)]
        units = [self.source.unit(place) for place in places]
        units = [unit for unit in units if self.source.may_match(unit, self.stage.predicate)]
        first, others = (sum(each) for each in zip((0, 0), *map(self._stored, units), strict=True))
        if len(units) < SPARED or others < RATIO * first:
            return False
        passing = 0
        for unit in units:
            started, cpu = time.perf_counter(), thread_seconds()
            passing += self._looked_at(unit, 0)[0]
            seconds, cpu_s = time.perf_counter() - started, thread_seconds() - cpu
            mine().tried(0, self._stored(unit)[0], 0, seconds, cpu_s)
            if passing > len(units) - SPARED:
                return False
        return True
