"""Read rows of a stored step from the store, unit by unit, or write them to it.

The steps of a stage are cut after each stored step. A reader of a unit starts at the highest cut
whose rows are stored. Rows that are computed above that cut are passed on and also written to the
store, as a part when the unit ends. None of this has an effect on the rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dml.cache.parts.entry import StoredEntry
from dml.cache.rows.canary import CanarySample, trusted
from dml.cache.rows.row_parts import RowFilling, StoredUnit
from dml.data.block import Block
from dml.data.id_columns import FREE, PICKED, RUN
from dml.data.schema import Schema
from dml.exec.tasks.levels import Level
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.unit_input import Atom, Running, UnitRequest
from dml.expr.facts import Rows
from dml.expr.flow import At
from dml.expr.node import Node
from dml.io.source import Unit


class StoredLevel(Level):
    """Consecutive steps of a stage, the rows of which ``entry`` stores, a part for each unit."""

    def __init__(self, steps: Steps, below: Level | None, entry: StoredEntry) -> None:
        super().__init__(steps, below)
        self.entry, self.ordinal = entry, steps.each[-1].ordinal
        self.gives_stored = self.nodes[-1].rows is Rows.STORED
        self.form = _form(self.nodes)
        self.seen = set[str]()  # entries that this pass has begun to use

    def atoms(self, wanted: UnitRequest) -> Iterator[Atom]:
        """Yield the wanted atoms of a unit: stored, stored while they pass, or only computed."""
        found = self.kept(wanted)
        yield from self.computed(wanted) if found is None else found

    def kept(self, wanted: UnitRequest) -> Iterator[Atom] | None:
        """Return atoms that are stored, or will be once they have passed; None if neither."""
        started, entry, unit, run = time.perf_counter(), self.entry, wanted.unit, wanted.run
        got = self.right(entry, StoredUnit.find(entry, unit, run.most_bytes), unit, run)
        others = self.instead(wanted) if got is None else None
        if others is not None:
            return others
        if got is None and not wanted.skip_atoms:  # a part must begin with its unit's first atom
            got = RowFilling.begin(entry, unit, self.form, run.most_bytes)
            got = self.right(entry, got, unit, run)
        if isinstance(got, RowFilling):
            return self.filled(got, self.computed(wanted), run)
        if got is not None and self._usable(got, run.at):
            return self.handed(got, got.atoms(wanted.skip_atoms), run, started)
        self._unfilled(run)
        return None

    def _unfilled(self, run: Running) -> None:
        """Note why a part is made without the store, if the store is unusable."""
        entry = self.entry
        if entry.fills and not entry.store.standing.whole and (wrong := entry.wrong()):
            run.mine().stored(self.ordinal, wrong)

    def had(self, unit: Unit, run: Running) -> StoredUnit | None:
        """Return the rows of ``unit`` if they only need to be mapped, for ``handed`` to deliver."""
        entry = self.entry
        got = StoredUnit.find(entry, unit, run.most_bytes, had=True)
        got = self.right(entry, got, unit, run)
        return got if got is not None and self._usable(got, run.at) else None

    def _usable(self, found: StoredUnit, at: At) -> bool:
        return (self.entry.looks or not found.recut) and found.settled(self.nodes, at)

    def right(self, entry: StoredEntry, got: Any, unit: Unit, run: Running) -> Any:
        """Return ``got``, or None if a check finds that the rows differ from those computed now."""
        if not isinstance(got, StoredUnit):
            return got
        sample = CanarySample(entry, unit, got, self.all_steps, self.ordinal)
        return got if trusted(sample, run, self.seen) else None

    def instead(self, _wanted: UnitRequest) -> Iterator[Atom] | None:
        """Return atoms made from rows of other entries; None if they do not have the rows."""
        return None

    def handed(
        self, found: StoredUnit, atoms: Iterator[list[Block]], run: Running, started: float
    ) -> Iterator[Atom]:
        """Yield ``atoms`` of the part ``found``; count them and the seconds from ``started`` on."""
        run.hold(found.loaded_bytes)
        run.mine().stored(self.ordinal)
        run.mine().lookups(self.ordinal, 0, 0, *found.came)
        yield from self.counted(atoms, run, started)

    def counted(
        self, atoms: Iterator[Iterable[Block]], run: Running, started: float
    ) -> Iterator[Atom]:
        """Yield stored atoms, and count their blocks with the seconds that each took."""
        for blocks in atoms:
            given = []
            for block in blocks:
                seconds, size = time.perf_counter() - started, block.nbytes
                run.mine().block(self.ordinal, block.n, block.n, size, size, seconds)
                started = time.perf_counter()
                given.append(block)
            run.mine().lookups(self.ordinal, len(given), 0)
            yield None, given
            started = time.perf_counter()

    def filled(self, filling: RowFilling, made: Iterator[Atom], run: Running) -> Iterator[Atom]:
        """Yield the atoms ``made``, and store them as a part when all of them have passed."""
        before, done = self._settled(run.at).keys(), False
        try:
            for origin, blocks in made:
                yield origin, filling.passing(blocks)
                run.mine().lookups(self.ordinal, 0, filling.atoms[-1])
            # rows lost to errors may exist the next time; the name is that of the file
            # as it was when the run began
            lost = any(ordinal <= self.ordinal for ordinal in run.noted.ordinals)
            done = not lost and run.changed_ns() < filling.named_ns
            kept = done and filling.commit(self._settled(run.at), before)
            run.mine().stored(self.ordinal, "" if kept else self.entry.wrong(lost=lost))
        finally:
            if not done:
                filling.part.drop()

    def _settled(self, at: At) -> dict[int, Schema]:
        known = ((n, at.schemas.get(node.digest.hex())) for n, node in enumerate(self.nodes))
        return {n: schema for n, schema in known if schema is not None}


def _form(nodes: Sequence[Node]) -> int:
    """Return the form in which a part's row ids are written, given what these steps do to rows."""
    kinds = {node.rows for node in nodes}
    source: Any = nodes[0].chain()[0]
    if source.ids_apart:
        return FREE
    if kinds <= {Rows.SAME, Rows.STORED}:
        return RUN
    return PICKED if kinds <= {Rows.SAME, Rows.STORED, Rows.FEWER} else FREE
