"""This file makes blocks of Arrow data that comes from elsewhere: usual types, atoms cut out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dml.errors import DmlError, SourceError
from dml.expr.block import Block, empty
from dml.expr.schema import Schema
from dml.kernels.ids import RowIds

# Layouts that few kernels take, and the usual ones of the same values.
VIEWS: dict[pa.DataType, pa.DataType] = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}

# What stands for a value of varying length before any was seen.
VARYING_BYTES = 64


def usual_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values in a layout that blocks hold, however deep.

    Views become large strings and binaries; dictionary and run-end encoding is taken off.
    """
    types = pa.types
    if kind in VIEWS:
        return VIEWS[kind]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return usual_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_usual_field(field) for field in kind.fields])
    if types.is_large_list(kind):
        return pa.large_list(_usual_field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(_usual_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_usual_field(kind.value_field), kind.list_size)
    return kind


def _usual_field(field: pa.Field) -> pa.Field:
    return field.with_type(usual_type(field.type))


def usual_column(array: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """The same values in usual types, without a copy where they are; SourceError if they are not.

    Values that are in a layout of their own are copied.
    """
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        array = _listed(array)
    wanted = usual_type(array.type)
    if array.type == wanted:
        return array
    try:
        if pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        if pa.types.is_dictionary(array.type):
            array = _decoded(array)
        return array if array.type == wanted else array.cast(wanted)
    except pa.ArrowException as error:
        raise SourceError(
            f"column {name!r} is {array.type}, which no column can hold",
            why=" ".join(str(error).split()),
            try_=f"cast it to {wanted} where it is made",
        ) from None


def _listed(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Lists in order instead of views of them; pyarrow 26 casts them to empty ones."""
    if isinstance(array, pa.ChunkedArray):
        kind = pa.large_list(array.type.value_field)
        return pa.chunked_array([_listed(chunk) for chunk in array.chunks], kind)
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    kind = pa.large_list(array.type.value_field)
    values = array.flatten()
    return pa.LargeListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())


def _decoded(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Values instead of places in a dictionary."""
    kind = array.type.value_type
    if kind in VIEWS:  # taking from a view is what no kernel does
        array = array.cast(pa.dictionary(array.type.index_type, VIEWS[kind]))
    if isinstance(array, pa.ChunkedArray):
        chunks = [chunk.dictionary_decode() for chunk in array.chunks]
        return pa.chunked_array(chunks, array.type.value_type)
    return array.dictionary_decode()


def conformed(given: Any, schema: Schema, place: str, row: int) -> pa.Table:
    """The columns of ``schema`` of a batch or table, cast if need be; SourceError if it has others.

    ``place`` and ``row`` say where its first row is. Casts that would lose anything are refused.
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
    """Bytes of a value, where its type says; a guess where only the value could."""
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


def cut(batches: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of ``rows``, fewer at the end: also if that is an exception."""
    held, count = list[pa.Table](), 0
    try:
        for batch in batches:
            rest = batch
            while rest.num_rows:
                part = rest.slice(0, rows - count)
                rest = rest.slice(part.num_rows)
                held.append(part)
                count += part.num_rows
                if count == rows:
                    yield pa.concat_tables(held)
                    held, count = [], 0
    except DmlError:
        if held:
            yield pa.concat_tables(held)
        raise
    if held:
        yield pa.concat_tables(held)


def block_over(table: pa.Table, ids: RowIds, schema: Schema) -> Block:
    """A block over the columns of ``table``, which are joined if they lie in several chunks."""
    if not schema or not table.num_rows:
        return Block(schema, empty(schema).columns, ids)
    columns = [column.chunk(0) for column in table.select(list(schema)).combine_chunks().columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow())
    return Block.from_arrow(batch, ids, schema)
