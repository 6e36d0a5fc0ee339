"""Divide the steps of a stage into levels, each of which ends with a step whose rows a cache keeps.

The rows of a unit are taken from the highest level that the cache has; later levels are computed.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from dml.data.block import Block
from dml.errors import DmlError
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.unit_input import Atom, Given, Running, UnitRequest
from dml.expr.facts import Rows
from dml.expr.flow import At, untyped
from dml.expr.node import Node, epochs_at
from dml.io.source import Unit


class Level:
    """Consecutive steps of a stage, run unit by unit on the output of the level ``below``."""

    entry: Any = None
    """The cache entry that keeps the rows of the last step, or None."""

    def __init__(self, steps: Steps, first: int, below: Level | None) -> None:
        self.steps, self.below = steps, below
        self.nodes: tuple[Node, ...] = (*(below.nodes if below else ()), *steps.nodes)
        self.ordinal = first + len(steps.nodes) - 1
        self.all_steps: tuple[Steps, ...] = (*(below.all_steps if below else ()), steps)

    @property
    def gives_stored(self) -> bool:
        """Whether this level yields rows of its cache entry as they are stored."""
        return False

    def atoms(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Atom]], run: Running
    ) -> Iterator[Atom]:
        """Yield the output atoms of ``unit`` from number ``skip_atoms`` on.

        ``read`` reads the atoms of the unit from a number on from the source.
        """
        return self._make_atoms(unit, skip_atoms, read, run)

    def _make_atoms(
        self, unit: Unit, skip_atoms: int, read: Callable[[int], Iterator[Atom]], run: Running
    ) -> Iterator[Atom]:
        wanted = UnitRequest(unit, skip_atoms, read, run)
        return self.stepped(self.steps, self._read(wanted), self.input_blocks, wanted)

    def stepped(
        self, steps: Steps, atoms: Iterable[Atom], given: Given, wanted: UnitRequest
    ) -> Iterator[Atom]:
        """Yield ``atoms`` processed by ``steps``.

        Types that are unknown settle first, from rows of the atoms that ``given`` opens.
        """
        if any(untyped(step.node, step.at) for step in steps.each):
            from dml.exec.tasks.rehearsal import settle  # noqa: PLC0415

            below = self.below.nodes if self.below else ()
            settle(steps, below, given, wanted)
        run = wanted.run
        for number, (origin, blocks) in enumerate(atoms, wanted.skip_atoms):
            own = steps.at_turn(wanted.unit.index, number)
            yield origin, own.run(blocks, run.mine, run.noted)

    def _read(self, wanted: UnitRequest) -> Iterator[Atom]:
        """Return the wanted atoms of the input of this level's first step."""
        return wanted.read(wanted.skip_atoms) if self.below is None else self.below.atoms(*wanted)

    def input_blocks(self, wanted: UnitRequest) -> Iterator[Iterable[Block]]:
        """Yield the input blocks of each wanted atom.

        After ``close``, the rest of the level below is computed, to complete its cache entry.
        """
        atoms = self._read(wanted)
        try:
            for _, blocks in atoms:
                yield list(blocks)
        except GeneratorExit:
            with suppress(DmlError):  # the error is raised again at its place
                for _, blocks in atoms if self.below is not None else ():
                    deque(blocks, maxlen=0)
            raise


def levels(nodes: Sequence[Node], at: At, *, in_order: bool = True) -> Level:
    """Return the last level of a stage, which leads to those before it by ``below``.

    A level ends after each step that this run stores. If the last step is not stored, other cache
    entries may have its rows, but only for epoch 0 and if units are read ``in_order``.
    """
    below: Level | None = None
    start, epochs = 0, epochs_at(nodes, at.epoch)
    for end, node in enumerate(nodes, 1):
        own = dataclasses.replace(at, epoch=epochs[end - 1])
        entry = at.store(node, own.epoch) if node.rows is Rows.STORED else None
        if entry is not None:
            below = at.store.level(entry, Steps(nodes[start:end], own, 1 + start), 1 + start, below)
            start = end
    rest = Steps(nodes[start:], at, 1 + start)
    stored = not nodes or nodes[-1].rows is Rows.STORED
    looked = not stored and in_order and at.epoch == 0
    entry = at.store(nodes[-1], at.epoch) if looked else None
    if entry is None:
        return Level(rest, 1 + start, below)
    top: Level = at.store.looking(entry, rest, 1 + start, below)
    return top
