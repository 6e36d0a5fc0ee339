"""This file says what a worker must know to make the partitions of a plan: it can be sent away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial

from dml.events import Tally
from dml.exec.likeness import impure
from dml.exec.reading import Reading
from dml.exec.slices import Start
from dml.exec.work import Linking, Sizes, carried_on, partitions
from dml.expr.flow import WHOLE, At
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
    def once(self) -> tuple[str, ...]:
        """For each stage the operator that forbids to do a task of it again, or ""."""
        return tuple(map(impure, (self.stage.steps, *(link.steps for link in self.links))))

    @cached_property
    def reading(self) -> Reading:
        """Which unit stands at which place, and the blocks of each."""
        return Reading(
            self.stage,
            dataclasses.replace(self.at, hold_bytes=self.sizes.atom_bytes),
            finishing=self.finishing and not self.links,
            whole_bytes=self.whole_bytes,
            grain=self._grain_after(0),
            spanning=self.spanning and not self.links,
        )

    @cached_property
    def later(self) -> tuple[Linking, ...]:
        """The stages after the first."""
        found, first = list[Linking](), 1 + len(self.stage.steps)
        for number, link in enumerate(self.links, 1):
            finishing = self.finishing and number == len(self.links)
            grain = self._grain_after(number)
            made = Linking(self.reading, link, first, finishing=finishing, grain=grain)
            found.append(made)
            first += len(link.steps)
        return tuple(found)

    def _grain_after(self, stage: int) -> int:
        """Rows of an atom after which a partition of ``stage`` may end, or a multiple of them.

        ``WHOLE`` atoms, if a later stage must see them; or groups of them, if that is the only one
        that looks at more than a row, and the first to get the rows.
        """
        later = [node for link in self.links[stage:] for node in link.steps]
        gathering = [node for node in later if node.by_atom]
        if not gathering:
            return 1
        return gathering[0].group_rows if gathering == later[:1] else WHOLE

    def starts(self, mine: Callable[[], Tally]) -> tuple[Start, ...]:
        """What begins a task of each stage; ``mine`` is the tally of the thread that works."""
        first = partial(partitions, self.reading, sizes=self.sizes, mine=mine)
        later = (partial(carried_on, each, sizes=self.sizes, mine=mine) for each in self.later)
        return (first, *later)
