"""This file says what a worker must know to make the partitions of a stage: it can be sent away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial

from dml.events import Tally
from dml.exec.slices import Start
from dml.exec.work import Reading, Sizes, partitions
from dml.expr.flow import At
from dml.plan import Stage


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One epoch of a stage, begun anywhere with the same result.

    ``finishing`` gives columns as they are delivered, ``whole_bytes`` is a unit that is decoded at
    once. ``at.schemas`` is filled by the rows that settle them, in whichever process they are made.
    """

    stage: Stage
    at: At
    sizes: Sizes
    whole_bytes: int = 0
    finishing: bool = False

    def __getstate__(self) -> dict[str, object]:
        """What another process needs: not the reading that was begun here."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    @cached_property
    def reading(self) -> Reading:
        """Which unit stands at which place, and the blocks of each."""
        return Reading(self.stage, self.at, finishing=self.finishing, whole_bytes=self.whole_bytes)

    def starts(self, mine: Callable[[], Tally]) -> tuple[Start, ...]:
        """What begins a task of each stage; ``mine`` is the tally of the thread that works."""
        return (partial(partitions, self.reading, sizes=self.sizes, mine=mine),)
