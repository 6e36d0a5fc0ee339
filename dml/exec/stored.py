"""This file takes the rows of a stored step from the store, unit by unit, or puts them there.

The steps of a stage are cut behind each stored one. Whoever reads a unit asks for the highest cut
whose rows are there; what is made above it flows on and is put into the store on its way, a part
when the unit ends. Nothing of that can be seen in the rows.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from dml.errors import DmlError
from dml.events import Tally
from dml.exec.ids_beside import FREE, PICKED, RUN
from dml.exec.losses import Noted
from dml.exec.steps import Steps
from dml.exec.stored_parts import Filling, Found
from dml.expr.block import Block
from dml.expr.facts import Rows
from dml.expr.fingerprint import digest
from dml.expr.flow import At, untyped
from dml.expr.node import Node, epochs_at
from dml.expr.schema import Schema
from dml.expr.sources.source import Unit

if TYPE_CHECKING:
    from dml.exec.store.opened import Where
    from dml.exec.store.parts import PartStore
    from dml.expr.relation import Asked

Atom = tuple[Block | None, Iterable[Block]]
"""What was read of the source for an atom, if anything was; and the blocks made of it."""


@dataclasses.dataclass(frozen=True)
class Named:
    """Where a stored step keeps its rows, by which name, and what is said of them for people.

    ``asked`` says by which names rows like them can be found. ``looks`` says that others had some
    of them when the run began: that is decided once, as it decides how blocks are cut. If it
    ``checks``, some of its rows are computed again now and then.
    """

    where: Where
    fingerprint: str
    about: Mapping[str, Any]
    at_ns: int = sys.maxsize
    """When files were looked at to make the name."""
    asked: Asked | None = None
    looks: bool = False
    fills: bool = True
    """False where only what is there is used."""
    checks: bool = True
    later: float = math.inf
    """How often this machine will ask for the rows again, as far as anybody said so."""

    def of(self, node: Node, epoch: int) -> Named:
        """The same of ``epoch``: rows that are drawn anew have a name for each draw."""
        if getattr(node, "reuse", None) is None:
            return self
        turn = cast("Any", node).turn(epoch)
        name = digest("drawn", self.fingerprint, turn).hex()
        return dataclasses.replace(self, fingerprint=name, about={**self.about, "draw": turn})


@dataclasses.dataclass(frozen=True)
class Storing:
    """The names of a run's stored steps by digest and root; it can be sent."""

    names: Mapping[tuple[bytes, str], Named]

    def __call__(self, node: Node, epoch: int) -> Entry | None:
        """Where the rows of ``node`` in ``epoch`` are kept, or those like them are looked for."""
        named = self.names.get((node.digest, getattr(node, "root", "")))
        return None if named is None else entry_of(named.of(node, epoch))

    @property
    def looks(self) -> bool:
        """Whether others had rows of this run when it began."""
        return any(named.looks for named in self.names.values())


def entry_of(named: Named) -> Entry:
    """The entry of that name."""
    opened = import_module("dml.exec.store.opened")  # by runs that store something
    return Entry(opened.store_at(named.where), named)


class Entry:
    """The parts of one stored step."""

    def __init__(self, store: PartStore, named: Named) -> None:
        self.store, self.where, self.named_ns = store, named.where, named.at_ns
        self.fingerprint, self.about, self.fills = named.fingerprint, named.about, named.fills
        self.asked, self.looks, self.checks = named.asked, named.looks, named.checks
        self.later = named.later

    def found(self, unit: Unit, most_bytes: int, *, had: bool = False) -> Found | None:
        """The rows of a unit, if they are there, and not too many for memory if they lie in it.

        If ``had``, only over a file of this disk that this process has had, and checked, before.
        """
        rows = self.store.part(self.fingerprint, unit.index, most_bytes, self.later, had=had)
        return None if rows is None else Found.of(rows, unit)

    def filling(self, unit: Unit, form: int, most_bytes: int) -> Found | Filling | None:
        """The same once more, or what takes the rows; None to go without the store."""
        if not self.fills:
            return None
        got = self.store.fill(self.fingerprint, unit.index, most_bytes, self.later)
        if got is None:
            return None
        if isinstance(got, tuple):
            return Found.of(got, unit)
        self.store.describe(self.fingerprint, self.about)
        return Filling(got, unit, form, self.named_ns, recut=self.looks)

    def wrong(self, *, lost: bool = False) -> str:
        """Why a part that was made is not kept, for people; "" if that is told elsewhere."""
        standing = self.store.standing
        if not self.store.trusts(self.fingerprint):
            return ""
        failed, told = standing.unusable or standing.unwritable, "rows" if lost else ""
        why, _ = import_module("dml.exec.store.standing").reason(self.store, failed, lost=told)
        return str(why)


class Level:
    """Some steps of a stage over those ``below``; ``entry`` keeps what the last of them gives."""

    def __init__(self, steps: Steps, first: int, below: Level | None, entry: Entry | None) -> None:
        self.steps, self.below, self.entry = steps, below, entry
        self.nodes: tuple[Node, ...] = (*(below.nodes if below else ()), *steps.nodes)
        self.ordinal = first + len(steps.nodes) - 1
        self.form = _form(self.nodes)
        self.all_steps: tuple[Steps, ...] = (*(below.all_steps if below else ()), steps)
        self.seen = set[str]()  # entries that this pass has begun to use

    @property
    def gives_stored(self) -> bool:
        """Whether what it gives are the rows of its entry, as they are."""
        return self.entry is not None and self.nodes[-1].rows is Rows.STORED

    def atoms(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Block]], run: Running
    ) -> Iterator[Atom]:
        """The atoms of ``unit`` from ``skip_atoms`` on; ``read`` gives them as the source does."""
        if self.entry is None:
            yield from self._made(unit, skip_atoms, read, run)
            return
        aside, run = run.aside, dataclasses.replace(run, aside=False)
        started = time.perf_counter()
        got = self.right(self.entry, self.entry.found(unit, run.most_bytes), unit, run)
        others = self.instead(unit, skip_atoms, read, run) if got is None else None
        if others is not None:
            yield from others
            return
        if got is None and not skip_atoms:  # what does not begin with the unit is no part
            got = self.entry.filling(unit, self.form, run.most_bytes)
            got = self.right(self.entry, got, unit, run)
        if isinstance(got, Found):
            got = self._usable(got, self.entry, run.at)
        if got is not None and not isinstance(got, Filling):
            yield from self.handed(got, got.atoms(skip_atoms), run, started)
        elif got is not None:
            yield from self._filled(got, self._made(unit, 0, read, run), run)
        elif not aside:
            self._unfilled(self.entry, run)
            yield from self._made(unit, skip_atoms, read, run)

    def _unfilled(self, entry: Entry, run: Running) -> None:
        """Note why a part is made without the store, if that cannot be used."""
        if entry.fills and not entry.store.standing.whole and (wrong := entry.wrong()):
            run.mine().stored(self.ordinal, wrong)

    def had(self, unit: Unit, run: Running) -> Found | None:
        """The rows of ``unit`` where all there is to do is to map them; see ``handed``."""
        entry = self.entry
        if entry is None:
            return None
        got = self.right(entry, entry.found(unit, run.most_bytes, had=True), unit, run)
        return None if got is None else self._usable(got, entry, run.at)

    def _usable(self, found: Found, entry: Entry, at: At) -> Found | None:
        fits = entry.looks or not found.recut
        return found if fits and found.settled(self.nodes, at) else None

    def right(self, entry: Entry, got: Any, unit: Unit, run: Running) -> Any:
        """What was got, but of an entry whose rows are not those that are computed now."""
        if not isinstance(got, Found):
            return got
        canary = _loaded("canary")
        sample = canary.Sample(entry, unit, got, self.all_steps, self.ordinal)
        return got if canary.trusted(sample, run, self.seen) else None

    def instead(
        self, _unit: Unit, _skip_atoms: int, _read: Callable[[int], Iterator[Block]], _run: Running
    ) -> Iterator[Atom] | None:
        """The same where the entry does not have them, but others do; None if they do not."""
        return None

    def _made(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Block]], run: Running
    ) -> Iterator[Atom]:
        wanted = Wanted(unit, skip_atoms, read, run)
        return self.stepped(self.steps, self._read(wanted), self.given, wanted)

    def stepped(
        self, steps: Steps, atoms: Iterable[Atom], given: Given, wanted: Wanted
    ) -> Iterator[Atom]:
        """What ``steps`` make of ``atoms``; ``given`` opens those of other units, too."""
        if any(untyped(step.node, step.at) for step in steps.each):
            below = self.below.nodes if self.below else ()
            _loaded("rehearsal").settle(steps, below, given, wanted)
        run = wanted.run
        for number, (origin, blocks) in enumerate(atoms, wanted.skip_atoms):
            own = steps.at_turn(wanted.unit.index, number)
            yield origin, own.run(blocks, run.mine, run.noted)

    def _read(self, wanted: Wanted) -> Iterator[Atom]:
        """What comes from below."""
        if self.below is None:
            return ((block, (block,)) for block in wanted.read(wanted.skip_atoms))
        return self.below.atoms(*wanted)

    def given(self, wanted: Wanted) -> Iterator[Iterable[Block]]:
        """The same, without the atoms as they were read; what is stored below is stored whole."""
        atoms = self._read(wanted)
        try:
            for _, blocks in atoms:
                yield list(blocks)
        except GeneratorExit:
            with suppress(DmlError):  # it is raised in its place
                for _, blocks in atoms if self.below is not None else ():
                    deque(blocks, maxlen=0)
            raise

    def handed(
        self, found: Found, atoms: Iterator[list[Block]], run: Running, started: float
    ) -> Iterator[Atom]:
        """The ``atoms`` of what was ``found``, counted; it was looked for from ``started`` on."""
        run.hold(found.loaded_bytes)
        run.mine().stored(self.ordinal)
        run.mine().lookups(self.ordinal, 0, 0, *found.came)
        for blocks in atoms:
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
            # rows that errors have cost may be there the next time; the name is that of the file
            # as it was when the run began
            lost = any(ordinal <= self.ordinal for ordinal in run.noted.ordinals)
            done = not lost and run.changed_ns() < filling.named_ns
            kept = done and filling.commit(self._settled(run.at), before)
            if self.entry is not None:
                wrong = "" if kept else self.entry.wrong(lost=lost)
                run.mine().stored(self.ordinal, wrong)
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
    changed_ns: Callable[[], int]
    most_bytes: int
    hold: Callable[[int], None]
    """Told of bytes of a part that lie in memory as long as the unit is open."""
    aside: bool = False
    """The rows are made to be stored, and for nothing else."""
    reading: Any = None
    """What reads the source, where some stored rows may be made again."""
    place: int = 0
    """Where the unit stands in the order in which they are read."""


class Wanted(NamedTuple):
    """Atoms of ``unit`` from ``skip_atoms`` on; see ``Level.atoms``."""

    unit: Unit
    skip_atoms: int
    read: Callable[[int], Iterator[Block]]
    run: Running

    @property
    def at(self) -> At:
        """When and with what they are computed."""
        return self.run.at


Given: TypeAlias = Callable[[Wanted], Iterator[Iterable[Block]]]
"""Opens what steps are given of each atom."""


def levels(nodes: Sequence[Node], at: At, *, in_order: bool = True) -> Level:
    """The steps of a stage, cut behind those that are stored in this run.

    What stands above these may be stored by others; but they would have the rows of a unit
    ``in_order``, and those of epoch 0.
    """
    below: Level | None = None
    start, epochs = 0, epochs_at(nodes, at.epoch)
    for end, node in enumerate(nodes, 1):
        own = dataclasses.replace(at, epoch=epochs[end - 1])
        entry = at.store(node, own.epoch) if node.rows is Rows.STORED else None
        if entry is not None:
            made = Level if entry.asked is None else _loaded("stored_columns").Reusing
            below = made(Steps(nodes[start:end], own, 1 + start), 1 + start, below, entry)
            start = end
    rest = Steps(nodes[start:], at, 1 + start)
    stored = not nodes or nodes[-1].rows is Rows.STORED
    looked = not stored and in_order and at.epoch == 0
    entry = at.store(nodes[-1], at.epoch) if looked else None
    if entry is None:
        return Level(rest, 1 + start, below, None)
    top: Level = _loaded("stored_columns").Looking(rest, 1 + start, below, entry)
    return top


def _loaded(name: str) -> Any:
    """A file of runs that look for rows of others, or whether stored ones are right."""
    return import_module(f"dml.exec.{name}")


def _form(nodes: Sequence[Node]) -> int:
    """How ids are written that so many steps have left: every block of a part in the same way."""
    kinds = {node.rows for node in nodes}
    if kinds <= {Rows.SAME, Rows.STORED}:
        return RUN
    return PICKED if kinds <= {Rows.SAME, Rows.STORED, Rows.FEWER} else FREE
