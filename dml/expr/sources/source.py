"""This file says what a source is: named data, cut into read units, and those into atoms.

An atom is a fixed run of rows that the data alone decides; a unit is the least piece that one
stream must decode in order (a row group), so its atoms never become tasks of their own. Position,
row ids and randomness rest on atoms; partitions are made of them at run time and cannot be seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.errors import InternalError
from dml.expr.facts import Length, Rows
from dml.expr.fingerprint import digest
from dml.expr.node import Node

if TYPE_CHECKING:
    import numpy as np

    from dml.expr.block import Block
    from dml.expr.value import Value
    from dml.kernels.ids import RowIds

ATOM_ROWS = 65_536
ATOM_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """What one stream decodes in order: ``atoms`` runs of rows, the first with number ``atom``.

    All atoms of a unit have ``atom_rows`` rows but the last, which has the rest. ``place`` is for
    people (``"part-3.parquet, row group 7"``), ``nbytes`` the estimated decoded bytes of all
    columns; ``file`` and ``row_group`` say where its rows are, if they are in files. ``at_once``
    and ``most_bytes`` are for the run to set: there is memory to decode the whole unit in one go,
    which may be faster; and what one atom may take.

    A unit is *open* where only reading it shows how many rows it has, perhaps none or without end:
    its ``atoms`` and ``rows`` are None, its ``nbytes`` those of an atom, and the atoms after it
    have no numbers (``atom`` is None).
    """

    index: int
    atom: int | None
    atoms: int | None
    rows: int | None
    atom_rows: int
    nbytes: int
    place: str = ""
    file: str = ""
    row_group: int | None = None
    at_once: bool = False
    most_bytes: int = 1 << 62

    @property
    def is_open(self) -> bool:
        """True if only reading shows how many rows it has."""
        return self.rows is None


class Source(Node):
    """A leaf: reads rows in a fixed order. Subclasses are frozen dataclasses made with ``@op``.

    ``digest`` names the data by names and parameters; ``identity`` names its content.
    """

    rows: ClassVar[Rows] = Rows.SOURCE
    total: bool = True
    # Several units, each of one atom, can be had as one block that costs no more than theirs.
    side_by_side: ClassVar[bool] = False
    # What errors call a unit, and what to make smaller where one does not fit.
    unit_name: ClassVar[str] = "row group"
    to_shrink: ClassVar[str] = "smaller row groups"

    @property
    def undivided(self) -> Source:
        """The source of which this one is a part; itself where it is none."""
        return self

    def files_shard(self, num_shards: int, index: int) -> Source | None:
        """The same source with its files ``index``, ``index + num_shards``, ... alone.

        None where it does not read a list of files.
        """
        del num_shards, index
        return None

    @property
    def row_count(self) -> int | None:
        """Number of rows when it is known without reading."""
        return None

    def length(self, *given: Length) -> Length | None:
        """``row_count``."""
        return self.row_count

    @property
    def unit_count(self) -> int:
        """Number of read units."""
        raise InternalError(f"{type(self).__name__} has no units")

    @property
    def atom_count(self) -> int | None:
        """Number of atoms of all units; None where one of them is open."""
        raise InternalError(f"{type(self).__name__} has no atoms")

    def unit(self, index: int) -> Unit:
        """Read unit ``index``; cheap, no data is read."""
        raise InternalError(f"{type(self).__name__} has no units")

    def unit_of_atom(self, atom: int) -> int:
        """Index of the unit that holds atom number ``atom`` (``unit_count`` past the end).

        Only where atoms have numbers: no unit is open.
        """
        raise InternalError(f"{type(self).__name__} has no atoms")

    def identity(self) -> bytes:
        """Digest of the content: equal for equal data wherever it is mounted."""
        raise InternalError(f"{type(self).__name__} has no identity")

    def identity_bytes(self) -> float:
        """Bytes that ``identity`` would read now; infinite where that is more than it can say."""
        return 0

    def content_parts(self, *, quick: bool) -> Iterator[tuple[str, str, bytes]]:
        """What ``identity`` is made of: each what it is, how it is told to people, and its name.

        ``quick``: what ``revision`` is made of.
        """
        yield "data", "its content", digest(self.revision() if quick else self.identity())

    def opened(self) -> bytes:
        """What tells the data apart within one process; as identity, but need not read the data."""
        return self.identity()

    def revision(self) -> bytes:
        """What tells the data apart between processes and machines; need not read all of it."""
        return self.identity()

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Decode ``unit`` from its atom ``skip_atoms`` on: one block per atom, with row ids.

        ``columns`` in the order wanted; a block may have no columns but still has its rows.
        """
        raise InternalError(f"{type(self).__name__} cannot be read")

    def read_run(self, first: Unit, last: Unit, columns: tuple[str, ...]) -> Block:
        """The units from ``first`` to ``last`` as one block, where they lie ``side_by_side``."""
        raise InternalError(f"{self.title()} has units far from each other")

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Memory that reading ``unit`` takes beside the blocks that it gave, at most or nearly."""
        return 0

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Bytes, as they are stored, that reading ``unit`` fetches; 0 where they lie in memory."""
        return 0

    def changed_ns(self, unit: Unit) -> int:
        """When what a unit is read from was changed last; 0 where reading it tells of a change."""
        del unit
        return 0

    def may_match(self, unit: Unit, predicate: tuple[Value, ...]) -> bool:
        """False only if statistics prove that no row of ``unit`` passes all of ``predicate``."""
        return True

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Global positions (n,) int64 of rows of this source, from their ids."""
        raise InternalError(f"{type(self).__name__} does not know positions")

    def unit_of(self, ids: RowIds) -> Unit | None:
        """The unit of the row with the first of ``ids``; None if it is no row of this source."""
        return None

    def null_in(self, column: str) -> str:
        """The place of a null that is proven to be in ``column`` without reading it, else ""."""
        return ""

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Between which whole numbers all values of ``column`` lie, none of them null; if known."""
        return None

    def likeness(self) -> bytes:
        """What is cheap to know of the content: equal for equal data, mostly not for other data."""
        return b""

    @property
    def far(self) -> bool:
        """True if reading it asks other machines for bytes."""
        return False

    @property
    def columns_apart(self) -> bool:
        """True if some columns of a unit cost less than all of them, by about their bytes."""
        return False

    @property
    def addressable(self) -> bool:
        """True if ``rows_at`` reads any rows at a cost that does not depend on where they are."""
        return False

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """The rows at global positions ``index`` (n,) int64, in that order."""
        raise InternalError(f"{type(self).__name__} has no random access")


def read_of(source: Source) -> Source:
    """The source whose format is read: that of which ``source`` is a part, or itself."""
    while source.undivided is not source:
        source = source.undivided
    return source


def balanced(rows: int, nbytes: int) -> int:
    """Rows of an atom, for a part of ``rows`` rows that decodes to ``nbytes``: equal, and few."""
    most = max(1, min(ATOM_ROWS, ATOM_BYTES * rows // max(1, nbytes)))
    return -(-rows // -(-rows // most))
