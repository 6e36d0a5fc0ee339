"""Rows are read from a user's function that returns a fresh iterator at every call.

The number of rows is only known at the end, if there is one, so all rows form one open unit. The
function is called again for every pass and on resumption, which discards delivered rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import perf_counter
from typing import Any

import pyarrow as pa

from dml.data.escape_analysis import owned_row
from dml.data.schema import Schema, schema_of, shape_of
from dml.errors import DmlError, SourceError, text_of
from dml.io.source import HELD_S
from dml.kernels.rows.ids import RowIds
from dml.plugins import DataSource, SourcePart
from dml.udfs.calling.python_rows import UnfitError, to_block
from dml.udfs.identity.function_fingerprint import FunctionIdentity, identify

ITEM = "item"
# Maximum rows inspected until every column has a value.
LOOKED_AT = 1000
# Minimum rows inspected, if available, for columns of arrays, whose shapes may differ.
SHAPES = 64
# Rows of an atom: functions of batches without a size wait for all of them.
GENERATED_ROWS = 1024
# Rows between two looks at the clock, and the seconds in which they must come; if they took longer,
# the clock is read after each row.
CLOCKED_ROWS, QUICK_S = 16, 0.002
TRY = 'schema={"name": "type", ...} says what rows have'
TUPLES = 'a dict for each row in place of a tuple, such as {"path": path, "label": label}'


class Generated(DataSource):
    """A source over the iterator that each call of ``make`` returns; rows are dicts or values."""

    def __init__(
        self,
        make: Callable[[], Iterable[Any]],
        known: FunctionIdentity,
        schema: object,
        atom_rows: int | None,
    ) -> None:
        self.make, self.known = make, known
        self.name, self.unnamed = known.name, known.reason
        self.atom_rows = GENERATED_ROWS if atom_rows is None else atom_rows
        self.columns = self._looked_at() if schema is None else schema_of(schema)

    def _looked_at(self) -> Schema:
        """Infer the schema from the first rows of a new iterator, and close it."""
        try:
            made = _begun(self.make, self.name)
        except DmlError:
            raise
        except Exception as error:
            raise raised(self.name, 0, error) from error
        try:
            return schema_of_rows(map(row_of, made), self.name)
        finally:
            _ended(made)

    def schema(self) -> Schema:
        """Return the declared schema, or that of the first rows."""
        return self.columns

    def identity(self) -> object:
        """Return the digest of the function; None if it has no stable digest."""
        return None if self.known.reason else self.known.digest

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a pass, in batches of at most an atom, fewer if they come slowly."""
        made = _begun(self.make, self.name)
        try:
            yield from batches(map(row_of, made), self.columns, columns, self.atom_rows or 1)
        finally:
            _ended(made)


def _begun(make: Callable[[], Iterable[Any]], name: str) -> Iterator[Any]:
    """Return a fresh iterator; raise SourceError if the function returns something else."""
    found = make()
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise SourceError(
            f"{name} gave a {type(found).__name__}, which is no iterator of rows",
            why="it is called without arguments (but args=), once for every pass",
            try_="a function that yields dicts",
        )
    return iter(found)


def _ended(made: Iterator[Any]) -> None:
    """Close a generator so that its ``finally`` blocks run now."""
    close = getattr(made, "close", None)
    if close is not None:
        close()


def row_of(value: Any) -> Mapping[str, Any]:
    """Return a row as a dict; any other value becomes column "item"."""
    return value if isinstance(value, Mapping) else {ITEM: value}


def batches(
    rows: Iterator[Mapping[str, Any]],
    schema: Schema,
    columns: tuple[str, ...],
    each: int,
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns`` of ``rows`` in batches of ``each`` rows.

    Batches have fewer rows if rows are large, or if they take longer than ``HELD_S`` seconds. An
    exception of the iterator, and the error for an invalid row, are raised after the preceding
    rows.
    """
    from dml.data.row_slicing import Weighing  # noqa: PLC0415 - only a run needs it

    given, weighing = 0, Weighing()
    while True:
        held: list[Any] = []
        error: BaseException | None = None
        some = each
        until = perf_counter() + HELD_S
        try:
            while len(held) < each and some:
                some = _take_rows(rows, held, min(weighing.step, each - len(held)), until)
                if weighing.enough(held) or perf_counter() >= until:
                    break
        except BaseException as raised:  # noqa: BLE001 - it is raised again, after the rows before it
            error = raised
        if held:
            yield from _typed(held, schema, columns, given)
        if error is not None:
            raise error
        given += len(held)
        weighing.begin()
        if not some:
            return


def _take_rows(rows: Iterator[Any], held: list[Any], most: int, until: float) -> int:
    """Append up to ``most`` rows to ``held``, fewer from time ``until`` on; return their number.

    Rows before an error are appended, too.
    """
    before, now, step = len(held), perf_counter(), 1
    stop = before + most
    while (given := len(held)) < stop:
        held.extend(map(owned_row, islice(rows, min(step, stop - given))))
        looked, now = now, perf_counter()
        if len(held) == given or now >= until:
            break
        step = CLOCKED_ROWS if now - looked < QUICK_S else 1
    return len(held) - before


def _typed(
    rows: list[Any], schema: Schema, columns: tuple[str, ...], first: int
) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` as a batch, up to the first invalid row; raise SourceError for that row."""
    ids = RowIds.run(0, 0, len(rows))
    try:
        block = to_block(rows, schema, ids)
    except UnfitError as unfit:
        if unfit.row:
            yield from _typed(rows[: unfit.row], schema, columns, first)
        raise SourceError(
            f"row {first + unfit.row} is {unfit.what}",
            why=f"the columns are {schema}",
            try_=TRY,
        ) from None
    yield block.select(columns).to_arrow()


def schema_of_rows(rows: Iterator[Mapping[str, Any]], name: str) -> Schema:
    """Infer names and types from the first rows, until every column has had a value.

    For columns of arrays, at least 64 rows are read: if their shapes differ, the column has an open
    shape.
    """
    held: list[Any] = []
    schema: Schema | None = None
    try:
        while len(held) < LOOKED_AT and _lengthened(held, rows, name):
            schema = to_block(held, None, RowIds.run(0, 0, len(held))).schema
            arrays = any(map(shape_of, schema.values()))
            if not any(map(_untold, schema.values())) and (not arrays or len(held) >= SHAPES):
                break
    except UnfitError as unfit:
        odd = type(held[unfit.row].get(ITEM)) is tuple
        what = f"row {unfit.row} of {name} is {unfit.what}"
        raise SourceError(what, try_=TUPLES if odd else TRY) from None
    if schema is None:
        raise SourceError(
            f"{name} gave no rows, so there are no columns",
            why="columns and types are those of the first rows",
            try_=TRY,
        )
    return schema


def _lengthened(held: list[Any], rows: Iterator[Mapping[str, Any]], name: str) -> bool:
    """Append as many of ``rows`` as ``held`` has, at least one; return False if there are none."""
    before = len(held)
    try:
        held.extend(map(owned_row, islice(rows, max(1, before))))
    except DmlError:
        raise
    except Exception as error:
        raise raised(name, len(held), error) from error
    return len(held) > before


def raised(name: str, row: int, error: Exception) -> SourceError:
    """Build the SourceError for an exception of a user's code at row ``row``."""
    return SourceError(
        f"{name} raised {type(error).__name__} at row {row}: {text_of(error)}",
        why="the exception came from the source, whose first rows settle names and types",
        try_="it alone, outside of the pipeline; or schema={...}, to look at no rows now",
    )


def _untold(kind: pa.DataType) -> bool:
    """Return True if type ``kind`` is incomplete because all values so far are null or empty."""
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return bool(pa.types.is_null(kind)) or any(map(_untold, inner))


def generated(
    fn: Callable[..., Iterable[Any]],
    args: Sequence[Any],
    schema: object,
    *,
    nonce: bytes,
    fingerprint: str | None,
    atom_rows: int | None,
) -> Generated:
    """Build the source of ``fn(*args)``; raise SourceError if ``fn`` is not callable."""
    if not callable(fn):
        raise SourceError(
            f"from_generator needs a function, got a {type(fn).__name__}",
            why="it is called again for every pass, which an iterator cannot be",
            try_="from_generator(lambda: ...), or from_iterable(...) of what gives rows once",
        )
    make = functools.partial(fn, *args) if args else fn
    known = identify(make, nonce=nonce, fingerprint=fingerprint)
    return Generated(make, known, schema, atom_rows)
