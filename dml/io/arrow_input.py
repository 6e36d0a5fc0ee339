"""Arrow data from users' sources becomes blocks here: types are normalized and atoms are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dml.data.block import Block, empty
from dml.data.layouts import usual_column
from dml.data.schema import Schema
from dml.errors import DmlError, MemoryContractError, SourceError
from dml.expr.flow import UNBOUNDED
from dml.kernels.rows.ids import RowIds

# Estimated bytes of a value of varying length before any value was seen.
VARYING_BYTES = 64


def conformed(given: Any, schema: Schema, place: str, row: int) -> pa.Table:
    """Return the columns of ``schema`` of a batch or table, cast if needed; SourceError if absent.

    ``place`` and ``row`` locate its first row. Casts that would lose information are refused.
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
    """Return the bytes of a value of this type; an estimate for types of varying width."""
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


def cut(batches: Iterator[pa.Table], rows: int, most_bytes: int = UNBOUNDED) -> Iterator[pa.Table]:
    """Regroup rows into tables of ``rows``; the last may be smaller, also before an exception.

    MemoryContractError for a table of more than ``most_bytes``, before all its rows are collected.
    """
    held, count, nbytes = list[pa.Table](), 0, 0
    try:
        for batch in batches:
            rest = batch
            while rest.num_rows:
                part = rest.slice(0, rows - count)
                rest = rest.slice(part.num_rows)
                held.append(part)
                count += part.num_rows
                nbytes += part.nbytes
                if nbytes > most_bytes:
                    held.clear()
                    raise _too_large(count, rows, nbytes, most_bytes)
                if count == rows:
                    yield pa.concat_tables(held)
                    held, count, nbytes = [], 0, 0
    except DmlError:
        if held:
            yield pa.concat_tables(held)
        raise
    if held:
        yield pa.concat_tables(held)


def _too_large(count: int, rows: int, nbytes: int, most_bytes: int) -> MemoryContractError:
    return MemoryContractError(
        "the rows of one atom do not fit into the memory number",
        why=f"{count} of its {rows} rows take {nbytes} bytes; it may take {most_bytes}",
        try_="a smaller atom_rows= of the source, or a larger memory_limit=",
    )


def block_over(table: pa.Table, ids: RowIds, schema: Schema) -> Block:
    """Build a block over the columns of ``table``; columns in several chunks are concatenated."""
    if not schema or not table.num_rows:
        return Block(schema, empty(schema).columns, ids)
    columns = [column.chunk(0) for column in table.select(list(schema)).combine_chunks().columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow())
    return Block.from_arrow(batch, ids, schema)
