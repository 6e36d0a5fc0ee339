"""This file says what a worker must know to make the partitions of a plan: it can be sent away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial

from dml.events import Tally
from dml.exec.slices import Start
from dml.exec.work import Linking, Reading, Sizes, carried_on, partitions
from dml.expr.flow import At
from dml.expr.node import Node
from dml.plan import Link, Stage


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One epoch of a chain of stages, begun anywhere with the same result.

    ``finishing`` gives columns as they are delivered, ``whole_bytes`` is a unit that is decoded at
    once. ``at.schemas`` is filled by the rows that settle them, in whichever process they are made.
    ``links`` are the stages after the first: their tasks take the value of an outcome, its pieces.
    ``spanning`` permits pieces of several units.
    """

    stage: Stage
    at: At
    sizes: Sizes
    whole_bytes: int = 0
    finishing: bool = False
    links: tuple[Link, ...] = ()
    spanning: bool = False

    def __getstate__(self) -> dict[str, object]:
        """What another process needs: not the reading that was begun here."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    @property
    def steps(self) -> tuple[Node, ...]:
        """The operators that run on blocks, in whichever stage."""
        return (*self.stage.steps, *(node for link in self.links for node in link.steps))

    @cached_property
    def reading(self) -> Reading:
        """Which unit stands at which place, and the blocks of each."""
        return Reading(
            self.stage,
            dataclasses.replace(self.at, hold_bytes=self.sizes.atom_bytes),
            finishing=self.finishing and not self.links,
            whole_bytes=self.whole_bytes,
            whole_atoms=self._gathered_after(0),
            spanning=self.spanning and not self.links,
        )

    @cached_property
    def later(self) -> tuple[Linking, ...]:
        """The stages after the first."""
        found, first = list[Linking](), 1 + len(self.stage.steps)
        for number, link in enumerate(self.links, 1):
            finishing = self.finishing and number == len(self.links)
            whole = self._gathered_after(number)
            made = Linking(self.reading, link, first, finishing=finishing, whole_atoms=whole)
            found.append(made)
            first += len(link.steps)
        return tuple(found)

    def _gathered_after(self, stage: int) -> bool:
        """True if a stage after number ``stage`` must see atoms whole."""
        return any(node.by_atom for link in self.links[stage:] for node in link.steps)

    def starts(self, mine: Callable[[], Tally]) -> tuple[Start, ...]:
        """What begins a task of each stage; ``mine`` is the tally of the thread that works."""
        first = partial(partitions, self.reading, sizes=self.sizes, mine=mine)
        later = (partial(carried_on, each, sizes=self.sizes, mine=mine) for each in self.later)
        return (first, *later)
