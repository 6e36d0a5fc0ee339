"""A partition is a list of pieces, output of atoms in order; a task says which units are read."""

from __future__ import annotations

import dataclasses

from dml.data.block import Block
from dml.errors import DmlError
from dml.exec.tasks.skipped_rows import Loss
from dml.expr.flow import UNBOUNDED
from dml.udfs.calling.type_inference import Returned

Firsts = tuple[int, ...]
"""For each unit of a block after the first: the number of rows before it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Some output of atom ``atom`` of the unit at ``place``; with ``firsts``, of later units, too.

    ``block`` follows the blocks of earlier pieces of the same atom. ``ends`` says that the unit has
    no more pieces; ``error`` is the error that stopped the unit. ``losses`` are rows lost to errors
    since the last piece; if the run limits losses (``At.bounded``), all of them come before the
    rows of this piece. ``returned`` is a function's output before its types settle, in place of a
    block.
    """

    place: int
    atom: int
    block: Block | None = None
    ends: bool = False
    error: DmlError | None = None
    losses: tuple[Loss, ...] = ()
    firsts: Firsts = ()
    returned: Returned | None = None

    def last(self) -> Piece:
        """Return this piece as the last one of its unit."""
        stands = (self.place, self.atom, self.block)
        return Piece(*stands, True, self.error, self.losses, self.firsts)  # noqa: FBT003

    @property
    def where(self) -> tuple[int, int]:
        """Place of the unit, and number of the atom."""
        return self.place, self.atom

    @property
    def stops(self) -> bool:
        """Whether no piece of the unit follows."""
        return self.ends or self.error is not None


@dataclasses.dataclass(frozen=True, slots=True)
class ReadTask:
    """Units at the places in [``start``, ``stop``); the first one from ``skip_atoms`` on."""

    start: int
    stop: int
    skip_atoms: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TaskList:
    """Tasks of ``each`` units from place ``first`` on, created on access.

    The first task has ``long`` units if that is more: the units with the rows that settle types.
    """

    first: int
    places: int
    each: int
    skip_atoms: int
    long: int = 0

    def __len__(self) -> int:
        rest = self.places - self.first - self._more
        return max(-(-rest // self.each), int(self.places > self.first))

    def __getitem__(self, i: int) -> ReadTask:
        start = self.first + i * self.each + (self._more if i else 0)
        stop = min(self.first + (i + 1) * self.each + self._more, self.places)
        return ReadTask(start, stop, 0 if i else self.skip_atoms)

    @property
    def _more(self) -> int:
        """Number of units that the first task has beyond ``each``."""
        return max(0, self.long - self.each)


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionSizes:
    """In bytes: target of a partition, bound of the whole stage, and bound of one task's atom."""

    target_bytes: int
    most_bytes: int
    atom_bytes: int = UNBOUNDED
