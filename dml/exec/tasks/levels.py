"""Open the operators of a stage's tasks as levels, each of which ends with a cache of units.

The rows of a unit are taken from the highest level that the cache has; later levels are computed.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress

from dml.data.block import Block
from dml.errors import DmlError
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.unit_input import Atom, Given, UnitRequest
from dml.expr.flow import At, untyped
from dml.expr.node import Node, epochs_at
from dml.physical.operators import PhysicalOperator, TaskSteps, UnitCache, UnitLookup


class Level:
    """Consecutive steps of a stage, run unit by unit on the output of the level ``below``."""

    gives_stored = False
    """Whether this level yields rows of its cache entry as they are stored."""

    def __init__(self, steps: Steps, below: Level | None) -> None:
        self.steps, self.below = steps, below
        self.nodes: tuple[Node, ...] = (*(below.nodes if below else ()), *steps.nodes)
        self.all_steps: tuple[Steps, ...] = (*(below.all_steps if below else ()), steps)

    def atoms(self, wanted: UnitRequest) -> Iterator[Atom]:
        """Return the wanted output atoms of a unit."""
        return self.computed(wanted)

    def computed(self, wanted: UnitRequest) -> Iterator[Atom]:
        """Return the wanted output atoms, computed by the steps."""
        return self.stepped(self.steps, self.input_atoms(wanted), self.input_blocks, wanted)

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

    def input_atoms(self, wanted: UnitRequest) -> Iterator[Atom]:
        """Return the wanted atoms of the input of this level's first step."""
        return wanted.read(wanted.skip_atoms) if self.below is None else self.below.atoms(wanted)

    def input_blocks(self, wanted: UnitRequest) -> Iterator[Iterable[Block]]:
        """Yield the input blocks of each wanted atom.

        After ``close``, the rest of the level below is computed, to complete its cache entry.
        """
        atoms = self.input_atoms(wanted)
        try:
            for _, blocks in atoms:
                yield list(blocks)
        except GeneratorExit:
            with suppress(DmlError):  # the error is raised again at its place
                for _, blocks in atoms if self.below is not None else ():
                    deque(blocks, maxlen=0)
            raise


def opened(top: PhysicalOperator, at: At) -> Level:
    """Return the level of ``top``, the last operator of a stage's tasks, for one epoch.

    A level ends at each cache that stores rows in this run, and where rows are looked up.
    """
    operators = [each for each in top.chain() if isinstance(each, TaskSteps)][::-1]
    nodes = [node for each in operators for node in each.nodes]
    epochs, start = epochs_at(nodes, at.epoch), 0
    below: Level | None = None
    for each in operators:
        end = each.first - 1 + len(each.nodes)
        own = dataclasses.replace(at, epoch=epochs[end - 1])
        looked = isinstance(each, UnitLookup) and at.epoch == 0
        if not (looked or isinstance(each, UnitCache)):
            continue
        entry = at.store(nodes[end - 1], own.epoch)
        if entry is not None:
            below = at.store.level(entry, Steps(nodes[start:end], own, 1 + start), below)
            start = end
    if below is not None and start == len(nodes):
        return below
    return Level(Steps(nodes[start:], at, 1 + start), below)
