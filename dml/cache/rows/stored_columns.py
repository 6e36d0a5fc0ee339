"""Assemble the rows of a stored step from rows that other pipelines have stored.

An entry of another pipeline may hold all rows of this step, under other filters and with other
columns. Its columns are taken unit by unit. Other columns are computed by the same steps, projected
to these columns, and stored as a separate entry. Zipped rows must have equal ids, which is checked.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from dml.cache.lookup.cache_index import RECUT
from dml.cache.lookup.cache_lookup import Finding, LookupPlace, TakenColumns
from dml.cache.lookup.column_zip import Cursor, Shaped, all_beside, beside, recut
from dml.cache.lookup.content_lookup import Rooted
from dml.cache.parts.entry import StoredEntry
from dml.cache.rows.row_parts import RowFilling, StoredUnit
from dml.cache.rows.stored_rows import StoredLevel
from dml.data.block import Block
from dml.data.schema import Schema
from dml.exec.tasks.levels import Level
from dml.exec.tasks.skipped_rows import Noted
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.unit_input import Atom, Running, UnitRequest
from dml.expr.flow import At
from dml.ops.relation import Columns, projected

Names = tuple[str, ...]


class Reusing(StoredLevel):
    """Consecutive steps of a stage, whose rows are also looked up in other entries.

    If the last step is not a cache, the rows are only looked up, and not stored.
    """

    def __init__(self, steps: Steps, below: Level | None, entry: StoredEntry) -> None:
        super().__init__(steps, below, entry)
        self.schema, self.label = self.nodes[-1].schema, self.nodes[-1].label()
        # the steps whose rows are searched, and the step that stores the rows
        self.looked = self.nodes[:-1] if self.gives_stored else self.nodes
        self.storing = self.nodes[len(self.looked) :]
        self.rooted: Rooted | None = None
        if isinstance(below, StoredLevel) and entry.asked and entry.asked.above:
            self.rooted = Rooted(entry.asked.above, entry, below.entry)
        self._finding: Finding | None = None
        self._told = set[str]()
        self._known: dict[Any, tuple[Steps, frozenset[str] | None]] = {}

    def finding(self, at: At) -> Finding:
        """Return the search of other entries for this level's rows, created on the first call."""
        if self._finding is None:
            source = self.nodes[0].inputs[0]
            own = self.entry, at.seed
            self._finding = Finding(source, self.looked, *own, asked=self.gives_stored)
        return self._finding

    def instead(self, wanted: UnitRequest) -> Iterator[Atom] | None:
        """Return atoms made from stored rows of other entries; None if none can be used."""
        if not self.entry.looks:
            return None
        (unit, skip_atoms, _, run), finding = wanted, self.finding(wanted.at)
        names = tuple(name for name, _ in finding.top.columns)
        taken, missing = finding.take(finding.top, names, unit, run)
        if taken and not missing:
            return self._served(taken, wanted)
        same = self._of_same_content(wanted)
        if same is not None:
            return self.handed(same, same.atoms(skip_atoms), run, time.perf_counter())
        if taken:
            return self._completed(taken, missing, wanted)
        made = self._over_lower(None, wanted)
        if made is None or skip_atoms or not self.gives_stored:
            return made
        got = RowFilling.begin(self.entry, unit, self.form, run.most_bytes)
        if isinstance(got, RowFilling):
            return self.filled(got, made, run)
        if isinstance(got, StoredUnit) and self._fits(self.entry, got, wanted):
            return self.handed(got, got.atoms(0), run, time.perf_counter())
        return made

    def atoms(self, wanted: UnitRequest) -> Iterator[Atom]:
        """Return the atoms of a unit, cut into the same blocks wherever the rows come from."""
        made = super().atoms(wanted)
        if not self.entry.looks:
            return made
        return ((origin, recut(blocks)) for origin, blocks in made)

    def kept(self, wanted: UnitRequest) -> Iterator[Atom] | None:
        """Return atoms of this entry or of others; None if they must only be computed."""
        return super().kept(wanted) if self.gives_stored else self.instead(wanted)

    # ----------------------------------------------------------------------------- stored columns

    def _served(self, taken: Sequence[TakenColumns], wanted: UnitRequest) -> Iterator[Atom]:
        """Return atoms whose columns are all taken from the store."""
        atoms = self._side_by_side(taken, self.schema, wanted)
        return self.counted(atoms, wanted.run, time.perf_counter())

    def _side_by_side(
        self, taken: Sequence[TakenColumns], schema: Schema, wanted: UnitRequest
    ) -> Iterator[Iterator[Block]]:
        """Yield the blocks of each atom, with the columns of all of ``taken``."""
        parts = [self._atoms(one, wanted) for one in taken]
        if not schema.known:  # unchanged
            yield from map(iter, parts[0])
            return
        for lists in zip_longest(*parts, fillvalue=()):
            yield all_beside(lists, schema, self.label)

    def _atoms(self, one: TakenColumns, wanted: UnitRequest) -> Iterator[list[Block]]:
        """Return the blocks of each atom of some columns, and count the bytes of these columns."""
        wanted.run.mine().lookups(self.ordinal, 0, 0, *one.found.came)
        return one.atoms(wanted.skip_atoms, wanted.run)

    def _of_same_content(self, wanted: UnitRequest) -> StoredUnit | None:
        """Return stored rows of an entry made from equal rows of the ``cache()`` below, or None."""
        below, rooted, part = self.below, self.rooted, wanted.unit.index
        if not isinstance(below, StoredLevel) or rooted is None or not rooted.any:
            return None
        if rooted.content(part) is None and not wanted.skip_atoms:  # reading rows stores them
            # lost rows are noted later
            run = dataclasses.replace(wanted.run, noted=Noted())
            for _, blocks in below.kept(wanted._replace(run=run)) or ():
                deque(blocks, maxlen=0)
            if rooted.content(part) is None:  # the next unit would be made twice, too
                self.rooted = None
        name = rooted.find_entry(part)
        if not name:
            return None
        entry = self.finding(wanted.at).opened(name)
        found = StoredUnit.find(entry, wanted.unit, wanted.run.most_bytes)
        return found if found is not None and self._fits(entry, found, wanted) else None

    def _fits(self, entry: StoredEntry, found: StoredUnit, wanted: UnitRequest) -> bool:
        """Return True if the rows ``found`` pass the check and have the schemas of this run."""
        right = self.right(entry, found, wanted.unit, wanted.run)
        return right is found and found.settled(self.nodes, wanted.at)

    # ---------------------------------------------------------------------------- missing columns

    def _completed(
        self, taken: list[TakenColumns], missing: Names, wanted: UnitRequest
    ) -> Iterator[Atom]:
        """Return atoms with the ``taken`` columns; compute and store the ``missing`` ones."""
        finding, run = self.finding(wanted.at), wanted.run
        columns = tuple((n, value) for n, value in finding.top.columns if n in missing)
        name = finding.group(columns)
        entry = finding.opened(name, columns=list(missing))
        begins = self.gives_stored and not wanted.skip_atoms
        got = RowFilling.begin(entry, wanted.unit, self.form, run.most_bytes) if begins else None
        if isinstance(got, StoredUnit) and self._fits(entry, got, wanted):
            schema = Schema((n, self.schema[n]) for n in missing)
            return self._served([*taken, TakenColumns(got, Shaped(None, schema))], wanted)
        made = self._over_lower(missing, wanted) or self._projected(missing, wanted)
        if isinstance(got, RowFilling):
            self._tell(name, columns, run.at)
            made = super().filled(got, made, run)
        return self._beside(taken, made, wanted)

    def _beside(
        self, taken: Sequence[TakenColumns], made: Iterator[Atom], wanted: UnitRequest
    ) -> Iterator[Atom]:
        """Yield the ``made`` atoms, extended by the stored columns of their rows."""
        parts = [self._atoms(one, wanted) for one in taken]
        for origin, blocks in made:
            cursors = [Cursor(next(part, ())) for part in parts]
            found = sum(cursor.blocks for cursor in cursors)
            wanted.run.mine().lookups(self.ordinal, found, 0)
            yield origin, beside(cursors, blocks, self.schema, self.label)
        for part in parts:  # of units without rows to read
            for rest in part:
                Cursor(rest).end(self.label)

    def _projected(self, names: Names, wanted: UnitRequest) -> Iterator[Atom]:
        """Run the steps from the source or lower ``cache()`` on, for columns ``names`` alone."""
        steps, _ = self._steps(self._lowest, names, wanted.at)
        return self.stepped(steps, self.input_atoms(wanted), self.input_blocks, wanted)

    # ------------------------------------------------------------------------- stored lower steps

    def _over_lower(self, names: Names | None, wanted: UnitRequest) -> Iterator[Atom] | None:
        """Run only the steps above the highest step with stored rows; None if no step has any."""
        finding = self.finding(wanted.at)
        first = self._lowest + (self.below is not None)
        for place in reversed(finding.places[first:-1]):
            steps, needed = self._steps(place.number, names, wanted.at)
            found = self._below(place, needed, wanted)
            if found is not None:
                given = partial(self._lower, place, needed)
                atoms = ((None, blocks) for blocks in found)
                return self.stepped(steps, atoms, given, wanted)
        return None

    def _lower(
        self, place: LookupPlace, needed: frozenset[str] | None, wanted: UnitRequest
    ) -> Iterator[Iterable[Block]]:
        """Yield the output of a lower step as ``_below`` does, computed if it is not stored."""
        found = self._below(place, needed, wanted)
        if found is not None:
            yield from found
            return
        run, below = wanted.run, self.input_blocks(wanted)
        steps = Steps(self.looked[self._lowest : place.number], wanted.at, 1 + self._lowest)
        yield from (steps.run(blocks, run.mine, run.noted) for blocks in below)

    def _below(
        self, place: LookupPlace, needed: frozenset[str] | None, wanted: UnitRequest
    ) -> Iterator[Iterator[Block]] | None:
        """Return the stored output of a lower step, by atom, with the needed columns; or None."""
        finding, schema = self.finding(wanted.at), place.schema
        if not schema.known:
            taken = finding.as_it_is(place, wanted.unit, wanted.run)
            return self._side_by_side(taken, schema, wanted) if taken else None
        if needed is not None:
            schema = Schema((name, kind) for name, kind in schema.items() if name in needed)
        taken, missing = finding.take(place, schema.names, wanted.unit, wanted.run)
        return self._side_by_side(taken, schema, wanted) if taken and not missing else None

    @property
    def _lowest(self) -> int:
        """The number of operators up to the next lower ``cache()``; 0 without one."""
        return len(self.below.nodes) if self.below else 0

    def _steps(
        self, start: int, names: Names | None, at: At
    ) -> tuple[Steps, frozenset[str] | None]:
        """Return the steps from ``start`` on that make columns ``names``, and the columns read."""
        key = start, names
        if key not in self._known:
            steps, needed = projected(self.looked, start, names)
            places = [each.place for each in steps] + [len(self.nodes)] * len(self.storing)
            made = Steps([*(each.node for each in steps), *self.storing], at, places)
            self._known[key] = made, needed
        return self._known[key]

    # ------------------------------------------------------------------------------------ storing

    def filled(self, filling: RowFilling, made: Iterator[Atom], run: Running) -> Iterator[Atom]:
        """Yield and store atoms as for any entry; record in the index what the entry holds."""
        name = self.entry.fingerprint
        self._tell(name, self.finding(run.at).top.columns, run.at)
        if self.entry.looks and RECUT not in self._told:
            self._told.add(RECUT)
            self.finding(run.at).index.tell_recut(name)
        yield from super().filled(filling, made, run)
        if self.rooted is not None:
            self.rooted.tell(filling.unit.index)

    def _tell(self, name: str, columns: Columns, at: At) -> None:
        """Record in the index which columns the entry ``name`` holds, once."""
        if name not in self._told:
            finding = self.finding(at)
            member = finding.member(name, columns)
            if member is not None:
                finding.index.tell(member)
            self._told.add(name)
