"""Define partitions, which are lists of pieces in the order of atoms, and tasks that read units."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dml.data.block import Block
from dml.errors import DmlError
from dml.exec.tasks.skipped_rows import Loss
from dml.expr.flow import UNBOUNDED
from dml.udfs.calling.type_inference import Returned

Firsts = tuple[int, ...]
"""For each unit of a block after the first: the number of rows before it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Some output of atom ``atom`` of the unit at ``place``; with ``firsts``, also of later units.

    The rows of ``block`` follow those of earlier pieces of the same atom. With ``ends``, the unit
    has no more pieces; ``error`` is the error that stopped the unit. ``losses`` are rows lost to
    errors since the previous piece; if the run limits losses (``At.bounded``), they come before the
    rows of this piece. ``returned`` is a function's output before types settle, instead of a block.
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
        """Whether this is the last piece of its unit."""
        return self.ends or self.error is not None


@dataclasses.dataclass(frozen=True, slots=True)
class ReadTask:
    """Units at places [``start``, ``stop``), the first one from atom ``skip_atoms`` on.

    If a single unit is read again, ``ends`` says where blocks ended (``Unit.ends``).
    """

    start: int
    stop: int
    skip_atoms: int = 0
    ends: Sequence[int] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TaskList:
    """Tasks of ``each`` units for the places [``first``, ``places``), created on access.

    The first task has ``long`` units if that is more than ``each``: those with enough rows to
    settle types. It skips ``skip_atoms`` atoms of its first unit.
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
    """Target bytes of a partition, and most bytes of the whole stage and of an atom in one task."""

    target_bytes: int
    most_bytes: int
    atom_bytes: int = UNBOUNDED
