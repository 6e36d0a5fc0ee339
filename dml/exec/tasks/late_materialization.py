"""Late materialization reads the columns of a filter first, where few units have rows that pass.

The other columns of a unit without a passing row are then not decoded at all.

Whether that pays is judged by a few units from all over the data, the same units wherever the stage
runs, so that it does not depend on the reader. Only the reading depends on it: a unit without a
passing row has no output in either case.
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
from dml.expr.columns.computation import Predicate
from dml.expr.flow import At
from dml.io.source import Unit
from dml.physical.plan import Stage

# Units that are tried, and how many of them must have no row that passes; in a source with fewer
# than ``LEAST_UNITS`` units, trying would cost more than it could save.
TRIED, SPARED, LEAST_UNITS = 4, 3, 16
# The least ratio of the bytes of the other columns to those of the filter, which are read twice
# where a row passes.
RATIO = 2

_PAYS: weakref.WeakKeyDictionary[Stage, bool] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class Late:
    """One epoch of a stage whose filter may be evaluated on its own columns first."""

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
        """Whether a row may pass, and the rows and bytes that were read to find out.

        Page by page, since the first passing row ends it. An error here is ignored: reading all
        columns raises it again, after the rows before it.
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
        """Stored bytes of the filter's columns, and of the other columns."""
        first = self.source.stored_bytes(unit, self.first)
        return first, self.source.stored_bytes(unit, self.stage.columns) - first

    def _pays(self, mine: Callable[[], Tally]) -> bool:
        """Whether trying units is worthwhile; determined by the first caller."""
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
