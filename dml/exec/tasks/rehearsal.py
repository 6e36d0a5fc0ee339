"""Settle types from the first rows before any unit's output is made, if functions run on units.

An atom may have fewer rows than types need to settle. So functions are called for the first rows,
of as many atoms as needed, before any output is made. Their results are recorded, and returned
again without a call when the output of the atom is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from dml.data.row_slicing import SETTLING_ROWS
from dml.errors import DmlError, PlanError
from dml.exec.slicing.type_gates import Gate
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.replay_check import impure
from dml.exec.tasks.skipped_rows import Noted
from dml.exec.tasks.unit_input import Given, UnitRequest
from dml.expr.facts import Rows
from dml.expr.flow import untyped
from dml.physical.lanes import called
from dml.udfs.calling.type_inference import Recording, RecordingQuota

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.exec.tasks.steps import Steps
    from dml.expr.node import Node

# Steps that keep every row.
ONE_FOR_ONE = (Rows.SAME, Rows.STORED)
Numbered: TypeAlias = Generator[tuple[tuple[int, int], list["Block"]], None, None]
"""Blocks of atoms, each by the number of its unit and its number in the unit."""


def settle(steps: Steps, below: Sequence[Node], given: Given, wanted: UnitRequest) -> None:
    """Settle all types of ``steps`` from the rows of the first wanted atom and of later atoms.

    Do nothing if that atom has enough rows. ``below`` are the operators that make the input of
    ``steps``; ``given`` yields the input blocks of each atom of a unit.
    """
    waiting = [n for n, step in enumerate(steps.each) if _unsettled(step)]
    if not waiting or steps.rehearsed or wanted.unit.is_open:  # an open unit can be read only once
        return
    # a step that needs whole atoms, after a function of unknown types, waits for a whole atom
    gathers = [n for n, step in enumerate(steps.each) if step.node.by_atom and n > waiting[0]]
    waiting = [n for n in waiting if n < min(gathers, default=n + 1)]
    steps.rehearsed = True
    before = (*below, *(step.node for step in steps.each[: waiting[-1]]))
    rows = min(wanted.unit.rows or 0, wanted.unit.atom_rows)
    if rows < SETTLING_ROWS or not all(node.rows in ONE_FOR_ONE for node in before):
        refuse_twice(step.node for step in steps.each[: waiting[-1] + 1])
        _Rehearsal(steps, waiting).over(_atoms(given, wanted))


def refuse_twice(nodes: Iterable[Node]) -> None:
    """Raise PlanError if a function declared impure would be called twice for the first rows."""
    if once := impure(nodes):
        raise PlanError(
            "types are not known that functions settle, one of which is declared pure=False",
            at=once,
            why="it is called for the first rows before any unit is made, for some once more then",
            try_="schema={...} of each function whose types are not known",
        )


def _unsettled(step: Any) -> bool:
    return step.node.returns_rows and untyped(step.node, step.at)


def _atoms(given: Given, wanted: UnitRequest) -> Numbered:
    """Yield ((unit number, atom number), input blocks) of each atom from the wanted one on."""
    run, reading, skipped = wanted.run, wanted.run.reading, wanted.skip_atoms
    for place in range(run.place, reading.places):
        unit = reading.unit_at(place)
        changed_ns = partial(reading.stage.source.changed_ns, unit)
        other = dataclasses.replace(run, noted=Noted(), changed_ns=changed_ns, place=place)
        atoms: Any = given(UnitRequest(unit, skipped, partial(reading.uncounted, unit), other))
        with closing(atoms):
            for number, blocks in enumerate(atoms, skipped):
                yield (unit.index, number), list(blocks)
        skipped = 0


class _Rehearsal:
    """Runs ``steps`` up to the last function whose types are unknown."""

    def __init__(self, steps: Steps, waiting: Sequence[int]) -> None:
        self.steps = steps
        self.gates = {n: Gate(steps.each[n].node, n) for n in waiting}
        self.held: dict[int, list[tuple[Sequence[Any], list[Piece]]]] = {n: [] for n in waiting}
        self.stop = waiting[-1] + 1
        self.whole = any(step.node.by_atom for step in steps.each[: self.stop])
        self.failed, self.room = False, RecordingQuota()

    def over(self, atoms: Numbered) -> None:
        """Run the steps over ``atoms`` until all types have settled."""
        with suppress(DmlError), closing(atoms) as each_atom:  # raised again at its place
            for key, blocks in each_atom:
                calls = {
                    n: Recording(step.node.fn.call, self.room)
                    for n, step in enumerate(self.steps.each[: self.stop])
                    if called(step.node)
                }
                self.steps.kept[key] = {n: call.kept for n, call in calls.items()}
                each = self.steps.calling(calls).each
                for part in (blocks,) if self.whole else _parts(blocks):
                    self._feed(each, part, 0)
                    if self._over:
                        return
                    if self.failed:
                        break
                if self.failed:
                    break
        for number in self.gates:
            self._open(number)

    @property
    def _over(self) -> bool:
        return not self.failed and all(gate.open for gate in self.gates.values())

    def _feed(self, each: Sequence[Any], blocks: Iterable[Block], begin: int) -> None:
        """Run the steps from ``begin`` on for ``blocks``, up to the first step of unknown types.

        Return as soon as all types have settled.
        """
        for number in range(begin, self.stop):
            step, gate = each[number], cast("Any", self.gates.get(number))
            if gate is None or gate.open:
                blocks = self._run(step, blocks)
                continue
            for made in chain.from_iterable(step.node.returned(b, step.at) for b in blocks if b.n):
                pieces = [Piece(0, 0, returned=made)]
                self.held[number].append((each, pieces))
                if not gate.open:
                    gate.take(pieces, step.at)
                if gate.open:
                    self._open(number)
                if self._over or self.failed:
                    return
            return

    def _open(self, number: int) -> None:
        """Settle the types at gate ``number``, and run the later steps on its waiting results."""
        gate, held = self.gates[number], self.held[number]
        at = self.steps.each[number].at
        if not gate.open:
            gate.settle(at)
        self.held[number] = []
        for each, pieces in held:
            typed = gate.typed(pieces, at)
            self.failed |= any(piece.error is not None for piece in typed)
            self._feed(each, [p.block for p in typed if p.block is not None], number + 1)

    def _run(self, step: Any, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the output of a step of known types, up to an error, which is raised later."""
        try:
            if step.node.by_atom:
                yield from step.node.run_atom(iter(blocks), step.at)
                return
            for block in blocks:
                yield from step.node.run(block, step.at)
        except DmlError:
            self.failed = True


def _parts(blocks: Iterable[Block]) -> Iterator[Iterable[Block]]:
    for block in blocks:
        for start in range(0, block.n, SETTLING_ROWS):
            yield (block.slice(start, min(block.n, start + SETTLING_ROWS)),)
