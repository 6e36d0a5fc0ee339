"""A job has all that a worker needs to make the partitions of a plan; it can be pickled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial

from dml.events import Tally
from dml.exec.tasks.partition import PartitionSizes
from dml.exec.tasks.replay_check import impure
from dml.exec.tasks.slices import Start
from dml.exec.tasks.task import Linking, carried_on, partitions
from dml.exec.tasks.unit_reader import Reading
from dml.expr.flow import WHOLE, At
from dml.expr.node import Node
from dml.physical.plan import Link, Stage


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One epoch of a chain of stages, which has the same result wherever it runs.

    With ``finishing``, columns have the form as delivered. ``whole_bytes`` bounds a unit that is
    decoded at once. ``at.schemas`` is filled by rows that settle types, in the process that makes
    them. ``links`` are the stages after the first; their tasks take the pieces of an outcome.
    ``spanning`` permits pieces of several units.
    """

    stage: Stage
    at: At
    sizes: PartitionSizes
    whole_bytes: int = 0
    finishing: bool = False
    links: tuple[Link, ...] = ()
    spanning: bool = False

    def __getstate__(self) -> dict[str, object]:
        """Return the state for another process, without the cached properties."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    @property
    def steps(self) -> tuple[Node, ...]:
        """The operators that run on blocks, in all stages."""
        return (*self.stage.steps, *(node for link in self.links for node in link.steps))

    @cached_property
    def once(self) -> tuple[str, ...]:
        """For each stage, the operator that forbids to repeat one of its tasks, or ""."""
        return tuple(map(impure, (self.stage.steps, *(link.steps for link in self.links))))

    @cached_property
    def reading(self) -> Reading:
        """The unit at each place of the reading order, and the blocks of each unit."""
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
        """The stages after the first, for this epoch."""
        found, first = list[Linking](), 1 + len(self.stage.steps)
        for number, link in enumerate(self.links, 1):
            finishing = self.finishing and number == len(self.links)
            grain = self._grain_after(number)
            made = Linking(self.reading, link, first, finishing=finishing, grain=grain)
            found.append(made)
            first += len(link.steps)
        return tuple(found)

    def _grain_after(self, stage: int) -> int:
        """Return the number of rows of which each partition of ``stage`` has a multiple, per atom.

        The result is ``WHOLE`` if a later stage must see whole atoms. It is the size of a group if
        the only later operator that reads more than a row reads groups, and gets the rows first.
        Else it is 1.
        """
        later = [node for link in self.links[stage:] for node in link.steps]
        gathering = [node for node in later if node.by_atom]
        if not gathering:
            return 1
        return gathering[0].group_rows if gathering == later[:1] else WHOLE

    def starts(self, mine: Callable[[], Tally]) -> tuple[Start, ...]:
        """Return the functions that begin a task, one per stage; ``mine`` returns the tally."""
        first = partial(partitions, self.reading, sizes=self.sizes, mine=mine)
        later = (partial(carried_on, each, sizes=self.sizes, mine=mine) for each in self.later)
        return (first, *later)
