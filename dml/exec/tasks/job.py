"""Define the job: all that a worker needs to make the partitions of a plan; it can be pickled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial

from dml.base.amounts import cut
from dml.events import Tally
from dml.exec.tasks.partition import PartitionSizes
from dml.exec.tasks.replay_check import impure
from dml.exec.tasks.slices import Start
from dml.exec.tasks.task import Linking, carried_on, partitions
from dml.exec.tasks.unit_reader import Reading
from dml.expr.flow import WHOLE, At
from dml.expr.node import Node
from dml.physical.plan import Link, Stage

TITLE_LETTERS = 80


def _kind(node: Node) -> str:
    """Return the operator's kind, with the name of its function."""
    kind = type(node).__name__
    return kind if node.calls is None else f"{kind}({node.calls.name.rpartition('.')[2]})"


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One epoch of a chain of stages, which has the same result wherever it runs.

    With ``finishing``, columns have the form in which they are delivered. A unit of at most
    ``whole_bytes`` is decoded at once. When rows settle types, these are added to ``at.schemas`` of
    the process that makes the rows. ``links`` are the stages after the first; the input of their
    tasks is one partition. ``spanning`` permits pieces with rows of several units.
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

    @property
    def names(self) -> tuple[bytes, ...]:
        """For each stage, the digest of the last operator of its tasks."""
        last = (self.stage.source, *self.stage.steps)[-1]
        return (last.digest, *(link.steps[-1].digest for link in self.links))

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """For each stage, its operators as text, by which a cluster's dashboard shows its tasks."""
        stages = ((self.stage.source, *self.stage.steps), *(link.steps for link in self.links))
        return tuple(cut(" > ".join(map(_kind, stage)), TITLE_LETTERS) for stage in stages)

    @cached_property
    def once(self) -> tuple[str, ...]:
        """For each stage, the label of an operator whose tasks must not be repeated, or ""."""
        return tuple(map(impure, (self.stage.steps, *(link.steps for link in self.links))))

    @cached_property
    def reading(self) -> Reading:
        """The reader of the units, which knows the unit at each place of the reading order."""
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
        """Return n: partitions of ``stage`` end after a multiple of n rows of an atom, or with it.

        The result is ``WHOLE`` if a later stage must see whole atoms; the size of a group if the
        next operator is the only later one that reads more than one row, and reads groups; else 1.
        """
        if stage == len(self.links):
            return 1
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
