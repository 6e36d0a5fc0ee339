"""This file reads sources for the oracle: every row as a dict, with its id, atom and read unit."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from dml.errors import SourceError
from dml.expr.node import Node
from dml.expr.open_shape import OpenTensor
from dml.expr.sources.arrow import ArrowSource
from dml.expr.sources.binary import BinarySource
from dml.expr.sources.csv import CsvForm
from dml.expr.sources.files import File, FileSource
from dml.expr.sources.hive import PathColumns
from dml.expr.sources.json import JsonForm
from dml.expr.sources.lines import Form, LineSource
from dml.expr.sources.memory import Memory
from dml.expr.sources.npy import NumpySource
from dml.expr.sources.orc import OrcSource
from dml.expr.sources.parquet import ParquetSource
from dml.expr.sources.plugged import GivenParts, GivenRows, Plugged
from dml.expr.sources.range import Range
from dml.expr.sources.tfrecord import RecordSource
from dml.expr.sources.unit_shard import UnitShard
from dml.expr.sources.webdataset import SampleSource
from dml.testing import scalar_ids
from dml.testing.oracle_types import shape

Id = tuple[int, int]

SMALL_BYTES = 4 << 20
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": lambda data: pa.input_stream(io.BytesIO(data), compression="zstd").read(),
}


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
    """All rows of a source in order, with types; ``units`` is how many read units there are.

    ``counted`` is false where some unit does not say how many rows it has.
    """

    kinds: dict[str, pa.DataType]
    rows: list[Row] = field(default_factory=list)
    units: int = 0
    counted: bool = True


def table_of(source: Node) -> Table:
    """Everything in a source."""
    for kind, whole in WHOLE.items():
        if isinstance(source, kind):
            return whole(source)
    for kind, units in FORMATS.items():
        if isinstance(source, kind) and not isinstance(source, UNTOLD):
            return _in_units(source, units(source))
    raise SourceError(f"the oracle cannot read {type(source).__name__}")


def _any_rows(source: GivenRows) -> Table:
    """A user's source that gives any row at once."""
    rows = (row for part in _given(source) for row in part)
    return _numbered(dict(source.schema.items()), source.given.name, rows, source.atom_rows)


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
    if isinstance(kind, OpenTensor):
        letters = kind.value_type.to_pandas_dtype()
        return [v and np.array(v["data"], letters).reshape(v["shape"]) for v in values]
    dims = shape(kind)
    if not dims:
        return list(values)
    letters = np.dtype(kind.value_type.to_pandas_dtype())
    return [None if v is None else np.array(v, dtype=letters).reshape(dims) for v in values]


@dataclass
class Held:
    """Consecutive rows of a file that are read together: one read unit if there are any."""

    file: File
    rows: list[dict[str, Any]]
    nbytes: int


def _in_units(source: FileSource, units: Iterator[Held]) -> Table:
    """The rows of read units one after the other; each unit is cut into atoms on its own."""
    table, numbers, atom = Table(dict(source.schema.items())), Counter[str](), 0
    for held in units:
        key, atom_rows = scalar_ids.source_key(held.file.name), _atom_rows(source, held)
        for at, values in enumerate(held.rows):
            place = (table.units, atom + at // atom_rows)
            number = numbers[held.file.name]
            table.rows.append(Row((key, number), values, len(table.rows), *place))
            numbers[held.file.name] += 1
        table.units += bool(held.rows)
        atom += -(-len(held.rows) // atom_rows)
    return table


def _atom_rows(source: FileSource, held: Held) -> int:
    """Rows of an atom as asked for; small units are one otherwise."""
    if source.atom_rows is not None:
        return source.atom_rows
    if len(held.rows) > 65_536 or held.nbytes > SMALL_BYTES:
        raise SourceError("the oracle needs atom_rows= for units as large as this")
    return max(1, len(held.rows))


def _stored(file: File) -> bytes:
    """All bytes of a file."""
    there = file.remote
    return Path(file.path).read_bytes() if there is None else there.fetch([(0, file.size)])[0]


def _opened(file: File) -> str | pa.NativeFile:
    """What Arrow opens: a path, or the bytes of a file in a store."""
    return file.path if file.remote is None else pa.BufferReader(_stored(file))


def _parquet(source: ParquetSource) -> Iterator[Held]:
    """Row group by row group."""
    for file in source.files.files:
        reader = pq.ParquetFile(_opened(file))
        for group in range(reader.num_row_groups):
            data = reader.read_row_group(group, columns=list(source.schema))
            nbytes = file.metadata.row_group(group).total_byte_size
            yield Held(file, list(_rows(data, source)), nbytes)


def _arrow(source: ArrowSource) -> Iterator[Held]:
    """Record batch by record batch."""
    for file in source.files.files:
        with pa.ipc.open_file(_opened(file)) as reader:
            for number in range(reader.num_record_batches):
                data = pa.Table.from_batches([reader.get_batch(number)])
                yield Held(file, list(_rows(data, source)), data.nbytes)


def _orc(source: OrcSource) -> Iterator[Held]:
    """Stripe by stripe, in this process: what tests write is not damaged."""
    for file in source.files.files:
        reader = orc.ORCFile(file.path)
        for number in range(reader.nstripes):
            data = pa.Table.from_batches([reader.read_stripe(number)])
            yield Held(file, list(_rows(data, source)), data.nbytes)


def _lines(source: LineSource) -> Iterator[Held]:
    """File by file: as small as they are, each is one unit."""
    kinds = dict(source.schema.items())
    for file in source.files.files:
        stored = UNPACK.get(Path(file.name).suffix, bytes)(_stored(file))
        if len(stored) > SMALL_BYTES:
            raise SourceError("the oracle reads files of rows up to 4 MiB")
        text = stored.decode("utf-8-sig")
        values = list(_records(source.files.form, text))
        rows = [{name: _value(row, name, kinds[name]) for name in kinds} for row in values]
        yield Held(file, rows, len(stored))


def _records(form: Form, text: str) -> Iterator[dict[str, Any]]:
    """The rows of a file as dicts: text where the type decides what it means."""
    if isinstance(form, JsonForm):
        yield from (json.loads(line) for line in text.split("\n") if line.strip())
    elif isinstance(form, CsvForm):
        dialect = form.dialect
        rows = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=dialect.delimiter,
            quotechar=dialect.quote or None,
            quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        )
        for row in islice((row for row in rows if row), int(form.header), None):
            pairs = zip(form.schema.items(), row, strict=True)
            yield {name: _parsed(value, kind, form.nulls) for (name, kind), value in pairs}
    else:
        lines = text.split("\n")
        yield from ({"text": line.removesuffix("\r")} for line in lines[:-1])
        yield from ({"text": line} for line in lines[-1:] if line)


def _parsed(text: str, kind: pa.DataType, nulls: tuple[str, ...]) -> str | None:
    """A value of CSV, or None where it is null."""
    counts = bool(nulls) or not pa.types.is_string(kind)
    return None if counts and text in ("", *nulls) else text


def _value(row: dict[str, Any], name: str, kind: pa.DataType) -> Any:
    """One value as Python sees it: text as the type reads it."""
    found = row.get(name)
    if found is None or pa.types.is_string(kind):
        return found
    if isinstance(found, str):
        return pa.scalar(found).cast(kind).as_py()
    return pa.scalar(float(found) if pa.types.is_floating(kind) else found, kind).as_py()


def _rows(data: pa.Table, source: FileSource | Plugged) -> Iterator[dict[str, Any]]:
    columns = []
    for name, kind in source.schema.items():
        column = data.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(kind)
        columns.append(pythons(column, kind))
    for row in zip(*columns, strict=True):
        yield dict(zip(source.schema, row, strict=True))


def _given(source: Plugged) -> Iterator[list[dict[str, Any]]]:
    """Part by part, the rows of a user's source; all of its columns."""
    names = source.schema.names
    for part in source.given.parts:
        found = [pa.Table.from_batches([each]) for each in source.given.source.read(part, names)]
        yield [row for data in found for row in _rows(data, source)]


def _parts(source: GivenParts) -> Table:
    """A part is a unit unless it says that it has no rows."""
    table, atom = Table(dict(source.schema.items())), 0
    atom_rows = source.atom_rows or source.given.source.atom_rows
    if atom_rows is None:
        raise SourceError("the oracle needs atom_rows= for a given source")
    for part, rows in zip(source.given.parts, _given(source), strict=True):
        name = f"{source.given.name}/{part.name}" if part.name else source.given.name
        for at, values in enumerate(rows):
            place = (len(table.rows), table.units, atom + at // atom_rows)
            table.rows.append(Row((scalar_ids.source_key(name), at), values, *place))
        table.units += part.rows != 0
        table.counted = table.counted and part.rows is not None
        atom += len(rows)  # at least as many as its atoms: names need not be dense
    return table


def _binary(source: BinarySource) -> Table:
    """A row per file; every atom is a unit."""
    table = Table(dict(source.schema.items()))
    files = source.files.files
    if sum(file.size for file in files) > SMALL_BYTES:
        raise SourceError("the oracle reads whole files up to 4 MiB in all")
    for number, file in enumerate(files):
        atom = number // (source.atom_rows or 65_536)
        values = {"bytes": _stored(file), "path": file.name}
        shown = {name: values[name] for name in source.schema}
        table.rows.append(Row((scalar_ids.source_key(file.name), 0), shown, number, atom, atom))
        table.units = atom + 1
    return table


def _arrays(source: NumpySource) -> Table:
    """The fields of .npy files, row after row; every atom of all rows is a unit."""
    table = Table(dict(source.schema.items()))
    for file in source.files.files:
        if not file.direct or source.atom_rows is None:
            raise SourceError("the oracle reads .npy files, with atom_rows=")
        stored = np.load(file.path, allow_pickle=False)
        for number, row in enumerate(stored):
            atom = len(table.rows) // source.atom_rows
            values = {name: row[name].item() for name in source.schema}
            found = Row((scalar_ids.source_key(file.name), number), values, len(table.rows))
            found.unit = found.atom = atom
            table.rows.append(found)
            table.units = atom + 1
    return table


def _units_shard(source: UnitShard) -> Table:
    """The rows of every n-th unit; units, atoms and positions are counted among these."""
    whole = table_of(source.source)
    table = Table(whole.kinds, counted=whole.counted)
    table.units = len(range(source.index, whole.units, source.num_shards))
    for row in whole.rows:
        if row.unit % source.num_shards == source.index:
            unit = row.unit // source.num_shards
            table.rows.append(replace(row, position=len(table.rows), unit=unit))
    return table


def _with_paths(source: PathColumns) -> Table:
    """The rows of the files, each with what is said of its file's path."""
    whole = table_of(source.source)
    files = [scalar_ids.source_key(file.name) for file in source.source.files.files]
    told = dict(zip(files, source.values.rows.to_pylist(), strict=True))
    for row in whole.rows:
        every = {**row.values, **told[row.id[0]]}
        row.values = {name: every[name] for name in source.schema}
    return replace(whole, kinds=dict(source.schema.items()))


# Rows one after the other, but not as text.
UNTOLD = (RecordSource, SampleSource)
FORMATS: dict[type[FileSource], Callable[[Any], Iterator[Held]]] = {
    ParquetSource: _parquet,
    ArrowSource: _arrow,
    OrcSource: _orc,
    LineSource: _lines,
}
WHOLE: dict[type[Node], Callable[[Any], Table]] = {
    Range: _range,
    Memory: _memory,
    BinarySource: _binary,
    NumpySource: _arrays,
    GivenRows: _any_rows,
    GivenParts: _parts,
    UnitShard: _units_shard,
    PathColumns: _with_paths,
}
