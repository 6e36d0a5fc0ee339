"""The oracle reads sources here: every row as a dict, with its id, atom and read unit."""

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

from dml.base.open_tensors import OpenTensor
from dml.errors import SourceError
from dml.expr.node import Node
from dml.io.arrow.arrow import ArrowSource
from dml.io.binary.binary import BinarySource
from dml.io.csv.csv import CsvForm
from dml.io.files.files import File, FileSource
from dml.io.files.hive_columns import PathColumns
from dml.io.files.lines import LineSource
from dml.io.files.records import Form
from dml.io.json.json import JsonForm
from dml.io.memory.memory import Memory
from dml.io.memory.range import Range
from dml.io.numpy.npy import NumpySource
from dml.io.orc.orc import OrcSource
from dml.io.parquet.parquet import ParquetSource
from dml.io.tfrecord.tfrecord import RecordSource
from dml.io.unit_shard import UnitShard
from dml.io.user.user_source import GivenParts, GivenRows, Plugged
from dml.io.webdataset.webdataset import SampleSource
from dml.testing.oracle_types import shape
from dml.testing.scalars import ids

Id = tuple[int, int]

SMALL_BYTES = 4 << 20
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": lambda data: pa.input_stream(io.BytesIO(data), compression="zstd").read(),
}


@dataclass
class OracleRow:
    """A row: its id, its values, and its place of origin in a source.

    ``position`` is the global position in the source, ``unit`` the read unit, and ``atom``
    identifies the run of rows over which types are inferred.
    """

    id: Id
    values: dict[str, Any]
    position: int = 0
    unit: int = 0
    atom: Any = 0


@dataclass
class SourceTable:
    """All rows of a source in order, with types; ``units`` is the number of read units.

    ``counted`` is false where some unit does not state its number of rows.
    """

    kinds: dict[str, pa.DataType]
    rows: list[OracleRow] = field(default_factory=list)
    units: int = 0
    counted: bool = True


def table_of(source: Node) -> SourceTable:
    """Read all rows of a source."""
    for kind, whole in WHOLE.items():
        if isinstance(source, kind):
            return whole(source)
    for kind, units in FORMATS.items():
        if isinstance(source, kind) and not isinstance(source, UNTOLD):
            return _in_units(source, units(source))
    raise SourceError(f"the oracle cannot read {type(source).__name__}")


def _any_rows(source: GivenRows) -> SourceTable:
    """Read a user's source that has random access to rows."""
    rows = (row for part in _given(source) for row in part)
    return _numbered(dict(source.schema.items()), source.given.name, rows, source.atom_rows)


def _numbered(kinds: dict[str, pa.DataType], name: str, rows: Any, atom_rows: int) -> SourceTable:
    """Number the rows of a source in memory: every atom is a unit."""
    key, table = ids.source_key(name), SourceTable(kinds)
    for number, values in enumerate(rows):
        atom = number // atom_rows
        table.rows.append(OracleRow((key, number), values, number, atom, atom))
        table.units = atom + 1
    return table


def _range(source: Range) -> SourceTable:
    numbers = range(source.start, source.stop, source.step)
    return _numbered({"id": pa.int64()}, "range", ({"id": n} for n in numbers), source.atom_rows)


def _memory(source: Memory) -> SourceTable:
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
class ReadRows:
    """Consecutive rows of a file that are read together: one read unit unless empty."""

    file: File
    rows: list[dict[str, Any]]
    nbytes: int


def _in_units(source: FileSource, units: Iterator[ReadRows]) -> SourceTable:
    """Concatenate the rows of read units; each unit is divided into atoms separately."""
    table, numbers, atom = SourceTable(dict(source.schema.items())), Counter[str](), 0
    for held in units:
        key, atom_rows = ids.source_key(held.file.name), _atom_rows(source, held)
        for at, values in enumerate(held.rows):
            place = (table.units, atom + at // atom_rows)
            number = numbers[held.file.name]
            table.rows.append(OracleRow((key, number), values, len(table.rows), *place))
            numbers[held.file.name] += 1
        table.units += bool(held.rows)
        atom += -(-len(held.rows) // atom_rows)
    return table


def _atom_rows(source: FileSource, held: ReadRows) -> int:
    """Return the rows of an atom: ``atom_rows`` if given, otherwise all rows of a small unit."""
    if source.atom_rows is not None:
        return source.atom_rows
    if len(held.rows) > 65_536 or held.nbytes > SMALL_BYTES:
        raise SourceError("the oracle needs atom_rows= for units as large as this")
    return max(1, len(held.rows))


def _stored(file: File) -> bytes:
    """Read all bytes of a file."""
    there = file.remote
    return Path(file.path).read_bytes() if there is None else there.fetch([(0, file.size)])[0]


def _opened(file: File) -> str | pa.NativeFile:
    """Return the path of a local file, or the bytes of a file in a remote store."""
    return file.path if file.remote is None else pa.BufferReader(_stored(file))


def _parquet(source: ParquetSource) -> Iterator[ReadRows]:
    """Read row group by row group."""
    for file in source.files.files:
        reader = pq.ParquetFile(_opened(file))
        for group in range(reader.num_row_groups):
            data = reader.read_row_group(group, columns=list(source.schema))
            nbytes = file.metadata.row_group(group).total_byte_size
            yield ReadRows(file, list(_rows(data, source)), nbytes)


def _arrow(source: ArrowSource) -> Iterator[ReadRows]:
    """Read record batch by record batch."""
    for file in source.files.files:
        with pa.ipc.open_file(_opened(file)) as reader:
            for number in range(reader.num_record_batches):
                data = pa.Table.from_batches([reader.get_batch(number)])
                yield ReadRows(file, list(_rows(data, source)), data.nbytes)


def _orc(source: OrcSource) -> Iterator[ReadRows]:
    """Read stripe by stripe, in this process: files that tests write are not damaged."""
    for file in source.files.files:
        reader = orc.ORCFile(file.path)
        for number in range(reader.nstripes):
            data = pa.Table.from_batches([reader.read_stripe(number)])
            yield ReadRows(file, list(_rows(data, source)), data.nbytes)


def _lines(source: LineSource) -> Iterator[ReadRows]:
    """Read file by file; each file is small enough to be one unit."""
    kinds = dict(source.schema.items())
    for file in source.files.files:
        stored = UNPACK.get(Path(file.name).suffix, bytes)(_stored(file))
        if len(stored) > SMALL_BYTES:
            raise SourceError("the oracle reads files of rows up to 4 MiB")
        text = stored.decode("utf-8-sig")
        values = list(_records(source.files.form, text))
        rows = [{name: _value(row, name, kinds[name]) for name in kinds} for row in values]
        yield ReadRows(file, rows, len(stored))


def _records(form: Form, text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as dicts, with text where the type decides how to parse it."""
    if isinstance(form, JsonForm):
        yield from (json.loads(line) for line in text.split("\n") if line.strip())
    elif isinstance(form, CsvForm):
        rows = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=form.delimiter,
            quotechar=form.quote or None,
            quoting=csv.QUOTE_MINIMAL if form.quote else csv.QUOTE_NONE,
        )
        for row in islice((row for row in rows if row), int(form.header), None):
            pairs = zip(form.schema.items(), row, strict=True)
            yield {name: _parsed(value, kind, form.nulls) for (name, kind), value in pairs}
    else:
        lines = text.split("\n")
        yield from ({"text": line.removesuffix("\r")} for line in lines[:-1])
        yield from ({"text": line} for line in lines[-1:] if line)


def _parsed(text: str, kind: pa.DataType, nulls: tuple[str, ...]) -> str | None:
    """Return the text of a CSV value, or None for null."""
    counts = bool(nulls) or not pa.types.is_string(kind)
    return None if counts and text in ("", *nulls) else text


def _value(row: dict[str, Any], name: str, kind: pa.DataType) -> Any:
    """Convert one value to Python; text is parsed by the type."""
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
    """Yield the rows of a user's source part by part, with all columns."""
    names = source.schema.names
    for part in source.given.parts:
        found = [pa.Table.from_batches([each]) for each in source.given.source.read(part, names)]
        yield [row for data in found for row in _rows(data, source)]


def _parts(source: GivenParts) -> SourceTable:
    """Read a user's source in parts; a part is a unit unless it states that it has no rows."""
    table, atom = SourceTable(dict(source.schema.items())), 0
    atom_rows = source.atom_rows or source.given.source.atom_rows
    if atom_rows is None:
        raise SourceError("the oracle needs atom_rows= for a given source")
    for part, rows in zip(source.given.parts, _given(source), strict=True):
        name = f"{source.given.name}/{part.name}" if part.name else source.given.name
        for at, values in enumerate(rows):
            place = (len(table.rows), table.units, atom + at // atom_rows)
            table.rows.append(OracleRow((ids.source_key(name), at), values, *place))
        table.units += part.rows != 0
        table.counted = table.counted and part.rows is not None
        atom += len(rows)  # at least as many as its atoms: names need not be dense
    return table


def _binary(source: BinarySource) -> SourceTable:
    """Read one row per file; every atom is a unit."""
    table = SourceTable(dict(source.schema.items()))
    files = source.files.files
    if sum(file.size for file in files) > SMALL_BYTES:
        raise SourceError("the oracle reads whole files up to 4 MiB in all")
    for number, file in enumerate(files):
        atom = number // (source.atom_rows or 65_536)
        values = {"bytes": _stored(file), "path": file.name}
        shown = {name: values[name] for name in source.schema}
        table.rows.append(OracleRow((ids.source_key(file.name), 0), shown, number, atom, atom))
        table.units = atom + 1
    return table


def _arrays(source: NumpySource) -> SourceTable:
    """Read the fields of .npy files row by row; atoms may span files, and each is a unit."""
    table = SourceTable(dict(source.schema.items()))
    for file in source.files.files:
        if not file.direct or source.atom_rows is None:
            raise SourceError("the oracle reads .npy files, with atom_rows=")
        stored = np.load(file.path, allow_pickle=False)
        for number, row in enumerate(stored):
            atom = len(table.rows) // source.atom_rows
            values = {name: row[name].item() for name in source.schema}
            found = OracleRow((ids.source_key(file.name), number), values, len(table.rows))
            found.unit = found.atom = atom
            table.rows.append(found)
            table.units = atom + 1
    return table


def _units_shard(source: UnitShard) -> SourceTable:
    """Read the rows of every n-th unit; units and positions are counted among these."""
    whole = table_of(source.source)
    table = SourceTable(whole.kinds, counted=whole.counted)
    table.units = len(range(source.index, whole.units, source.num_shards))
    for row in whole.rows:
        if row.unit % source.num_shards == source.index:
            unit = row.unit // source.num_shards
            table.rows.append(replace(row, position=len(table.rows), unit=unit))
    return table


def _with_paths(source: PathColumns) -> SourceTable:
    """Read the rows of files, each with the columns of its file's path."""
    whole = table_of(source.source)
    files = [ids.source_key(file.name) for file in source.source.files.files]
    told = dict(zip(files, source.values.rows.to_pylist(), strict=True))
    for row in whole.rows:
        every = {**row.values, **told[row.id[0]]}
        row.values = {name: every[name] for name in source.schema}
    return replace(whole, kinds=dict(source.schema.items()))


# Formats of consecutive rows that are not text: the oracle cannot read them.
UNTOLD = (RecordSource, SampleSource)
FORMATS: dict[type[FileSource], Callable[[Any], Iterator[ReadRows]]] = {
    ParquetSource: _parquet,
    ArrowSource: _arrow,
    OrcSource: _orc,
    LineSource: _lines,
}
WHOLE: dict[type[Node], Callable[[Any], SourceTable]] = {
    Range: _range,
    Memory: _memory,
    BinarySource: _binary,
    NumpySource: _arrays,
    GivenRows: _any_rows,
    GivenParts: _parts,
    UnitShard: _units_shard,
    PathColumns: _with_paths,
}
