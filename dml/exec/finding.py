"""This file finds what entries of a store hold of the rows of some steps, unit by unit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

from dml.exec.beside import Shaped
from dml.exec.families import Family, Index, Member, index_of
from dml.exec.steps import Steps
from dml.exec.stored import Entry, Named, Running
from dml.exec.stored_parts import Found
from dml.expr.block import Block
from dml.expr.implied import Conjunct, Made, made_of
from dml.expr.node import Node
from dml.expr.relation import Asked, Columns, Naming, Relation, relations
from dml.expr.schema import Schema, code_of
from dml.expr.sources.source import Unit

# For so long what was found beside the store counts, and for so many times what it took to look.
LOOKED_S, LOOKED = 1.0, 20


class Piece(NamedTuple):
    """An entry that has rows of a step, and how they are made of what it holds; None: as it is.

    It holds ``held`` columns, if that is known.
    """

    fingerprint: str
    made: Made | None
    held: int = 0

    @property
    def work(self) -> tuple[bool, bool, int]:
        """Less for what is easier to take."""
        made = self.made or Made((), ())
        return bool(made.residual), not made.plain, -len(made.columns)

    def has(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Which of the columns can be had of it."""
        known = wanted if self.made is None else [name for name, _ in self.made.columns]
        return tuple(name for name in wanted if name in known)


class Taken(NamedTuple):
    """Some columns of a unit that are there."""

    found: Found
    shaped: Shaped

    def atoms(self, skip_atoms: int, run: Running) -> Iterator[list[Block]]:
        """The blocks of each atom, of these columns alone."""
        run.hold(self.found.loaded_bytes)
        for blocks in self.found.atoms(skip_atoms):
            yield [made for block in blocks for made in self.shaped.run(block, run.at)]


class Place:
    """A step, and who has rows of it; ``schema`` is that of what it gives."""

    def __init__(self, number: int, name: str, schema: Schema, relation: Relation | None) -> None:
        self.number, self.name, self.schema, self.relation = number, name, schema, relation
        self.family: Family | None = None
        self.pieces: tuple[Piece, ...] | None = None
        self._shapes: dict[tuple[Piece, tuple[str, ...] | None], Shaped] = {}

    @property
    def columns(self) -> Columns:
        """What it gives, as values over the step at its base."""
        return () if self.relation is None else self.relation.columns

    def shaped(self, piece: Piece, names: tuple[str, ...] | None) -> Shaped:
        """How some columns are made of a piece; all of them without names."""
        key = piece, names
        if key not in self._shapes:
            schema = None if names is None else Schema((name, self.schema[name]) for name in names)
            self._shapes[key] = Shaped(piece.made, schema)
        return self._shapes[key]

    def limit(self, piece: Piece) -> int:
        """How many steps may have settled types of the rows of a piece: others are not its."""
        return self.number if piece.made is None or not self.relation else self.relation.base


class Finding:
    """What entries of a store hold of the rows of ``steps`` over ``source``.

    ``entry`` is that of the last of them, which says by which names they are known; it is ``asked``
    itself, before others, or is one of them.
    """

    def __init__(
        self, source: Node, steps: Sequence[Node], entry: Entry, seed: int, *, asked: bool = True
    ) -> None:
        self.source, self.steps, self.entry = source, tuple(steps), entry
        self._known = entry.fingerprint if asked else ""
        names = entry.asked or Asked((), ())
        self.index: Index = index_of(entry.store)
        self.naming = Naming(seed)
        given = [self.source.schema, *(node.schema for node in steps)]
        found = relations(given[0], steps, names.functions)
        every = enumerate(zip(names.names, given, found, strict=True))
        self.places = [Place(number, *each) for number, each in every]
        self._listed: dict[str, list[str]] = {}
        self._until = 0.0
        self._seen = set[str]()  # entries that this pass has begun to use

    @property
    def top(self) -> Place:
        """What the stored step stores."""
        return self.places[-1]

    @property
    def there(self) -> frozenset[int]:
        """The parts that are found before others are looked at."""
        return self.parts(Piece(self._known, None)) if self._known else frozenset()

    @property
    def recut(self) -> bool:
        """Whether these may be cut otherwise than rows are where they are made."""
        return bool(self._known) and self.index.recut(self._known, self._listed)

    def family(self, place: Place) -> Family | None:
        """Which rows a step gives, if that can be told."""
        if place.relation is not None and place.family is None:
            base = self.places[place.relation.base].name
            parts = place.relation.predicate
            conjuncts = tuple(Conjunct.of(part, self.naming) for part in parts)
            place.family = Family(base, self.naming.rows(base, parts), conjuncts)
        return place.family

    def member(self, name: str, columns: Columns) -> Member | None:
        """What is to be told of an entry with some columns of the rows that are stored."""
        family = self.family(self.top)
        if family is None:
            return None
        return Member(name, family, {self.naming(value): column for column, value in columns})

    def group(self, columns: Columns) -> str:
        """The name of an entry with some columns of the rows that are stored."""
        family = self.family(self.top)
        return self.naming.group(family.rows if family else "", columns)

    def as_it_is(self, place: Place, unit: Unit, run: Running) -> list[Taken]:
        """A unit of what is stored of a step, whatever its types are."""
        for piece in self.pieces(place):
            taken = self._taken(place, piece, None, unit, run)
            if taken is not None:
                return [taken]
        return []

    def pieces(self, place: Place) -> tuple[Piece, ...]:
        """Who has rows of a step, as it was a moment ago: those that need least work first."""
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

    def _pieces(self, place: Place) -> list[Piece]:
        family = self.family(place)
        if family is None:
            exact = Piece(place.name, None)
            return [exact] if place.name != self._known and self.parts(exact) else []
        found = []
        for member in self.index.members(family, self._listed):
            made = self._made(place, member)
            if made is not None and member.fingerprint != self._known:
                found.append(Piece(member.fingerprint, made, len(member.columns)))
        return sorted(filter(self.parts, found), key=lambda each: each.work)

    def _made(self, place: Place, member: Member) -> Made | None:
        """What can be had of an entry: what would grow where it is computed, is computed below."""
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

    def parts(self, piece: Piece) -> frozenset[int]:
        """Which parts of an entry are there; a folder is listed, and nothing is read."""
        return self.index.parts(piece.fingerprint, self._listed)

    def take(
        self, place: Place, wanted: Sequence[str], unit: Unit, run: Running
    ) -> tuple[list[Taken], tuple[str, ...]]:
        """What is there of some columns of a unit, and which columns are not.

        What would lie in memory is taken as far as there is room for all of it.
        """
        taken: list[Taken] = []
        missing = tuple(wanted)
        for piece in self.pieces(place):
            names = piece.has(missing)
            one = self._taken(place, piece, names, unit, run) if names else None
            if one is not None:
                taken.append(one)
                left = run.most_bytes - one.found.loaded_bytes
                run = dataclasses.replace(run, most_bytes=left)
                missing = tuple(name for name in missing if name not in names)
            if not missing:
                break
        return taken, missing

    def _taken(
        self, place: Place, piece: Piece, names: tuple[str, ...] | None, unit: Unit, run: Running
    ) -> Taken | None:
        """Some columns of a unit of an entry, if they are there; all of them without names."""
        entry = self.opened(piece.fingerprint)
        found = entry.found(unit, run.most_bytes)
        if found is None or any(number >= place.limit(piece) for number in found.schemas):
            return None
        shaped = place.shaped(piece, names)
        block = next(chain.from_iterable(found.atoms(0)), None)
        fits = block is None or shaped.fits(block)
        if not fits or not self._trusted(place, entry, Taken(found, shaped), unit, run):
            return None
        return Taken(found, shaped) if found.settled(self.steps, run.at) else None

    def _trusted(self, place: Place, entry: Entry, taken: Taken, unit: Unit, run: Running) -> bool:
        """Whether rows that would be taken are those that are computed now."""
        canary: Any = import_module("dml.exec.canary")
        at = dataclasses.replace(run.at, epoch=0)  # that of all rows that others may have
        steps = (Steps(self.steps[: place.number], at, 1),)
        shown = partial(taken.shaped.run, at=at)
        sample = canary.Sample(entry, unit, taken.found, steps, place.number, shown)
        done: bool = canary.trusted(sample, run, self._seen)
        return done

    def opened(self, name: str, **about: Any) -> Entry:
        """An entry beside this one, of the same kind."""
        entry = self.entry
        told = {**entry.about, **about}
        named = Named(entry.where, name, told, entry.named_ns, fills=entry.fills)
        named = dataclasses.replace(named, checks=entry.checks, later=entry.later)
        return Entry(entry.store, named)
