"""This file reads sources for the oracle: every row as a dict, with its id, atom and read unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml.errors import SourceError
from dml.expr.node import Node
from dml.expr.sources.memory import Memory
from dml.expr.sources.parquet import ParquetSource
from dml.expr.sources.range import Range
from dml.testing import scalar_ids
from dml.testing.oracle_types import shape

Id = tuple[int, int]


@dataclass
class Row:
    """A row: its id, its values, and where in a source it descends from.

    ``position`` is the global position in the source, ``unit`` the read unit and ``atom`` a name of
    the run of rows in which types are settled.
    """

    id: Id
    values: dict[str, Any]
    position: int = 0
    unit: int = 0
    atom: Any = 0


@dataclass
class Table:
    """All rows of a source in order, with types; ``units`` is how many read units there are."""

    kinds: dict[str, pa.DataType]
    rows: list[Row] = field(default_factory=list)
    units: int = 0


def table_of(source: Node) -> Table:
    """Everything in a source."""
    if isinstance(source, Range):
        return _range(source)
    if isinstance(source, Memory):
        return _memory(source)
    if isinstance(source, ParquetSource):
        return _parquet(source)
    raise SourceError(f"the oracle cannot read {type(source).__name__}")


def _numbered(kinds: dict[str, pa.DataType], name: str, rows: Any, atom_rows: int) -> Table:
    """Rows of a source in memory: every atom is a unit."""
    key, table = scalar_ids.source_key(name), Table(kinds)
    for number, values in enumerate(rows):
        atom = number // atom_rows
        table.rows.append(Row((key, number), values, number, atom, atom))
        table.units = atom + 1
    return table


def _range(source: Range) -> Table:
    numbers = range(source.start, source.stop, source.step)
    return _numbered({"id": pa.int64()}, "range", ({"id": n} for n in numbers), source.atom_rows)


def _memory(source: Memory) -> Table:
    kinds = dict(source.columns.schema.items())
    stored = zip(source.columns.stored, kinds.values(), strict=True)
    columns = [_python(column, kind) for column, kind in stored]
    rows = (dict(zip(kinds, row, strict=True)) for row in zip(*columns, strict=True))
    return _numbered(kinds, source.name, rows, source.atom_rows)


def _python(column: Any, kind: pa.DataType) -> list[Any]:
    """Python values of a stored column: an Arrow array, or NumPy values with their validity."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return pythons(column, kind)
    values = list(column.values) if column.values.ndim > 1 else column.values.tolist()
    if column.valid is None:
        return values
    return [v if ok else None for v, ok in zip(values, column.valid.tolist(), strict=True)]


def pythons(array: Any, kind: pa.DataType) -> list[Any]:
    """Python values of Arrow data; tensors are arrays."""
    values = array.to_pylist()
    dims = shape(kind)
    if not dims:
        return list(values)
    letters = np.dtype(kind.value_type.to_pandas_dtype())
    return [None if v is None else np.array(v, dtype=letters).reshape(dims) for v in values]


def _parquet(source: ParquetSource) -> Table:
    """File by file, row group by row group; empty row groups are not there."""
    everything = source.files.schema
    names = list(everything) if source.columns is None else list(source.columns)
    table = Table({name: everything[name] for name in names})
    atom = 0
    for file in source.files.files:
        key, number = scalar_ids.source_key(file.name), 0
        reader = pq.ParquetFile(file.path)
        for group in range(reader.num_row_groups):
            data = reader.read_row_group(group, columns=names)
            atom_rows = _atom_rows(source, data.num_rows, group, file)
            for at, values in enumerate(_rows(data, table.kinds)):
                place = (table.units, atom + at // atom_rows)
                table.rows.append(Row((key, number), values, len(table.rows), *place))
                number += 1
            if data.num_rows:
                table.units += 1
                atom += -(-data.num_rows // atom_rows)
    return table


def _atom_rows(source: ParquetSource, rows: int, group: int, file: Any) -> int:
    """Rows of an atom as asked for; small row groups are one otherwise."""
    if source.atom_rows is not None:
        return source.atom_rows
    if rows > 65_536 or file.metadata.row_group(group).total_byte_size > 4 << 20:
        raise SourceError("the oracle needs atom_rows= for row groups as large as this")
    return max(1, rows)


def _rows(data: pa.Table, kinds: dict[str, pa.DataType]) -> Iterator[dict[str, Any]]:
    columns = []
    for name, kind in kinds.items():
        column = data.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(kind)
        columns.append(pythons(column, kind))
    for row in zip(*columns, strict=True):
        yield dict(zip(kinds, row, strict=True))
