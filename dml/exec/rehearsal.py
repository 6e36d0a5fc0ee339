"""This file has types settle by the first rows where functions are called unit by unit.

An atom may have fewer rows than types settle by. So functions are called for these, of as many
atoms as it takes, before anything is made of the first; what they returned is handed out, in the
place of a call, when it is an atom's turn.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from dml.errors import DmlError
from dml.exec.gates import Gate
from dml.exec.lanes import called
from dml.exec.losses import Noted
from dml.exec.work import Piece
from dml.expr.cutting import SETTLING_ROWS
from dml.expr.facts import Rows
from dml.expr.flow import untyped

if TYPE_CHECKING:
    from dml.exec.steps import Steps
    from dml.exec.stored import Level, Running
    from dml.expr.block import Block
    from dml.expr.sources.source import Unit

# Steps that hand on every row.
ONE_FOR_ONE = (Rows.SAME, Rows.STORED)
# Results of one function that are kept of an atom, and items of an iterator that it gave.
MOST_KEPT, MOST_ITEMS = 1 << 16, 4096


def waits(level: Level, unit: Unit) -> bool:
    """True if types of ``level`` may not settle by the first atom of ``unit`` alone."""
    unsettled = [n for n, step in enumerate(level.steps.each) if _unsettled(step)]
    if not unsettled:
        return False
    below = len(level.nodes) - len(level.steps.each) + unsettled[-1]
    same = all(node.rows in ONE_FOR_ONE for node in level.nodes[:below])
    return not same or min(unit.rows or 0, unit.atom_rows) < SETTLING_ROWS


def settle(level: Level, unit: Unit, skip_atoms: int, run: Running) -> None:
    """Have all types of ``level`` settle by the rows of atom ``skip_atoms`` and those behind it."""
    if waits(level, unit):
        _Rehearsal(level.steps).over(_atoms(level, skip_atoms, run))


def _unsettled(step: Any) -> bool:
    return hasattr(step.node, "returned") and untyped(step.node, step.at)


def _atoms(
    level: Level, skip_atoms: int, run: Running
) -> Iterator[tuple[tuple[int, int], Iterable[Block]]]:
    """The input of ``level`` of each atom, by the numbers of its unit and in that."""
    reading, begin = run.reading, run.place
    for place in range(begin, reading.places):
        unit, skipped = reading.unit_at(place), skip_atoms if place == begin else 0
        read = partial(reading.read, unit)
        if level.below is None:
            for number, block in enumerate(read(skipped), skipped):
                yield (unit.index, number), (block,)
            continue
        changed_ns = partial(reading.stage.source.changed_ns, unit)
        other = dataclasses.replace(run, noted=Noted(), changed_ns=changed_ns, place=place)
        below = level.below.atoms(unit, skipped, read, other)
        try:
            for number, (_, blocks) in enumerate(below, skipped):
                yield (unit.index, number), list(blocks)
        finally:  # what is stored below is stored whole
            with suppress(DmlError):
                for _, blocks in below:
                    deque(blocks, maxlen=0)


class _Rehearsal:
    """Steps that run up to the last function whose types are not known."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        waiting = [n for n, step in enumerate(steps.each) if _unsettled(step)]
        self.gates = {n: Gate(steps.each[n].node, n) for n in waiting}
        self.held: dict[int, list[tuple[Sequence[Any], list[Piece]]]] = {n: [] for n in waiting}
        self.stop = waiting[-1] + 1
        self.whole = any(step.node.by_atom for step in steps.each[: self.stop])
        self.failed = False

    def over(self, atoms: Iterator[tuple[tuple[int, int], Iterable[Block]]]) -> None:
        """Look at ``atoms`` until all types have settled."""
        with suppress(DmlError):  # it is raised in its place
            for key, blocks in atoms:
                calls = {
                    n: _Recording(step.node.fn.call)
                    for n, step in enumerate(self.steps.each[: self.stop])
                    if called(step.node)
                }
                self.steps.kept[key] = {n: call.kept for n, call in calls.items()}
                each = self.steps.calling(calls).each
                for part in (blocks,) if self.whole else _parts(blocks):
                    self._feed(each, list(part), 0)
                    if self._over:
                        return atoms.close()  # type: ignore[attr-defined]
        for number in self.gates:
            self._open(number)
        return None

    @property
    def _over(self) -> bool:
        return not self.failed and all(gate.open for gate in self.gates.values())

    def _feed(self, each: Sequence[Any], blocks: list[Block], begin: int) -> None:
        """Run the steps from ``begin`` on, as far as types are known."""
        for number in range(begin, self.stop):
            step, gate = each[number], self.gates.get(number)
            if gate is None or gate.open:
                blocks = list(self._made(self._run(step, blocks)))
                continue
            found = chain.from_iterable(step.node.returned(b, step.at) for b in blocks if b.n)
            pieces = [Piece(0, 0, returned=made) for made in found]
            self.held[number].append((each, pieces))
            gate.take(pieces, step.at)
            if gate.open:
                self._open(number)
            return

    def _open(self, number: int) -> None:
        """What waits at a gate goes on."""
        gate, held = self.gates[number], self.held[number]
        at = self.steps.each[number].at
        if not gate.open:
            gate.settle(at)
        self.held[number] = []
        for each, pieces in held:
            typed = gate.typed(pieces, at)
            self.failed |= any(piece.error is not None for piece in typed)
            self._feed(each, [p.block for p in typed if p.block is not None], number + 1)

    def _run(self, step: Any, blocks: list[Block]) -> Iterator[Block]:
        if step.node.by_atom:
            return iter(step.node.run_atom(iter(blocks), step.at))
        return chain.from_iterable(step.node.run(block, step.at) for block in blocks)

    def _made(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks before an error."""
        try:
            yield from blocks
        except DmlError:
            self.failed = True


def _parts(blocks: Iterable[Block]) -> Iterator[Iterable[Block]]:
    for block in blocks:
        for start in range(0, block.n, SETTLING_ROWS):
            yield (block.slice(start, min(block.n, start + SETTLING_ROWS)),)


class _Recording:
    """A function whose results are kept, up to one that raises, or is too many."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.kept, self.on = call, deque[tuple[Any, bool]](), True

    def __call__(self, *args: Any) -> Any:
        try:
            made = self.call(*args)
        except BaseException:
            self.on = False
            raise
        several = isinstance(made, Iterator)
        if several:
            made = self._items(made)
        self.on &= len(self.kept) < MOST_KEPT
        if self.on:
            self.kept.append((made, several))
        return iter(made) if several else made

    def _items(self, made: Iterator[Any]) -> Iterable[Any]:
        """The items of an iterator, or the iterator where it fails or does not end soon."""
        items: list[Any] = []
        try:
            for item in made:
                items.append(item)
                if len(items) > MOST_ITEMS:
                    self.on = False
                    return chain(items, made)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            self.on = False
            return _raising(items, error)
        return items


def _raising(items: Sequence[Any], error: Exception) -> Iterator[Any]:
    yield from items
    raise error
