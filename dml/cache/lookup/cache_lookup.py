"""Search the entries of a store, unit by unit, for rows of the steps of a pipeline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from dml.cache.lookup.cache_index import CacheIndex, Family, IndexMember, index_of
from dml.cache.lookup.column_zip import Shaped
from dml.cache.parts.entry import StoredEntry
from dml.cache.rows.canary import CanarySample, trusted
from dml.cache.rows.row_parts import StoredUnit
from dml.data.block import Block
from dml.data.schema import Schema, code_of
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.unit_input import Running
from dml.expr.node import Node
from dml.io.source import Unit
from dml.ops.implication import Conjunct, Derivation, made_of
from dml.ops.relation import Columns, Naming, Relation, relations
from dml.optimize.fingerprints import StoreQuery

# Look-ups in the index stay valid for LOOKED_S seconds, plus LOOKED times their own duration.
LOOKED_S, LOOKED = 1.0, 20


class LookupPiece(NamedTuple):
    """An entry that holds rows of a step, and the derivation ``made`` of these rows from it.

    Without ``made``, rows are unchanged. ``held`` is the entry's number of columns, 0 if unknown.
    """

    fingerprint: str
    made: Derivation | None
    held: int = 0

    @property
    def work(self) -> tuple[bool, bool, int]:
        """The sort key, which is smaller if deriving the rows from the entry takes less work."""
        made = self.made or Derivation((), ())
        return bool(made.residual), not made.plain, -len(made.columns)

    def has(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the ``wanted`` columns that the entry provides."""
        known = wanted if self.made is None else [name for name, _ in self.made.columns]
        return tuple(name for name in wanted if name in known)


class TakenColumns(NamedTuple):
    """Columns of a unit from one entry: its stored rows, and the derivation of the columns."""

    found: StoredUnit
    shaped: Shaped

    def atoms(self, skip_atoms: int, run: Running) -> Iterator[list[Block]]:
        """Yield the blocks of each atom, with these columns alone."""
        run.hold(self.found.loaded_bytes)
        for blocks in self.found.atoms(skip_atoms):
            yield [made for block in blocks for made in self.shaped.run(block, run.at)]


class LookupPlace:
    """A step and the entries that hold rows of it; ``schema`` is the schema of its output."""

    def __init__(self, number: int, name: str, schema: Schema, relation: Relation | None) -> None:
        self.number, self.name, self.schema, self.relation = number, name, schema, relation
        self.family: Family | None = None
        self.pieces: tuple[LookupPiece, ...] | None = None
        self._shapes: dict[tuple[LookupPiece, tuple[str, ...] | None], Shaped] = {}

    @property
    def columns(self) -> Columns:
        """The output columns, as expressions over the step that the rows are selected from."""
        return () if self.relation is None else self.relation.columns

    def shaped(self, piece: LookupPiece, names: tuple[str, ...] | None) -> Shaped:
        """Return the derivation of columns ``names`` from an entry; of all columns if None."""
        key = piece, names
        if key not in self._shapes:
            schema = None if names is None else Schema((name, self.schema[name]) for name in names)
            self._shapes[key] = Shaped(piece.made, schema)
        return self._shapes[key]

    def limit(self, piece: LookupPiece) -> int:
        """Return the number of the first step whose schema the entry's rows must not settle."""
        return self.number if piece.made is None or not self.relation else self.relation.base


class Finding:
    """A search for entries of a store that hold the rows of ``steps`` over ``source``.

    ``entry`` is the entry of the last step, and has the names of the steps. With ``asked``, the
    caller reads ``entry`` before other entries; otherwise ``entry`` is searched as one of them.
    """

    def __init__(
        self,
        source: Node,
        steps: Sequence[Node],
        entry: StoredEntry,
        seed: int,
        *,
        asked: bool = True,
    ) -> None:
        self.source, self.steps, self.entry = source, tuple(steps), entry
        self._known = entry.fingerprint if asked else ""
        names = entry.asked or StoreQuery((), ())
        self.index: CacheIndex = index_of(entry.store)
        self.naming = Naming(seed)
        given = [self.source.schema, *(node.schema for node in steps)]
        found = relations(given[0], steps, names.functions)
        every = enumerate(zip(names.names, given, found, strict=True))
        self.places = [LookupPlace(number, *each) for number, each in every]
        self._listed: dict[str, list[str]] = {}
        self._until = 0.0
        self._seen = set[str]()  # entries that this pass has used already

    @property
    def top(self) -> LookupPlace:
        """The step whose rows are stored."""
        return self.places[-1]

    @property
    def there(self) -> frozenset[int]:
        """The numbers of the parts that ``entry`` itself stores; empty without ``asked``."""
        return self.parts(LookupPiece(self._known, None)) if self._known else frozenset()

    @property
    def recut(self) -> bool:
        """True if ``entry`` may have blocks that are cut differently from blocks computed anew."""
        return bool(self._known) and self.index.recut(self._known, self._listed)

    def family(self, place: LookupPlace) -> Family | None:
        """Return a step's rows as filters over another step; None if that is impossible."""
        if place.relation is not None and place.family is None:
            base = self.places[place.relation.base].name
            parts = place.relation.predicate
            conjuncts = tuple(Conjunct.of(part, self.naming) for part in parts)
            place.family = Family(base, self.naming.rows(base, parts), conjuncts)
        return place.family

    def member(self, name: str, columns: Columns) -> IndexMember | None:
        """Return the index record of entry ``name`` with some ``columns`` of the stored rows."""
        family = self.family(self.top)
        if family is None:
            return None
        return IndexMember(name, family, {self.naming(value): column for column, value in columns})

    def group(self, columns: Columns) -> str:
        """Return the name of an entry that stores only ``columns`` of the rows."""
        family = self.family(self.top)
        return self.naming.group(family.rows if family else "", columns)

    def as_it_is(self, place: LookupPlace, unit: Unit, run: Running) -> list[TakenColumns]:
        """Return the stored rows of a step for ``unit``, with all their columns; [] if none."""
        for piece in self.pieces(place):
            taken = self._take_piece(place, piece, None, unit, run)
            if taken is not None:
                return [taken]
        return []

    def pieces(self, place: LookupPlace) -> tuple[LookupPiece, ...]:
        """Return the entries with rows of a step, least work first; memoized for some seconds."""
        begun = time.monotonic()
        if begun > self._until:
            self._listed, self._until = {}, begun + LOOKED_S
            for each in self.places:
                each.pieces = None
        found = place.pieces
        if found is None:
            found = place.pieces = tuple(self._pieces(place))
            self._until += LOOKED * (time.monotonic() - begun)
        return found

    def _pieces(self, place: LookupPlace) -> list[LookupPiece]:
        family = self.family(place)
        if family is None:
            exact = LookupPiece(place.name, None)
            return [exact] if place.name != self._known and self.parts(exact) else []
        found = []
        for member in self.index.members(family, self._listed):
            made = self._derive(place, member)
            if made is not None and member.fingerprint != self._known:
                found.append(LookupPiece(member.fingerprint, made, len(member.columns)))
        return sorted(filter(self.parts, found), key=lambda each: each.work)

    def _derive(self, place: LookupPlace, member: IndexMember) -> Derivation | None:
        """Return how an entry provides columns of a step, or None; omit computed Arrow columns."""
        predicate = place.relation.predicate if place.relation else ()
        passed = member.family.names
        made = made_of(member.columns, passed, predicate, place.columns, self.naming)
        if made is None:
            return None
        kept = tuple(
            (name, value)
            for name, value in made.columns
            if value.op == "col" or code_of(place.schema[name]) != "arrow"
        )
        return made._replace(columns=kept) if kept else None

    def parts(self, piece: LookupPiece) -> frozenset[int]:
        """Return the stored parts of an entry; lists a folder, and reads no file."""
        return self.index.parts(piece.fingerprint, self._listed)

    def take(
        self, place: LookupPlace, wanted: Sequence[str], unit: Unit, run: Running
    ) -> tuple[list[TakenColumns], tuple[str, ...]]:
        """Return stored columns of a unit among ``wanted``, and the names of the missing columns.

        Columns that would be loaded into memory are only taken if they fit the memory limit.
        """
        taken: list[TakenColumns] = []
        missing = tuple(wanted)
        for piece in self.pieces(place):
            names = piece.has(missing)
            one = self._take_piece(place, piece, names, unit, run) if names else None
            if one is not None:
                taken.append(one)
                left = run.most_bytes - one.found.loaded_bytes
                run = dataclasses.replace(run, most_bytes=left)
                missing = tuple(name for name in missing if name not in names)
            if not missing:
                break
        return taken, missing

    def _take_piece(
        self,
        place: LookupPlace,
        piece: LookupPiece,
        names: tuple[str, ...] | None,
        unit: Unit,
        run: Running,
    ) -> TakenColumns | None:
        """Return columns ``names`` of a unit, all if None; return None if the entry is unusable."""
        entry = self.opened(piece.fingerprint)
        found = StoredUnit.find(entry, unit, run.most_bytes)
        if found is None or any(number >= place.limit(piece) for number in found.schemas):
            return None
        shaped = place.shaped(piece, names)
        block = next(chain.from_iterable(found.atoms(0)), None)
        fits = block is None or shaped.fits(block)
        if not fits or not self._trusted(place, entry, TakenColumns(found, shaped), unit, run):
            return None
        return TakenColumns(found, shaped) if found.settled(self.steps, run.at) else None

    def _trusted(
        self, place: LookupPlace, entry: StoredEntry, taken: TakenColumns, unit: Unit, run: Running
    ) -> bool:
        """Return True if a sample of the stored rows equals the rows that are computed now."""
        at = dataclasses.replace(run.at, epoch=0)  # the epoch of all rows that others may have
        steps = (Steps(self.steps[: place.number], at, 1),)
        shown = partial(taken.shaped.run, at=at)
        sample = CanarySample(entry, unit, taken.found, steps, place.number, shown)
        return trusted(sample, run, self._seen)

    def opened(self, name: str, **about: Any) -> StoredEntry:
        """Open entry ``name`` of the same store, with the settings of this entry."""
        told = {**self.entry.about, **about}
        return dataclasses.replace(
            self.entry, fingerprint=name, about=told, asked=None, looks=False
        )
