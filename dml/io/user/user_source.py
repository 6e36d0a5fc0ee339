"""Source nodes read a user's ``DataSource``: its parts are units, divided into atoms.

The unit of a part without a row count is open. A source with ``take`` has random access: its units
are single atoms, not parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.base.interrupts import closes, interrupts
from dml.base.library_code import first_name
from dml.data.block import Block, empty
from dml.data.layouts import usual_column, usual_type
from dml.data.schema import Schema, schema_of
from dml.errors import (
    DmlError,
    InternalError,
    MemoryContractError,
    PlanError,
    SourceError,
    text_of,
)
from dml.expr.node import op
from dml.expr.user_call import UserFunction
from dml.io.random_access import Addressed, check_atom_rows
from dml.io.source import ATOM_BYTES, ATOM_ROWS, HELD_S, Source, Unit, balanced
from dml.kernels.rows.ids import RowIds, source_key
from dml.plugins import DataSource, SourcePart
from dml.udfs.identity.function_fingerprint import local_identity

# Estimated bytes of a value of varying length before any value was seen.
VARYING_BYTES = 64


@dataclasses.dataclass(frozen=True, eq=False)
class CheckedSource:
    """A user's source with the results of its methods when the pipeline was built.

    ``known`` is the result of ``identity()``, or the fingerprint that the user gave. ``fn`` is the
    source as a user's function; ``fn.digest`` is set only if the data has no stable digest.
    """

    source: DataSource
    name: str
    schema: Schema
    parts: tuple[SourcePart, ...]
    known: object
    fn: UserFunction

    @cached_property
    def width(self) -> int:
        """Bytes of a row, estimated from the column types alone."""
        return sum(map(width_of, self.schema.values()))

    @cached_property
    def content(self) -> bytes:
        """Digest of the declared identity; calls the identity if it is a function.

        Raise FingerprintError if the identity has no digest.
        """
        known = self.known
        if callable(known):
            known = _call_source(self.source, self.name, " in identity()", known)
        return digest("datasource", known)

    @cached_property
    def digest(self) -> bytes:
        """Digest of class, name and schema of the source, without content."""
        kind = type(self.source)
        where = () if not self.fn.reason else (self.fn.digest,)
        return digest(
            first_name(kind.__module__), kind.__qualname__, self.name, self.schema, *where
        )

    def __repr__(self) -> str:
        return self.name


def check_source(source: DataSource, nonce: bytes, fingerprint: str | None = None) -> CheckedSource:
    """Call the methods of ``source`` that describe its data, and validate their results.

    ``nonce`` identifies a source without identity within this run; ``fingerprint`` replaces the
    identity. Raise PlanError or SourceError for invalid results.
    """
    name = str(source.name or type(source).__name__)
    said = schema_of(_call_source(source, name, " in schema()", source.schema))
    schema = Schema((column, usual_type(kind)) for column, kind in said.items())
    parts: list[Any] = list(_call_source(source, name, " in parts()", source.parts) or ())
    names = [getattr(part, "name", part) for part in parts]
    if len(set(names)) != len(parts) or not all(isinstance(part, SourcePart) for part in parts):
        raise PlanError(
            f"the parts of {name} have no names of their own",
            why=f"they are {names}; row ids come from them",
            try_="SourcePart(name, ...) with another name for each",
        )
    if source.atom_rows is not None:
        check_atom_rows(source.atom_rows, name)
    if not schema:
        raise SourceError(f"{name} has no columns", try_="a schema of at least one column")
    known: object = ("named by user", fingerprint)
    if fingerprint is None:
        known = _call_source(source, name, " in identity()", source.identity)
    reason = _unnamed(source, known)
    named = local_identity(reason, nonce).digest if reason else b""
    call: Any = source
    fn = UserFunction(call, named, name, reason, purity="")
    return CheckedSource(source, name, schema, tuple(parts), known, fn)


def _call_source(
    source: DataSource, name: str, where: str, call: Callable[[], Any], place: str = ""
) -> Any:
    """Return ``call()``; turn an exception of the user's code into a SourceError.

    ``where`` is the method or row that the message names; ``place`` is the location of the error.
    """
    try:
        return call()
    except DmlError:
        raise
    except BaseException as error:
        if interrupts(error):
            raise
        told = _raised(source, name, where, error)
        raise told.located(place) from told.__cause__


def _raised(source: DataSource, name: str, where: str, error: BaseException) -> SourceError:
    """Build the SourceError for an exception of ``source``; ``source.spoken`` may word it."""
    spoken = getattr(source, "spoken", None)
    text = spoken(error) if spoken else text_of(error)
    told = SourceError(
        f"{name} raised {type(error).__name__}{where}: {text}",
        why="the exception came from the source",
        try_="read it alone, outside of the pipeline",
    )
    told.__cause__ = None if spoken else error
    return told


def _unnamed(source: DataSource, known: object) -> str:
    """Return why the data has no digest that is stable across processes; "" if it has one."""
    if known is None:
        return str(getattr(source, "unnamed", NO_IDENTITY))
    if not callable(known):
        try:
            digest("datasource", known)
        except DmlError as error:
            return f"its identity() has no name: {error.why or error.what}"
    return ""


NO_IDENTITY = "its identity() is None: nobody knows whether its data has changed"


class Plugged(Source):
    """Base class of GivenParts and GivenRows, the nodes that read a user's ``DataSource``."""

    given: CheckedSource
    atom_rows: int | None
    far: bool = True  # the location of the data is unknown

    def check(self) -> None:
        """Raise PlanError unless ``atom_rows`` is None or a positive integer."""
        if self.atom_rows is not None:
            check_atom_rows(self.atom_rows, self.given.name)

    def infer(self) -> Schema:
        """Return the schema that the source declared."""
        return self.given.schema

    @property
    def calls(self) -> UserFunction | None:
        """The user's source in the form of a function; its digest may be valid in this run only."""
        return self.given.fn

    def identity(self) -> bytes:
        """Return the digest of the declared identity, or without one a digest for this run only."""
        return self.given.fn.digest if self.given.fn.reason else self.given.content

    def identity_bytes(self) -> float:
        """Return infinity if ``identity`` would call the source to read its content, else 0."""
        asked = callable(self.given.known) and "content" not in vars(self.given)
        return math.inf if asked and not self.given.fn.reason else 0

    def likeness(self) -> bytes:
        """Return a digest of the names and row counts of the parts."""
        return digest("parts", [(part.name, part.rows) for part in self.given.parts])

    def parameters_text(self) -> str:
        """Return the name of the source, and ``atom_rows`` if the user set it."""
        atoms = "" if self.atom_rows is None else f", atom_rows={self.atom_rows}"
        return f"{self.given.name!r}{atoms}"


@op
class GivenParts(Plugged):
    """Rows of a ``DataSource`` in the order of its parts: each non-empty or open part is a unit."""

    given: CheckedSource
    atom_rows: int | None = None

    may_be_slow = True
    unit_name: ClassVar[str] = "part"
    to_shrink: ClassVar[str] = "a smaller atom_rows= (rows are read so many at a time)"

    @cached_property
    def _parts(self) -> tuple[SourcePart, ...]:
        return tuple(part for part in self.given.parts if part.rows != 0)

    @cached_property
    def _keys(self) -> tuple[int, ...]:
        """For each part, the high 64 bits of the ids of all its rows."""
        name = self.given.name
        return tuple(source_key(f"{name}/{p.name}" if p.name else name) for p in self._parts)

    def _each(self, part: SourcePart) -> int:
        """Return the number of rows per atom of ``part``."""
        rows = self.atom_rows or self.given.source.atom_rows
        if rows is not None:
            return rows
        if part.rows and part.nbytes:
            return balanced(part.rows, part.nbytes)
        return max(1, min(ATOM_ROWS, ATOM_BYTES // max(1, self.given.width)))

    @cached_property
    def _units(self) -> tuple[Unit, ...]:
        """The unit of each part; atoms are numbered up to the first open unit."""
        found: list[Unit] = []
        atom: int | None = 0
        for part in self._parts:
            each, rows = self._each(part), part.rows
            atoms = None if rows is None else -(-rows // each)
            nbytes = (each if rows is None else rows) * self.given.width
            if rows is not None and part.nbytes is not None:
                nbytes = part.nbytes
            place = self._place(part)
            found.append(Unit(len(found), atom, atoms, rows, each, nbytes, place))
            atom = None if atom is None or atoms is None else atom + atoms
        return tuple(found)

    @property
    def row_count(self) -> int | None:
        """Number of rows of all parts; None if a part has no row count."""
        counts = [part.rows for part in self._parts if part.rows is not None]
        return sum(counts) if len(counts) == len(self._parts) else None

    @property
    def unit_count(self) -> int:
        """Number of parts, without those declared to be empty."""
        return len(self._parts)

    @property
    def atom_count(self) -> int | None:
        """Number of atoms of all parts; None if a part is open."""
        return None if self.row_count is None else sum(unit.atoms or 0 for unit in self._units)

    def unit(self, index: int) -> Unit:
        """Return the unit of part ``index``."""
        if not 0 <= index < self.unit_count:
            raise InternalError(f"{self.title()} has no unit {index}")
        return self._units[index]

    def _place(self, part: SourcePart) -> str:
        return f"{self.given.name}, {part.name}" if part.name else self.given.name

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Yield the atoms of a part; the first ``skip_atoms`` atoms are read and dropped.

        Raise SourceError if the source raises, or columns or row count are not as declared.
        """
        part, key = self._parts[unit.index], self._keys[unit.index]
        if not columns and part.rows is not None:
            for start in range(skip_atoms * unit.atom_rows, part.rows, unit.atom_rows):
                rows = min(unit.atom_rows, part.rows - start)
                yield Block(Schema(), (), RowIds.run(key, start, rows))
            return
        schema = self.given.schema.select(columns)
        row = 0
        for table in cut(self._batches(part, columns), unit):
            if row >= skip_atoms * unit.atom_rows:
                yield block_over(table, RowIds.run(key, row, table.num_rows), schema)
            row += table.num_rows
        if part.rows not in (None, row):
            raise SourceError(
                f"{unit.place} gave {row} rows, and had said {part.rows}",
                why="positions rest on what is said",
                try_="SourcePart(name, rows=None) where the number is not known",
            )

    def _batches(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Yield the batches of ``part`` in the declared types; exceptions become SourceErrors."""
        wanted = columns or self.given.schema.names[:1]  # rows are counted by some column
        schema = self.given.schema.select(wanted)
        row, place = 0, self._place(part)
        try:
            for batch in self.given.source.read(part, wanted):
                yield conformed(batch, schema, place, row)
                row += batch.num_rows
        except DmlError:
            raise
        except BaseException as error:
            if interrupts(error) or closes(error):
                raise
            told = _raised(self.given.source, self.given.name, f" at row {row}", error)
            raise told.located(place) from told.__cause__

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the declared bytes of the part, else twice the estimated bytes of ``unit``.

        A source may load the whole part before it yields the first batch.
        """
        part = self._parts[unit.index]
        return part.nbytes if part.nbytes is not None else 2 * unit.nbytes

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the parts, ascending (n,) uint64, and the position of each part's first row."""
        keys = np.array(self._keys, dtype=np.uint64)
        firsts = np.array([0, *accumulate(p.rows or 0 for p in self._parts)][:-1], dtype=np.int64)
        order = np.argsort(keys)
        return keys[order], firsts[order]

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Return the position of each row, counted over all parts: (n,) int64."""
        keys, starts = self._starts
        high, low = ids.arrays()
        found: np.ndarray = starts[np.searchsorted(keys, high)] + low.astype(np.int64)
        return found

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of the first row in ``ids``; None if the row is in none of the parts."""
        high = int(ids.slice(0, 1).arrays()[0][0])
        return self.unit(self._keys.index(high)) if high in self._keys else None


@op
class GivenRows(Plugged, Addressed):
    """Rows of a ``DataSource`` with ``take``: random access, with atoms as units."""

    given: CheckedSource
    atom_rows: int

    @property
    def id_name(self) -> str:  # type: ignore[override]
        """The name of the source, from which row ids are derived."""
        return self.given.name

    @cached_property
    def row_count(self) -> int:
        """Number of rows of all parts."""
        return sum(part.rows or 0 for part in self.given.parts)

    @property
    def row_bytes(self) -> float:  # type: ignore[override]
        """Average bytes of a row, as declared by all parts, else estimated from the types."""
        known = [part.nbytes for part in self.given.parts if part.nbytes is not None]
        if known and len(known) == len(self.given.parts) and self.row_count:
            return sum(known) / self.row_count
        return float(self.given.width)

    def picked(self, index: np.ndarray, columns: tuple[str, ...], ids: RowIds) -> Block:
        """Return the block of the rows at positions ``index`` (n,) int64, with row ids ``ids``.

        Raise SourceError if the source raises or gives another number of rows.
        """
        schema = self.given.schema.select(columns)
        if not columns or not len(index):
            return block_over(pa.Table.from_batches([], schema.to_arrow()), ids, schema)
        place = f"{self.given.name}, {len(index)} rows from {int(index[0])} on"
        source, where = self.given.source, f" at row {int(index[0])}"

        def take() -> pa.Table:
            return conformed(source.take(index, columns), schema, place, 0)

        table = _call_source(source, self.given.name, where, take, place)
        if table.num_rows != len(index):
            raise SourceError(
                f"{self.given.name} gave {table.num_rows} rows for {len(index)} positions",
                at=place,
                try_="take(index, columns) gives a row for every position, also twice",
            )
        return block_over(table, ids, schema)


def read_datasource(
    source: DataSource, nonce: bytes, fingerprint: str | None = None, atom_rows: int | None = None
) -> Source:
    """Build the node that reads ``source``; other arguments are as for ``check_source``.

    Raise PlanError for another object than a DataSource, and for a source with ``take`` and a part
    without a row count.
    """
    if not isinstance(source, DataSource):
        raise PlanError(
            f"read_datasource needs a DataSource, got {source!r}",
            why=f"it is of type {type(source).__name__}",
            try_="an instance of a subclass of dml.DataSource, or the name of an installed one",
        )
    found = check_source(source, nonce, fingerprint)
    if type(source).take is DataSource.take:
        return GivenParts(found, atom_rows)
    for part in found.parts:
        if part.rows is None:
            raise PlanError(
                f"{found.name} has take(), and its part {part.name!r} does not say its rows",
                why="positions are counted over all parts",
                try_="SourcePart(name, rows=n)",
            )
    each = atom_rows if atom_rows is not None else source.atom_rows
    if each is None:  # atoms of about 8 MiB
        width = GivenRows(found, 1).row_bytes
        each = max(1, min(ATOM_ROWS, int(ATOM_BYTES // max(1.0, width))))
    return GivenRows(found, each)


# --------------------------------------------------------------------------- Arrow data of sources


def conformed(given: Any, schema: Schema, place: str, row: int) -> pa.Table:
    """Return the columns of ``schema`` from an Arrow batch or table, cast to the declared types.

    ``place`` and ``row`` locate the first row in errors. Raise SourceError for an absent column and
    for a cast that would lose information.
    """
    if not isinstance(given, pa.RecordBatch | pa.Table):
        raise SourceError(
            f"the source gave a {type(given).__name__}, not Arrow data",
            at=f"{place}, row {row}",
            try_="pyarrow.RecordBatch or pyarrow.Table",
        )
    columns = []
    for name, kind in schema.items():
        if given.schema.names.count(name) != 1:
            raise SourceError(
                f"the source gave no column {name!r}",
                at=f"{place}, row {row}",
                why=f"it gave {given.schema.names}, and had promised {schema}",
            )
        column = usual_column(given.column(name), name)
        columns.append(column if column.type == kind else _cast(column, kind, name, place, row))
    return pa.Table.from_arrays(columns, schema=schema.to_arrow())


def _cast(column: Any, kind: pa.DataType, name: str, place: str, row: int) -> Any:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise SourceError(
            f"column {name!r} does not fit {kind}",
            at=f"{place}, row {row} or after it",
            why=f"the source gave {column.type}: {' '.join(str(error).split())}",
            try_="the schema that the data has",
        ) from None


def width_of(kind: pa.DataType) -> int:
    """Return the bytes of a value of type ``kind``; an estimate for types of varying width."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return width_of(kind.storage_type)
    if types.is_fixed_size_list(kind):
        return int(kind.list_size) * width_of(kind.value_type)
    if types.is_struct(kind):
        return sum(width_of(field.type) for field in kind.fields)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return VARYING_BYTES


def cut(batches: Iterator[pa.Table], unit: Unit) -> Iterator[pa.Table]:
    """Regroup the rows of ``batches`` into tables of an atom each; the last may have fewer rows.

    If ``unit.ends`` is set, a table also ends at each of these rows. After the last of them, it
    ends with the batch that arrives when ``HELD_S`` seconds have passed since the table was begun.

    If ``batches`` raises, the rows before the error are yielded first. Raise MemoryContractError as
    soon as the rows of an atom exceed ``unit.most_bytes``.
    """
    held, row, nbytes = list[pa.Table](), 0, 0
    ends = _Ends(unit)
    try:
        for batch in batches:
            rest = batch
            while rest.num_rows:
                part = rest.slice(0, ends.after(row) - row)
                rest = rest.slice(part.num_rows)
                held.append(part)
                nbytes = part.nbytes + (nbytes if row % unit.atom_rows else 0)
                row += part.num_rows
                if nbytes > unit.most_bytes:
                    held.clear()
                    raise _too_large((row - 1) % unit.atom_rows + 1, unit, nbytes)
                if ends.reached(row):
                    yield pa.concat_tables(held)
                    held = []
                    ends.begin()
    except DmlError:
        if held:
            yield pa.concat_tables(held)
        raise
    if held:
        yield pa.concat_tables(held)


class _Ends:
    """Where the tables of a unit end: with each atom, at ``unit.ends``, and where rows are late."""

    def __init__(self, unit: Unit) -> None:
        self.each, self.slow = unit.atom_rows, unit.ends is not None
        self.known = deque(unit.ends or ())
        self.stop = 0
        self.begin()

    def begin(self) -> None:
        """Begin a table: from now on its rows may be late."""
        self.begun = perf_counter()

    def after(self, row: int) -> int:
        """Return the row after ``row`` at which its table ends at the latest."""
        while self.known and self.known[0] <= row:
            self.known.popleft()
        self.stop = row - row % self.each + self.each
        if self.known:
            self.stop = min(self.stop, self.known[0])
        return self.stop

    def reached(self, row: int) -> bool:
        """Return whether the table that has the rows up to ``row`` ends there."""
        late = self.slow and not self.known and perf_counter() - self.begun >= HELD_S
        return late or row == self.stop


def _too_large(count: int, unit: Unit, nbytes: int) -> MemoryContractError:
    return MemoryContractError(
        "the rows of one atom do not fit into the memory number",
        why=f"{count} of its {unit.atom_rows} rows take {nbytes} bytes;"
        f" it may take {unit.most_bytes}",
        try_="a smaller atom_rows= of the source, or a larger memory_limit=",
    )


def block_over(table: pa.Table, ids: RowIds, schema: Schema) -> Block:
    """Build a block over the columns of ``table``; columns in several chunks are concatenated."""
    if not schema or not table.num_rows:
        return Block(schema, empty(schema).columns, ids)
    columns = [column.chunk(0) for column in table.select(list(schema)).combine_chunks().columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow())
    return Block.from_arrow(batch, ids, schema)
