"""Sources over data in memory are defined here: Python values, NumPy arrays, Arrow tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.data.block import Block
from dml.data.layouts import usual_column
from dml.data.schema import Schema, schema_of
from dml.errors import SourceError
from dml.expr.node import op
from dml.io.column_store import ColumnStore, columns_of, picked_from, slice_of, stored_arrow
from dml.io.inferred_types import Typed, from_array, from_list
from dml.io.random_access import Addressed, check_atom_rows
from dml.io.source import Unit
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

ITEM = "item"


@op
class Memory(Addressed):
    """Rows stored in ``columns``; their row ids are derived from ``name``.

    Blocks are read-only views of the columns. Sources of equal content and settings are equal.
    """

    columns: ColumnStore
    name: str
    atom_rows: int

    side_by_side: ClassVar[bool] = True

    def check(self) -> None:
        """Raise PlanError unless ``atom_rows`` is a positive integer."""
        check_atom_rows(self.atom_rows, self.name)

    def infer(self) -> Schema:
        """Return the schema of the columns."""
        return self.columns.schema

    @property
    def id_name(self) -> str:  # type: ignore[override]
        """The name of the source, from which row ids are derived."""
        return self.name

    @property
    def row_count(self) -> int:
        """Number of rows of every column."""
        return self.columns.rows

    @property
    def row_bytes(self) -> float:  # type: ignore[override]
        """Average bytes of one row."""
        return self.columns.row_bytes

    def null_in(self, column: str) -> str:
        """Describe the nulls of ``column``; "" if there are none."""
        stored = self.columns.column(column)
        if not isinstance(stored, Vec):
            return f"{self.name}, {stored.null_count} rows" if stored.null_count else ""
        if stored.valid is None or not len(stored.valid):
            return ""
        row = int(np.argmin(stored.valid))
        return "" if stored.valid[row] else f"{self.name}, row {row}, is null"

    def identity(self) -> bytes:
        """Return a digest of the content; computed at each call if other code may change it."""
        return self.columns.digest_now()

    def changed_ns(self, unit: Unit) -> int:
        """Return 0, or the current time in ns if the rows no longer match their digest."""
        start = unit.index * self.atom_rows
        changed = self.columns.changed(start, start + (unit.rows or 0))
        return time.time_ns() if changed else 0

    def part(self, start: int, stop: int, columns: tuple[str, ...], ids: RowIds) -> Block:
        """Return the block of rows ``start`` to ``stop`` (exclusive), as read-only views."""
        values = tuple(slice_of(self.columns.column(name), start, stop) for name in columns)
        return Block(self.schema.select(columns), values, ids)

    def picked(self, index: np.ndarray, columns: tuple[str, ...], ids: RowIds) -> Block:
        """Return the block of the rows at ``index`` (n,) int64, as copies."""
        values = tuple(picked_from(self.columns.column(name), index) for name in columns)
        return Block(self.schema.select(columns), values, ids)

    def parameters_text(self) -> str:
        """Return name and size of the source, never the data."""
        return f"{self.name!r}, {self.columns!r}"


def memory(columns: ColumnStore, atom_rows: int | None) -> Memory:
    """Build the source over ``columns``; by default atoms have 65,536 rows or about 8 MiB."""
    return Memory(columns, "memory", columns.atom_rows if atom_rows is None else atom_rows)


def from_items(
    items: Iterable[Any], schema: object = None, *, atom_rows: int | None = None
) -> Memory:
    """Read one row per item: a dict gives its columns, any other value the column "item".

    ``None`` is null. Without ``schema`` types are those of the values (int64, float64 if ints and
    floats are mixed, bool, string, binary, dates, lists, structs; arrays of one shape are tensors),
    and every dict has the same keys; with ``schema``, missing keys are null and other keys are
    errors. Raises SourceError with row and column.
    """
    if isinstance(items, str | bytes | Mapping):
        raise SourceError(
            f"from_items needs a list of rows, got a {type(items).__name__}",
            why="its items would be characters, bytes or keys",
            try_="from_dict(...) for columns, from_items([value]) for one row",
        )
    if isinstance(items, np.ndarray):
        return from_numpy(items, atom_rows=atom_rows)
    rows = _listed(items)
    declared = None if schema is None else schema_of(schema)
    if rows and isinstance(rows[0], Mapping):
        typed = _from_rows(rows, declared)
    else:
        typed = _from_values(rows, declared)
    return memory(columns_of(typed), atom_rows)


def _listed(items: Iterable[Any]) -> list[Any]:
    """Return all items; raise SourceError with the number of rows read if an iterator raises."""
    rows: list[Any] = []
    try:
        rows.extend(items)
    except Exception as error:
        raise SourceError(
            f"the items of from_items raised {type(error).__name__} after {len(rows)} rows",
            why=f"{error}",
            try_="iterate it alone, outside of the pipeline",
        ) from error
    return rows


def _from_rows(rows: list[Any], declared: Schema | None) -> dict[str, Typed]:
    """Build a column per key from rows that are dicts."""
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SourceError(
                f"row {i} is {row!r}, but row 0 is a dict",
                why="rows are all dicts, or all plain values",
                try_="a dict of None for a row without values",
            )
    names = tuple(rows[0]) if declared is None else declared.names
    _same_keys(rows, names, may_lack=declared is not None)
    return {
        name: from_list(
            [row.get(name) for row in rows], name, None if declared is None else declared[name]
        )
        for name in names
    }


def _same_keys(rows: list[Any], names: Sequence[Any], *, may_lack: bool) -> None:
    """Raise SourceError for the first row whose keys differ; ``may_lack`` allows missing keys."""
    if stranger := next((name for name in names if not isinstance(name, str)), None):
        raise SourceError(f"column names are text, got {stranger!r} in row 0")
    wanted = set(names)
    for i, row in enumerate(rows):
        if row.keys() == wanted or (may_lack and row.keys() <= wanted):
            continue
        more = sorted(map(str, row.keys() - wanted))
        less = sorted(wanted - row.keys())
        what = f"has column {more[0]!r} too" if more else f"has no column {less[0]!r}"
        raise SourceError(
            f"row {i} {what}",
            why=f"the columns are {', '.join(map(repr, names))}",
            try_="the same keys in every row, or schema={...}, where absent means null",
        )


def _from_values(rows: list[Any], declared: Schema | None) -> dict[str, Typed]:
    """Build the column of plain values; if there are none, build empty columns as ``declared``."""
    if not rows:
        if declared is None:
            raise SourceError(
                "from_items got no items, so there are no columns",
                why="columns and types are those of the items",
                try_='schema={"item": "int64"} says what the rows would have been',
            )
        return {name: from_list([], name, kind) for name, kind in declared.items()}
    for i, row in enumerate(rows):
        if isinstance(row, Mapping):
            raise SourceError(
                f"row {i} is a dict, but row 0 is {rows[0]!r}",
                why="rows are all dicts, or all plain values",
            )
    if declared is None:
        return {ITEM: _from_items(rows)}
    if len(declared) != 1:
        raise SourceError(
            f"plain values are one column, the schema has {len(declared)}", why=f"{declared}"
        )
    ((name, kind),) = declared.items()
    return {name: from_list(rows, name, kind)}


def _from_items(rows: list[Any]) -> Typed:
    """Build the column of ``rows``; the error for tuples of several types says what a row is."""
    try:
        return from_list(rows, ITEM)
    except SourceError as error:
        if type(rows[0]) is tuple:
            from dml.io.user.generator import TUPLES  # noqa: PLC0415 - only where it fails

            error.try_ = TUPLES
        raise


def from_dict(columns: Mapping[str, Any], *, atom_rows: int | None = None) -> Memory:
    """Read columns by name: lists (``None`` is null), NumPy or Arrow arrays, equally long.

    Raises SourceError without columns, for unequal lengths, and for unsupported values.
    """
    if not isinstance(columns, Mapping):
        raise SourceError(
            f"from_dict needs a dict of columns, got a {type(columns).__name__}",
            why="columns are given by name",
            try_="from_items([...]) for a list of rows",
        )
    typed = {_text(name): _column(values, name) for name, values in columns.items()}
    return memory(columns_of(typed, lent=True), atom_rows)


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise SourceError(f"column names are text, got {name!r}")
    return str(name)


def _column(values: Any, name: str) -> Typed:
    if isinstance(values, np.ndarray):
        return from_array(values, name)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return stored_arrow(values)
    if hasattr(values, "__arrow_c_array__"):
        return stored_arrow(pa.array(values))
    if hasattr(values, "__arrow_c_stream__"):
        return stored_arrow(pa.chunked_array(values))
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise SourceError(
            f"column {name!r} is a {type(values).__name__}, not a list of values",
            try_=f'from_dict({{"{name}": [...]}})',
        )
    return from_list(list(values), name)


def from_numpy(
    arrays: np.ndarray | Mapping[str, np.ndarray], *, atom_rows: int | None = None
) -> Memory:
    """Read columns over NumPy arrays, rows along the first axis, without a copy if contiguous.

    A dict gives named columns, a structured array its fields, any other array the column "item".
    More axes make fixed-shape tensors. Masked entries are null. Raises SourceError for dtypes that
    no column can contain (complex, float16 tensors) and unequal lengths.
    """
    if isinstance(arrays, np.ndarray):
        fields = arrays.dtype.names
        named = {ITEM: arrays} if fields is None else {field: arrays[field] for field in fields}
    elif isinstance(arrays, Mapping):
        named = dict(arrays)
    else:
        raise SourceError(
            f"from_numpy needs an array or a dict of arrays, got a {type(arrays).__name__}",
            try_="numpy.asarray(...), or from_items([...]) for a list of values",
        )
    typed = {_text(name): from_array(np.asanyarray(a), name) for name, a in named.items()}
    return memory(columns_of(typed, lent=True), atom_rows)


def from_arrow(data: Any, *, atom_rows: int | None = None) -> Memory:
    """Read rows of any object that implements Arrow's PyCapsule protocol, without a copy.

    A table, batch, reader or data frame gives its columns, a plain array the column "item"; objects
    that only have ``__dataframe__`` are copied. Dictionary and run-end encoded columns are decoded;
    large types and views become strings, binaries and lists. Raises SourceError for other objects.
    """
    try:
        table = _table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SourceError(
            f"from_arrow cannot read a {type(data).__name__}",
            why=str(error),
            try_="an object with __arrow_c_stream__ or __arrow_c_array__",
        ) from None
    return from_table(table, atom_rows=atom_rows)


def from_table(table: pa.Table, *, atom_rows: int | None = None) -> Memory:
    """Read the columns of ``table`` as types of blocks; raise SourceError for duplicate names."""
    names = table.schema.names
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SourceError(f"two columns are called {twice!r}", why=f"the columns are {names}")
    typed = {name: stored_arrow(usual_column(table.column(name), name)) for name in names}
    return memory(columns_of(typed, lent=True), atom_rows)


def _table(data: Any) -> pa.Table:
    """Return the rows of ``data`` as a table over the same memory."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.Array | pa.ChunkedArray) and not pa.types.is_struct(data.type):
        return pa.table({ITEM: data})
    if hasattr(data, "__arrow_c_stream__"):
        stream = pa.chunked_array(data)
    elif hasattr(data, "__arrow_c_array__"):
        stream = pa.chunked_array([pa.array(data)])
    elif hasattr(data, "__dataframe__"):
        from pyarrow import interchange  # noqa: PLC0415 (it imports pyarrow.compute)

        return interchange.from_dataframe(data)
    else:
        raise TypeError("it has neither __arrow_c_stream__ nor __arrow_c_array__")
    if not pa.types.is_struct(stream.type):
        return pa.table({ITEM: stream})
    batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in stream.chunks]
    return pa.Table.from_batches(batches, pa.schema(list(stream.type)))
