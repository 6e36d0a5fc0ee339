"""The units of a source are read in the order of an epoch, as input of the steps of a stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from dml.data.block import Block
from dml.data.row_slicing import row_bytes
from dml.exec.memory.memory_shares import sized
from dml.exec.tasks.levels import levels
from dml.exec.tasks.steps import Steps, Stopwatch
from dml.expr.facts import Rows
from dml.expr.flow import At
from dml.io.source import Unit
from dml.kernels.rows.permutation import IndexPermutation
from dml.ops.shuffle.shuffle_all import ShuffleAll
from dml.ops.shuffle.shuffle_atoms import ShuffleAtoms
from dml.physical.plan import Stage


class Reading:
    """One epoch of the first stage: the unit at each place, and the blocks of each unit.

    ``finishing`` gives columns as delivered, for streams that only move rows. Partitions end after
    a multiple of ``grain`` rows of an atom, or with the atom; ``spanning`` permits pieces of
    several units. ``begun`` is called with the place where work begins, so that crashes can be
    blamed on it.
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
        from dml.exec.tasks.late_materialization import Late  # noqa: PLC0415

        self.stage, self.at, self.finishing = stage, at, finishing
        self.row_bytes = spannable(stage) if spanning and grain == 1 else None
        self.whole_bytes, self.grain = whole_bytes, grain
        self.begun: Callable[[int], None] = _unheard
        self._seen: tuple[int, Unit] | None = None  # replaced whole: threads share it
        source, order = stage.source, stage.order
        self.places = source.unit_count
        in_order = not isinstance(order, ShuffleAll)
        self.watch, self.top = Stopwatch(), levels(stage.steps, at, in_order=in_order)
        # the steps that run, where they run as one: their knowledge of functions is shared
        alone = self.top.below is None
        self.steps = self.top.steps if alone else Steps(stage.steps, at, 1)
        self.late = Late(stage, at) if stage.predicate and stage.first else None
        self.rows_order: IndexPermutation | None = None
        self.unit_order: IndexPermutation | None = None
        if isinstance(order, ShuffleAll):
            self.rows_order = order.permutation(at, at.epoch)
        elif isinstance(order, ShuffleAtoms):
            self.unit_order = order.order(at, at.epoch, self.places)

    def unit_at(self, place: int) -> Unit:
        """The unit that is read at ``place``."""
        seen = self._seen
        if seen is not None and seen[0] == place:  # its reader asks several times
            return seen[1]
        index = place
        if self.unit_order is not None:
            index = int(self.unit_order.forward(np.array([place], dtype=np.int64))[0])
        unit = sized(self.stage.source.unit(index), self.whole_bytes)
        unit = dataclasses.replace(unit, most_bytes=self.at.hold_bytes)
        self._seen = place, unit
        return unit

    def read(self, unit: Unit, skip_atoms: int) -> Iterator[Block]:
        """Blocks of ``unit``, atom by atom; none where statistics rule the unit out."""
        source, stage = self.stage.source, self.stage
        if self.rows_order is not None:
            return self._permuted(unit, skip_atoms)
        if stage.predicate and not source.may_match(unit, stage.predicate):
            return iter(())
        return source.read(unit, stage.columns, skip_atoms)

    def again(self, unit: Unit) -> Iterator[Block]:
        """Blocks of ``unit`` in the order of the source, page by page, to look at its first rows.

        Empty for a reading that takes rows from all over the source.
        """
        if self.rows_order is not None:
            return iter(())
        unit = dataclasses.replace(unit, at_once=False, most_bytes=self.at.hold_bytes)
        return self.read(unit, 0)

    def _permuted(self, unit: Unit, skip_atoms: int) -> Iterator[Block]:
        """Rows from the whole source, as many as the unit has."""
        order = self.rows_order
        if skip_atoms or order is None or unit.atom is None:
            return
        start = unit.atom * unit.atom_rows
        index = order.forward(np.arange(start, start + (unit.rows or 0), dtype=np.int64))
        yield self.stage.source.rows_at(index, self.stage.columns)


def _unheard(place: int) -> None:
    """Ignore the place."""


def spannable(stage: Stage) -> int | None:
    """Bytes of an output row, if the steps of the stage look at rows one by one; else None."""
    if stage.order is not None or not stage.source.side_by_side or not stage.steps:
        return None
    for node in stage.steps:
        called = node.calls is not None and not node.proven
        skips = node.skips
        if called or skips or node.by_atom or node.rows not in (Rows.SAME, Rows.FEWER):
            return None
    return row_bytes(stage.steps[-1].schema)
