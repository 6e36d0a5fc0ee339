"""This file takes the rows of a stored step from the store, unit by unit, or puts them there.

The steps of a stage are cut behind each stored one. Whoever reads a unit asks for the highest cut
whose rows are there; what is made above it flows on and is put into the store on its way, a part
when the unit ends. Nothing of that can be seen in the rows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from importlib import import_module
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from dml.events import Tally
from dml.exec.ids_beside import FREE, PICKED, RUN, WORDS, apart, beside, form_of, ids_of, picked
from dml.exec.losses import Noted
from dml.exec.schema_text import schema_of, schema_text
from dml.exec.steps import Steps
from dml.expr.block import Block
from dml.expr.facts import Rows
from dml.expr.flow import At
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.expr.sources.source import Unit
from dml.kernels.ids import RowIds

if TYPE_CHECKING:
    from dml.exec.store.blobs import Rows as Part
    from dml.exec.store.filling import Filling as Draft
    from dml.exec.store.opened import Where
    from dml.exec.store.parts import PartStore

# Rows of an atom are numbered below it where they are picked.
MOST_PICKED = 1 << 32

Atom = tuple[Block | None, Iterable[Block]]
"""What was read of the source for an atom, if anything was; and the blocks made of it."""


@dataclasses.dataclass(frozen=True)
class Named:
    """Where a stored step keeps its rows, by which name, and what is said of them for people."""

    where: Where
    fingerprint: str
    about: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Storing:
    """The names of a run's stored steps by digest and root; it can be sent."""

    names: Mapping[tuple[bytes, str], Named]

    def __call__(self, node: Node) -> Entry | None:
        """Where the rows of ``node`` are kept, if they are."""
        named = self.names.get((node.digest, cast("Any", node).root))
        if named is None:
            return None
        opened = import_module("dml.exec.store.opened")  # by runs that store something
        return Entry(opened.store_at(named.where), named)


class Entry:
    """The parts of one stored step."""

    def __init__(self, store: PartStore, named: Named) -> None:
        self.store, self.where = store, named.where
        self.fingerprint, self.about = named.fingerprint, named.about

    def found(self, unit: Unit) -> Found | None:
        """The rows of a unit, if they are there."""
        rows = self.store.part(self.fingerprint, unit.index)
        return None if rows is None else Found.of(rows, unit)

    def filling(self, unit: Unit, form: int) -> Found | Filling | None:
        """The same once more, or what takes the rows; None to go without the store."""
        got = self.store.fill(self.fingerprint, unit.index)
        if got is None:
            return None
        if isinstance(got, tuple):
            return Found.of(got, unit)
        self.store.describe(self.fingerprint, self.about)
        return Filling(got, unit, form)


class Found:
    """The rows of a unit, and the types that had settled when they were made.

    ``own`` are the operators whose types these rows settled themselves.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], about: Mapping[str, Any]) -> None:
        self.batches, self.about = batches, about
        self.schemas = {int(place): schema_of(text) for place, text in about["schemas"].items()}
        self.own = frozenset(about["own"])

    @staticmethod
    def of(rows: Part, unit: Unit) -> Found | None:
        """What a part says; None if it is of another cut of the source, or written otherwise."""
        known = rows.about.get("unit") == _cut(unit) and rows.about.get("ids") in WORDS
        return Found(*rows) if known else None

    def atoms(self, skip_atoms: int) -> Iterator[list[Block]]:
        """The blocks of each atom from ``skip_atoms`` on, over the memory of the part."""
        ends = [0, *accumulate(self.about["atoms"])]
        for start, stop in pairwise(ends[skip_atoms:]):
            yield [self._block(number) for number in range(start, stop)]

    def _block(self, number: int) -> Block:
        count, high, low = self.about["blocks"][number]
        form = WORDS.index(self.about["ids"])
        plain, columns = apart(self.batches[number], form)
        return Block.from_arrow(plain, ids_of(form, columns, count, (high, low)))

    def settled(self, nodes: Sequence[Node], at: At) -> bool:
        """Take over the types; False if those of this run are others, or may turn out so.

        A run has the types of the rows that it reads first. A part that was made after others says
        nothing of those.
        """
        keys = {place: nodes[place].digest.hex() for place in self.schemas}
        for place, schema in self.schemas.items():
            known = at.schemas.get(keys[place])
            if known != schema and (known is not None or place not in self.own):
                return False
        for place, schema in self.schemas.items():
            at.schemas.setdefault(keys[place], schema)
        return True


class Filling:
    """A part in the making, whose ids are written in one ``form``."""

    def __init__(self, part: Draft, unit: Unit, form: int) -> None:
        self.part, self.unit, self.form = part, unit, form
        self.atoms: list[int] = []
        self.blocks: list[tuple[int, int, int]] = []

    def passing(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The blocks of an atom, each put into the part before it goes on."""
        self.part.resting = False
        self.atoms.append(0)
        for block in blocks:
            self._add(block)
            self.part.resting = True
            yield block
            self.part.resting = False
        self.part.resting = True  # what stands above may have more of the atom to give

    def _add(self, block: Block) -> None:
        packed = _packed(block.ids, self.form)
        if packed is None:
            self.part.drop()
            return
        columns, high, low = packed
        self.part.add(beside(block.to_arrow(), self.form, columns))
        self.atoms[-1] += 1
        self.blocks.append((block.n, high, low))

    def commit(self, schemas: Mapping[int, Schema], before: Set[int]) -> None:
        """Say that this is all of the unit; the types ``before`` it were settled by others."""
        texts = {str(place): schema_text(schema) for place, schema in schemas.items()}
        own = sorted(schemas.keys() - before)
        about = {"atoms": self.atoms, "blocks": self.blocks, "ids": WORDS[self.form]}
        about |= {"schemas": texts, "own": own}
        self.part.commit({**about, "unit": _cut(self.unit)})


class Level:
    """Some steps of a stage over those ``below``; ``entry`` keeps what the last of them gives."""

    def __init__(self, steps: Steps, first: int, below: Level | None, entry: Entry | None) -> None:
        self.steps, self.below, self.entry = steps, below, entry
        self.nodes: tuple[Node, ...] = (*(below.nodes if below else ()), *steps.nodes)
        self.ordinal = first + len(steps.nodes) - 1
        self.form = _form(self.nodes)

    def atoms(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Block]], run: Running
    ) -> Iterator[Atom]:
        """The atoms of ``unit`` from ``skip_atoms`` on; ``read`` gives them as the source does."""
        if self.entry is None:
            yield from self._made(unit, skip_atoms, read, run)
            return
        started = time.perf_counter()
        got: Found | Filling | None = self.entry.found(unit)
        if got is None and not skip_atoms:  # what does not begin with the unit is no part
            got = self.entry.filling(unit, self.form)
        if isinstance(got, Found) and got.settled(self.nodes, run.at):
            yield from self._kept(got, skip_atoms, run, started)
        elif isinstance(got, Filling):
            yield from self._filled(got, self._made(unit, 0, read, run), run)
        else:
            yield from self._made(unit, skip_atoms, read, run)

    def _made(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Block]], run: Running
    ) -> Iterator[Atom]:
        if self.below is None:
            for block in read(skip_atoms):
                yield block, self.steps.run((block,), run.mine, run.noted)
            return
        for origin, blocks in self.below.atoms(unit, skip_atoms, read, run):
            yield origin, self.steps.run(blocks, run.mine, run.noted)

    def _kept(self, found: Found, skip_atoms: int, run: Running, started: float) -> Iterator[Atom]:
        for blocks in found.atoms(skip_atoms):
            for block in blocks:
                seconds = time.perf_counter() - started
                size = block.nbytes
                run.mine().block(self.ordinal, block.n, block.n, size, size, seconds)
                started = time.perf_counter()
            run.mine().lookups(self.ordinal, len(blocks), 0)
            yield None, blocks
            started = time.perf_counter()

    def _filled(self, filling: Filling, made: Iterator[Atom], run: Running) -> Iterator[Atom]:
        before, done = self._settled(run.at).keys(), False
        try:
            for origin, blocks in made:
                yield origin, filling.passing(blocks)
                run.mine().lookups(self.ordinal, 0, filling.atoms[-1])
            # rows that errors have cost may be there the next time
            done = not any(ordinal <= self.ordinal for ordinal in run.noted.ordinals)
            if done:
                filling.commit(self._settled(run.at), before)
        finally:
            if not done:
                filling.part.drop()

    def _settled(self, at: At) -> dict[int, Schema]:
        known = ((n, at.schemas.get(node.digest.hex())) for n, node in enumerate(self.nodes))
        return {n: schema for n, schema in known if schema is not None}


@dataclasses.dataclass(frozen=True)
class Running:
    """What the steps of a unit are told, and where they are counted."""

    at: At
    mine: Callable[[], Tally]
    noted: Noted


def levels(nodes: Sequence[Node], at: At) -> Level:
    """The steps of a stage, cut behind those that are stored in this run."""
    below: Level | None = None
    start = 0
    for end, node in enumerate(nodes, 1):
        entry = at.store(node) if node.rows is Rows.STORED else None
        if entry is not None:
            below = Level(Steps(nodes[start:end], at, 1 + start), 1 + start, below, entry)
            start = end
    rest = Steps(nodes[start:], at, 1 + start)
    return Level(rest, 1 + start, below, None)


def _cut(unit: Unit) -> list[int | None]:
    """What says where the atoms of a unit begin."""
    return [unit.atoms, unit.rows, unit.atom_rows]


def _form(nodes: Sequence[Node]) -> int:
    """How ids are written that so many steps have left: every block of a part in the same way."""
    kinds = {node.rows for node in nodes}
    if kinds <= {Rows.SAME, Rows.STORED}:
        return RUN
    return PICKED if kinds <= {Rows.SAME, Rows.STORED, Rows.FEWER} else FREE


def _packed(ids: RowIds, form: int) -> tuple[list[np.ndarray], int, int] | None:
    """Columns of ids and the first of them; None if they cannot be written in that form."""
    if form == FREE:
        return list(ids.arrays()), 0, 0
    high, low, steps = _stepped(ids)
    if steps is None or (steps.min(initial=0) < 0 or steps.max(initial=0) >= MOST_PICKED):
        return None
    if form == RUN:
        return ([], high, low) if (steps == np.arange(len(ids))).all() else None
    return [steps.astype(np.uint32)], high, low


def _stepped(ids: RowIds) -> tuple[int, int, np.ndarray | None]:
    """An id, and how far beyond it those of the rows are; None if they are not of one source."""
    if form_of(ids) != FREE:
        return cast("int", ids.hi), cast("int", ids.lo), picked(ids)
    high, low = ids.arrays()
    if not len(ids):
        return 0, 0, np.arange(0)
    alike = bool((high == high[0]).all())
    return int(high[0]), int(low[0]), (low - low[0]).astype(np.int64) if alike else None
