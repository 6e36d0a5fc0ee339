"""Define the input of a stage's steps: atoms of a unit, and where the work is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from dml.data.block import Block
from dml.events import Tally
from dml.exec.tasks.skipped_rows import Noted
from dml.expr.flow import At
from dml.io.source import Unit

Atom = tuple[Block | None, Iterable[Block]]
"""The source block of an atom, if one was read, and the blocks made from it."""


@dataclasses.dataclass(frozen=True)
class Running:
    """The context in which the steps run on a unit, and where their work is counted.

    ``mine`` returns the tally of the current thread; ``noted`` records lost rows; ``changed_ns``
    returns when the unit's data last changed; ``most_bytes`` bounds what a cache loads at once.
    """

    at: At
    mine: Callable[[], Tally]
    noted: Noted
    changed_ns: Callable[[], int]
    most_bytes: int
    hold: Callable[[int], None]
    """Called with the bytes of a part that stay in memory while the unit is open."""
    reading: Any = None
    """The reader of the source, if stored rows may be recomputed for a check."""
    place: int = 0
    """The place of the unit in reading order."""


class UnitRequest(NamedTuple):
    """A request for the atoms of ``unit`` from number ``skip_atoms`` on.

    ``read`` reads the atoms of the unit from a number on from the source.
    """

    unit: Unit
    skip_atoms: int
    read: Callable[[int], Iterator[Atom]]
    run: Running

    @property
    def at(self) -> At:
        """The epoch, seed and schemas with which the rows are computed."""
        return self.run.at


Given: TypeAlias = Callable[[UnitRequest], Iterator[Iterable[Block]]]
"""A function that yields the input blocks of each requested atom."""
