"""A source is a leaf of a pipeline: named data, divided into read units, and units into atoms.

An atom is a fixed sequence of rows that depends on the data alone. A unit is the smallest part that
must be decoded in order (such as a row group), so two tasks never decode the same unit. Positions,
row ids and randomness are defined on atoms; partitions are formed from atoms at run time and cannot
be observed in results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from dml.base.fingerprint import digest
from dml.errors import InternalError
from dml.expr.facts import Length, Rows
from dml.expr.node import Node

if TYPE_CHECKING:
    import numpy as np

    from dml.data.block import Block
    from dml.expr.columns.value import Value
    from dml.kernels.rows.ids import RowIds

ATOM_ROWS = 65_536
ATOM_BYTES = 8 << 20
# Seconds that rows wait for the rest of their atom, if a source may be slow.
HELD_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """A part of a source that is decoded in order and has ``atoms`` atoms.

    The first atom has number ``atom``. All atoms have ``atom_rows`` rows, except that the last may
    have fewer. ``place`` is a description for users (``"part-3.parquet, row group 7"``), ``nbytes``
    the estimated decoded size of all columns; ``file`` and ``row_group`` locate rows that lie in
    files. The run sets ``at_once`` (memory suffices to decode the whole unit in one call, which may
    be faster) and ``most_bytes`` (the memory limit of one atom).

    A unit is *open* if its number of rows, possibly zero or unbounded, is only known after reading:
    ``atoms`` and ``rows`` are then None, ``nbytes`` is the size of an atom, and the following atoms
    have no numbers (``atom`` is None).

    If the run sets ``ends``, and the source ``may_be_slow``, an atom may be read as several blocks,
    cut by time. ``ends`` has the row numbers inside atoms at which blocks ended in an earlier
    attempt, then the row that it reached: up to there, blocks must end at the same rows.
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
    ends: Sequence[int] | None = None

    @property
    def is_open(self) -> bool:
        """True if the number of rows of the unit is only known after reading."""
        return self.rows is None


class Source(Node):
    """A leaf of a pipeline that reads rows in a fixed order.

    Subclasses are frozen dataclasses made with ``@op``. ``digest`` is derived from names and
    parameters; ``identity`` is derived from the content.
    """

    rows: ClassVar[Rows] = Rows.SOURCE
    total: bool = True
    # Reading it requests bytes from other machines.
    far: bool = False
    # Rows of an atom may come one by one, at any pace: see ``Unit.ends``.
    may_be_slow: bool = False
    # Reading fewer columns of a unit saves about the bytes of the others.
    columns_apart: bool = False
    # ``rows_at`` reads any rows at a cost that does not depend on their positions; all units but
    # the last have equal numbers of rows.
    addressable: bool = False
    # Several units of one atom each can be read as one block at no extra cost.
    side_by_side: ClassVar[bool] = False
    # The ids of the rows of a block are not consecutive.
    ids_apart: bool = False
    # The name of a unit in error messages, and what to reduce if a unit does not fit.
    unit_name: ClassVar[str] = "row group"
    to_shrink: ClassVar[str] = "smaller row groups"

    @property
    def undivided(self) -> Source:
        """The source of which this source is a part; the source itself if it is not a part."""
        return self

    def files_shard(self, num_shards: int, index: int) -> Source | None:
        """Return the same source restricted to its files ``index``, ``index + num_shards``, ...

        Return None if the source does not read a list of files.
        """
        return None

    def addressed(self) -> Source | None:
        """Return an addressable source of the same rows and ids; None if there is none.

        Its units may be others: only a plan that permutes all rows reads it.
        """
        return self if self.addressable else None

    @property
    def row_count(self) -> int | None:
        """Number of rows if it is known without reading, else None."""
        return None

    def length(self, *given: Length) -> Length | None:
        """Return ``row_count`` as the length of the flow."""
        return self.row_count

    @property
    def unit_count(self) -> int:
        """Number of read units."""
        raise InternalError(f"{type(self).__name__} has no units")

    @property
    def atom_count(self) -> int | None:
        """Number of atoms of all units; None if a unit is open."""
        raise InternalError(f"{type(self).__name__} has no atoms")

    def unit(self, index: int) -> Unit:
        """Return read unit ``index``; a cheap call that reads no data."""
        raise InternalError(f"{type(self).__name__} has no units")

    def identity(self) -> bytes:
        """Return a digest of the content: equal for equal data wherever the data is stored."""
        raise InternalError(f"{type(self).__name__} has no identity")

    def identity_bytes(self) -> float:
        """Return the bytes that ``identity`` would read now; infinite if that number is unknown."""
        return 0

    def content_parts(self, *, quick: bool) -> Iterator[tuple[str, str, bytes]]:
        """Yield the components of ``identity``: kind, description for users, and digest of each.

        With ``quick``, yield the components of ``revision`` instead.
        """
        yield "data", "its content", digest(self.revision() if quick else self.identity())

    def opened(self) -> bytes:
        """Return a digest that identifies the data within one process; need not read the data."""
        return self.identity()

    def revision(self) -> bytes:
        """Return a digest that identifies the data on all machines; need not read all data."""
        return self.identity()

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Decode ``unit`` from its atom ``skip_atoms`` on: one block per atom, with row ids.

        If ``unit.ends`` is set, an atom may have several blocks. Blocks have ``columns`` in the
        given order; a block without columns still has its rows.
        """
        raise InternalError(f"{type(self).__name__} cannot be read")

    def read_run(self, first: Unit, last: Unit, columns: tuple[str, ...]) -> Block:
        """Read the units from ``first`` to ``last`` as one block, if ``side_by_side`` is True."""
        raise InternalError(f"{self.title()} has units far from each other")

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Estimate the memory, in bytes, that reading ``unit`` takes in addition to its blocks."""
        return 0

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the stored size that reading ``unit`` fetches, in bytes; 0 for data in memory."""
        return 0

    def changed_ns(self, unit: Unit) -> int:
        """Return the time in ns of the last change to ``unit``'s data; 0 if reads detect it."""
        return 0

    def may_match(self, unit: Unit, predicate: tuple[Value, ...]) -> bool:
        """Return False only if statistics prove that no row of ``unit`` passes ``predicate``."""
        return True

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Return the global positions (n,) int64 of rows of this source from their ids."""
        raise InternalError(f"{type(self).__name__} does not know positions")

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of the row with the first of ``ids``; None if no row here has the id."""
        return None

    def null_in(self, column: str) -> str:
        """Describe where ``column`` has a null, if this is known without reading it, else ""."""
        return ""

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Return (low, high) such that low <= x <= high for every integer x in ``column``.

        The bounds need not be values. Return None if no bounds are known, or if a value is null.
        """
        return None

    def likeness(self) -> bytes:
        """Return a cheap digest: equal for equal data, and usually different for different data."""
        return b""

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Read the rows at global positions ``index`` (n,) int64, in that order."""
        raise InternalError(f"{type(self).__name__} has no random access")


def read_of(source: Source) -> Source:
    """Return the complete source that ``source`` is a part of, or ``source`` itself."""
    while source.undivided is not source:
        source = source.undivided
    return source


def balanced(rows: int, nbytes: int) -> int:
    """Return the rows per atom that divide ``rows`` rows of ``nbytes`` into few equal atoms."""
    most = max(1, min(ATOM_ROWS, ATOM_BYTES * rows // max(1, nbytes)))
    return -(-rows // -(-rows // most))
