"""This file reads what a filter looks at before the other columns, where few units pass.

The other columns of a unit without a row that passes are then not decoded at all.

Whether that pays is judged by a few units from all over the data, the same ones wherever the stage
is run, so that it does not depend on who reads what. What is judged is only what is read: a unit
without a row that passes gives none in either case.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

from dml.errors import DmlError
from dml.events import Tally
from dml.expr.compute import Predicate
from dml.expr.flow import At
from dml.expr.sources.source import Unit
from dml.plan import Stage

# Units that are tried, of which so many must have no row that passes; where there are fewer than
# so many units, trying would cost more than it could spare.
TRIED, SPARED, LEAST_UNITS = 4, 3, 16
# The other columns must have so many times the bytes that the filter's have: those are read twice
# where a row passes.
RATIO = 2

_PAYS: weakref.WeakKeyDictionary[Stage, bool] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class Late:
    """One epoch of a stage whose filter may be tried on the columns that it looks at."""

    def __init__(self, stage: Stage, at: At) -> None:
        self.stage, self.at = stage, at
        self.source, self.first = stage.source, stage.first
        self.predicate = Predicate(stage.predicate)

    def spares(self, unit: Unit, skip_atoms: int, mine: Callable[[], Tally]) -> bool:
        """True if no row of ``unit`` from ``skip_atoms`` on passes; its rows are then counted."""
        if not self._pays(mine) or not self.source.may_match(unit, self.stage.predicate):
            return False
        started, cpu = time.perf_counter(), time.thread_time()
        passes, rows, held_bytes = self._looked_at(unit, skip_atoms)
        seconds, cpu_s = time.perf_counter() - started, time.thread_time() - cpu
        fetched, others = self._stored(unit)
        spared = 0 if passes else others
        mine().tried(0, fetched, spared, seconds, cpu_s)
        if not passes:
            mine().block(0, 0, rows, 0, held_bytes, 0.0)
            mine().block(1, rows, 0, held_bytes, 0, 0.0)
        return not passes

    def _looked_at(self, unit: Unit, skip_atoms: int) -> tuple[bool, int, int]:
        """Whether a row may pass, and how many rows and bytes it took to know.

        Page by page, since the first row that passes ends it. What fails here is left to reading
        all columns, which delivers the rows before it first.
        """
        rows = held_bytes = 0
        unit = dataclasses.replace(unit, at_once=False)
        try:
            with closing(cast("Any", self.source.read(unit, self.first, skip_atoms))) as blocks:
                for block in blocks:
                    rows, held_bytes = rows + block.n, held_bytes + block.nbytes
                    kept = self.predicate.keep(block, self.at).index
                    if kept is None or len(kept):
                        return True, rows, held_bytes
        except DmlError:
            return True, rows, held_bytes
        return False, rows, held_bytes

    def _stored(self, unit: Unit) -> tuple[int, int]:
        """Stored bytes of the filter's columns, and of the others."""
        first = self.source.stored_bytes(unit, self.first)
        return first, self.source.stored_bytes(unit, self.stage.columns) - first

    def _pays(self, mine: Callable[[], Tally]) -> bool:
        """Whether units are worth trying, found out by the first that asks."""
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
            started, cpu = time.perf_counter(), time.thread_time()
            passing += self._looked_at(unit, 0)[0]
            seconds, cpu_s = time.perf_counter() - started, time.thread_time() - cpu
            mine().tried(0, self._stored(unit)[0], 0, seconds, cpu_s)
            if passing > len(units) - SPARED:
                return False
        return True
