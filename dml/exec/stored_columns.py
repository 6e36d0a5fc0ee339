"""This file makes the rows of a stored step of what other pipelines have stored, where they have.

An entry of another pipeline may hold all rows of this one, under other filters and with other
columns. What it has is taken unit by unit; columns that nobody has are computed beside it by the
same steps, cut down to these columns, and stored as an entry of their own. Rows that lie side by
side have the same ids, which is looked at.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar

from dml.exec.beside import Cursor, Shaped, all_beside, beside, recut
from dml.exec.by_content import Rooted
from dml.exec.families import RECUT
from dml.exec.finding import Finding, Place, Taken
from dml.exec.losses import Noted
from dml.exec.steps import Steps
from dml.exec.stored import Atom, Entry, Level, Running, Wanted
from dml.exec.stored_parts import Filling, Found
from dml.expr.block import Block
from dml.expr.flow import At
from dml.expr.relation import Columns, projected
from dml.expr.schema import Schema
from dml.expr.sources.source import Unit

Names = tuple[str, ...]


class Reusing(Level):
    """A level that looks for its rows in the entries of others, too."""

    stores: ClassVar[bool] = True

    def __init__(self, steps: Steps, first: int, below: Level | None, entry: Entry) -> None:
        super().__init__(steps, first, below, entry if self.stores else None)
        self.own = entry
        self.schema, self.label = self.nodes[-1].schema, self.nodes[-1].label()
        # those whose rows are looked for, and the step that stores them
        self.looked = self.nodes[:-1] if self.stores else self.nodes
        self.storing = self.nodes[len(self.looked) :]
        self.rooted: Rooted | None = None
        if below is not None and below.entry is not None and entry.asked and entry.asked.above:
            self.rooted = Rooted(entry.asked.above, entry, below.entry)
        self._finding: Finding | None = None
        self._told = set[str]()
        self._known: dict[Any, tuple[Steps, frozenset[str] | None]] = {}

    def finding(self, at: At) -> Finding:
        """What others have, looked for once something is lacking."""
        if self._finding is None:
            source = self.nodes[0].inputs[0]
            entry, seed = self.own, at.seed
            self._finding = Finding(source, self.looked, entry, seed, asked=self.stores)
        return self._finding

    def instead(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Block]], run: Running
    ) -> Iterator[Atom] | None:
        """The rows of what others have stored, as far as that goes; None if they have nothing."""
        if not self.own.looks:
            return None
        wanted, finding = Wanted(unit, skip_atoms, read, run), self.finding(run.at)
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
        if made is None or skip_atoms or not self.stores:
            return made
        got = self.own.filling(unit, self.form, run.most_bytes)
        if isinstance(got, Filling):
            return self._filled(got, made, run)
        if isinstance(got, Found) and self._fits(self.own, got, wanted):
            return self.handed(got, got.atoms(0), run, time.perf_counter())
        return made

    def atoms(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Block]], run: Running
    ) -> Iterator[Atom]:
        """The atoms of ``unit``; cut the same way whoever had which of them."""
        made = super().atoms(unit, skip_atoms, read, run)
        if not self.own.looks:
            return made
        return ((origin, recut(blocks)) for origin, blocks in made)

    # ------------------------------------------------------------------------------- what is there

    def _served(self, taken: Sequence[Taken], wanted: Wanted) -> Iterator[Atom]:
        """All columns, from the store."""
        mine, started = wanted.run.mine, time.perf_counter()
        for blocks in self._side_by_side(taken, self.schema, wanted):
            made = []
            for block in blocks:
                seconds, size = time.perf_counter() - started, block.nbytes
                mine().block(self.ordinal, block.n, block.n, size, size, seconds)
                started = time.perf_counter()
                made.append(block)
            mine().lookups(self.ordinal, len(made), 0)
            yield None, made
            started = time.perf_counter()

    def _side_by_side(
        self, taken: Sequence[Taken], schema: Schema, wanted: Wanted
    ) -> Iterator[Iterator[Block]]:
        """The blocks of each atom."""
        parts = [self._atoms(one, wanted) for one in taken]
        if not schema.known:  # as it is
            yield from map(iter, parts[0])
            return
        for lists in zip_longest(*parts, fillvalue=()):
            yield all_beside(lists, schema, self.label)

    def _atoms(self, one: Taken, wanted: Wanted) -> Iterator[list[Block]]:
        """The blocks of each atom of some columns, whose bytes are counted."""
        wanted.run.mine().lookups(self.ordinal, 0, 0, *one.found.came)
        return one.atoms(wanted.skip_atoms, wanted.run)

    def _of_same_content(self, wanted: Wanted) -> Found | None:
        """What somebody made of the same rows below, whatever these were made of."""
        below, rooted, part = self.below, self.rooted, wanted.unit.index
        if below is None or rooted is None or not rooted.any:
            return None
        if rooted.content(part) is None and not wanted.skip_atoms:  # they are stored on their way
            # what is lost is noted later
            aside = dataclasses.replace(wanted.run, noted=Noted(), aside=True)
            for _, blocks in below.atoms(*wanted._replace(run=aside)):
                deque(blocks, maxlen=0)
            if rooted.content(part) is None:  # those of the next unit would be made twice, too
                self.rooted = None
        name = rooted.found(part)
        if not name:
            return None
        entry = self.finding(wanted.at).opened(name)
        found = entry.found(wanted.unit, wanted.run.most_bytes)
        return found if found is not None and self._fits(entry, found, wanted) else None

    def _fits(self, entry: Entry, found: Found, wanted: Wanted) -> bool:
        """Whether what was found is right, and of the types of this run."""
        right = self.right(entry, found, wanted.unit, wanted.run)
        return right is found and found.settled(self.nodes, wanted.at)

    # ------------------------------------------------------------------------- what is not, beside

    def _completed(self, taken: list[Taken], missing: Names, wanted: Wanted) -> Iterator[Atom]:
        """Some columns from the store, the missing ones computed beside them, and stored."""
        finding, run = self.finding(wanted.at), wanted.run
        columns = tuple((n, value) for n, value in finding.top.columns if n in missing)
        name = finding.group(columns)
        entry = finding.opened(name, columns=list(missing))
        begins = self.stores and not wanted.skip_atoms
        got = entry.filling(wanted.unit, self.form, run.most_bytes) if begins else None
        if isinstance(got, Found) and self._fits(entry, got, wanted):
            schema = Schema((n, self.schema[n]) for n in missing)
            return self._served([*taken, Taken(got, Shaped(None, schema))], wanted)
        made = self._over_lower(missing, wanted) or self._projected(missing, wanted)
        if isinstance(got, Filling):
            self._tell(name, columns, run.at)
            made = super()._filled(got, made, run)
        return self._beside(taken, made, wanted)

    def _beside(
        self, taken: Sequence[Taken], made: Iterator[Atom], wanted: Wanted
    ) -> Iterator[Atom]:
        """What is ``made`` with the columns that are there for its rows."""
        parts = [self._atoms(one, wanted) for one in taken]
        for origin, blocks in made:
            cursors = [Cursor(next(part, ())) for part in parts]
            found = sum(cursor.blocks for cursor in cursors)
            wanted.run.mine().lookups(self.ordinal, found, 0)
            yield origin, beside(cursors, blocks, self.schema, self.label)
        for part in parts:  # of units that nothing is read of
            for rest in part:
                Cursor(rest).end(self.label)

    def _projected(self, names: Names, wanted: Wanted) -> Iterator[Atom]:
        """The steps of this level, for some of its columns."""
        steps, _ = self._steps(self._lowest, names, wanted.at)
        return self.stepped(steps, self._read(wanted), self.given, wanted)

    # ----------------------------------------------------------------- what is there further below

    def _over_lower(self, names: Names | None, wanted: Wanted) -> Iterator[Atom] | None:
        """The upper steps over what is stored of one below them, the highest there is; or None."""
        finding = self.finding(wanted.at)
        first = self._lowest + (self.below is not None)
        for place in reversed(finding.places[first:-1]):
            steps, needed = self._steps(place.number, names, wanted.at)
            found = self._below(finding, place, needed, wanted)
            if found is not None:
                given = partial(self._lower, finding, place, needed)
                atoms = ((None, blocks) for blocks in found)
                return self.stepped(steps, atoms, given, wanted)
        return None

    def _lower(
        self, finding: Finding, place: Place, needed: frozenset[str] | None, wanted: Wanted
    ) -> Iterator[Iterable[Block]]:
        """The same as ``_below``, made where they are not there."""
        found = self._below(finding, place, needed, wanted)
        if found is not None:
            yield from found
            return
        run, below = wanted.run, self.given(wanted)
        steps = Steps(self.looked[self._lowest : place.number], wanted.at, 1 + self._lowest)
        yield from (steps.run(blocks, run.mine, run.noted) for blocks in below)

    def _below(
        self, finding: Finding, place: Place, needed: frozenset[str] | None, wanted: Wanted
    ) -> Iterator[Iterator[Block]] | None:
        """The blocks of each atom as a step below gave them, those columns that are needed."""
        schema = place.schema
        if not schema.known:
            taken = finding.as_it_is(place, wanted.unit, wanted.run)
            return self._side_by_side(taken, schema, wanted) if taken else None
        if needed is not None:
            schema = Schema((name, kind) for name, kind in schema.items() if name in needed)
        taken, missing = finding.take(place, schema.names, wanted.unit, wanted.run)
        return self._side_by_side(taken, schema, wanted) if taken and not missing else None

    @property
    def _lowest(self) -> int:
        """How many steps are below this level."""
        return len(self.below.nodes) if self.below else 0

    def _steps(
        self, start: int, names: Names | None, at: At
    ) -> tuple[Steps, frozenset[str] | None]:
        """The steps behind the first ``start``, for columns of these names, and what they read."""
        key = start, names
        if key not in self._known:
            steps, needed = projected(self.looked, start, names)
            places = [each.place for each in steps] + [len(self.nodes)] * len(self.storing)
            made = Steps([*(each.node for each in steps), *self.storing], at, places)
            self._known[key] = made, needed
        return self._known[key]

    # ------------------------------------------------------------------------------ what is stored

    def _filled(self, filling: Filling, made: Iterator[Atom], run: Running) -> Iterator[Atom]:
        self._tell(self.own.fingerprint, self.finding(run.at).top.columns, run.at)
        if self.own.looks and RECUT not in self._told:
            self._told.add(RECUT)
            self.finding(run.at).index.tell_recut(self.own.fingerprint)
        yield from super()._filled(filling, made, run)
        if self.rooted is not None:
            self.rooted.tell(filling.unit.index)

    def _tell(self, name: str, columns: Columns, at: At) -> None:
        """Say what an entry holds, so that others find it."""
        if name not in self._told:
            finding = self.finding(at)
            member = finding.member(name, columns)
            if member is not None:
                finding.index.tell(member)
            self._told.add(name)


class Looking(Reusing):
    """One over steps that are not stored: what others have stored of their rows is taken."""

    stores: ClassVar[bool] = False

    def atoms(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Block]], run: Running
    ) -> Iterator[Atom]:
        """The atoms of ``unit``, of what others have if they do."""
        others = self.instead(unit, skip_atoms, read, run)
        made = self._made(unit, skip_atoms, read, run) if others is None else others
        return ((origin, recut(blocks)) for origin, blocks in made)
