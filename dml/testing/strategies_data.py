"""Data for random pipelines is drawn here: few rows, with every value that has caused bugs.

Tables have NaN, infinities, -0.0, nulls, the limits of each integer type, empty text; files may be
empty, row groups and atoms are small, so that a few dozen rows have many boundaries.
"""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml.api.dataset import Dataset
from dml.api.sources.files import read_arrow, read_csv, read_json, read_numpy, read_parquet
from dml.api.sources.objects import from_arrow, range, read_datasource
from dml.plugins import DataSource, SourcePart

NAN, INF = float("nan"), float("inf")
SIMPLE = {pa.int64(), pa.float64(), pa.string(), pa.int32()}
DAY = dt.datetime(2024, 2, 29, 12, 30)

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
WORDS = ("", "a", "b", "the cat", "The  dog sat", "naïve café", "x y z", "Z", "0")
FLOATS = (0.0, -0.0, 1.0, -1.5, 0.1, NAN, INF, -INF, 1e-310, 3.4e38, -7.25, 1e6, 2.5, 88.0)

Draw = random.Random


def _integer(kind: pa.DataType) -> Callable[[Draw], int]:
    bits, signed = int(kind.bit_width), bool(pa.types.is_signed_integer(kind))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)

    def value(draw: Draw) -> int:
        if draw.random() < 0.7:
            return draw.randint(max(low, -5), 9)
        edges: list[int] = [low, high, high - 1, low + 1, 0]
        return draw.choice(edges)

    return value


def _float32(draw: Draw) -> float:
    return float(np.float32(draw.choice([v for v in FLOATS if v != 1e-310])))


VALUES: dict[pa.DataType, Callable[[Draw], Any]] = {
    **{kind: _integer(kind) for kind in (*INTEGERS, pa.uint64())},
    pa.float32(): _float32,
    pa.float64(): lambda draw: draw.choice([*FLOATS, draw.uniform(-3, 3)]),
    pa.bool_(): lambda draw: draw.random() < 0.5,
    pa.string(): lambda draw: draw.choice(WORDS),
    pa.binary(): lambda draw: draw.choice(WORDS).encode(),
    pa.timestamp("us"): lambda draw: DAY + dt.timedelta(hours=draw.randint(-900, 900)),
    pa.list_(pa.int64()): lambda draw: [draw.randint(0, 9) for _ in "abc"[: draw.randint(0, 3)]],
}


FAVOURED = (
    pa.string(),
    pa.string(),
    pa.string(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.int32(),
)


def columns(draw: Draw) -> dict[str, pa.DataType]:
    """Draw names and types of columns: always ``n`` and ``f``, then a few of any type."""
    kinds = {"n": pa.int64(), "f": pa.float64()}
    for name in "abcd"[: draw.randint(1, 4)]:
        kinds[name] = draw.choice([*VALUES, *FAVOURED])
    if draw.random() < 0.15:
        kinds["t"] = pa.fixed_shape_tensor(pa.float32(), (2,))
    return kinds


def table(draw: Draw, kinds: dict[str, pa.DataType], rows: int) -> pa.Table:
    """Draw a table; ``n`` is small and never null, ``f`` is never null but any float."""
    data = {}
    for name, kind in kinds.items():
        if name == "n":
            data[name] = pa.array([draw.randint(-4, 20) for _ in np.arange(rows)], kind)
        elif name == "t":
            flat = np.array([_float32(draw) for _ in np.arange(2 * rows)], "f4").reshape(rows, 2)
            data[name] = _tensors(flat)
        else:
            nulls = 0.0 if name == "f" else draw.choice([0.0, 0.0, 0.15, 0.6])
            data[name] = pa.array(
                [None if draw.random() < nulls else VALUES[kind](draw) for _ in np.arange(rows)],
                kind,
            )
    return pa.table(data)


def _tensors(flat: np.ndarray) -> pa.Array:
    if len(flat):
        return pa.FixedShapeTensorArray.from_numpy_ndarray(flat)
    kind = pa.fixed_shape_tensor(pa.float32(), (2,))
    return pa.ExtensionArray.from_storage(kind, pa.array([], kind.storage_type))


def parquet(draw: Draw, folder: Path) -> Dataset:
    """Write a set of 1 to 6 Parquet files to ``folder``, some of them empty."""
    folder.mkdir(parents=True)
    kinds = columns(draw)
    for number in np.arange(draw.choice([1, 2, 3, 3, 4, 4, 5, 6])):
        rows = draw.choice([0, 1, 8, 10, 12, 16])
        data = table(draw, kinds, rows)
        pq.write_table(data, folder / f"part-{number}.parquet", row_group_size=draw.randint(3, 12))
    return read_parquet(folder, atom_rows=draw.choice([1, 2, 2, 3]))


def lines(draw: Draw, folder: Path) -> Dataset:
    """Write a set of 1 to 4 files of CSV, JSON lines or Arrow batches, some compressed."""
    folder.mkdir(parents=True)
    form = draw.choice(["csv", "json", "arrow"])
    kinds = {n: k for n, k in columns(draw).items() if form == "arrow" or k in SIMPLE}
    ending = draw.choice(["", ".gz"]) if form != "arrow" else ""
    for number in np.arange(draw.choice([1, 2, 3, 4])):
        data = table(draw, kinds, draw.choice([0, 1, 8, 10, 12, 16]))
        stored = WRITERS[form](data, draw.randint(3, 12))
        path = folder / f"part-{number}.{form}{ending}"
        path.write_bytes(gzip.compress(stored, mtime=0) if ending else stored)
    each = draw.choice([1, 2, 2, 3])
    if form == "arrow":
        return read_arrow(folder, atom_rows=each)
    read = read_csv if form == "csv" else read_json
    return read(folder, schema=kinds, atom_rows=each)


def arrays(draw: Draw, folder: Path) -> Dataset:
    """Write a set of 1 to 4 .npy files whose fields are the columns without nulls."""
    folder.mkdir(parents=True)
    kinds = {name: kind for name, kind in columns(draw).items() if name in "nf"}
    for number in np.arange(draw.choice([1, 2, 3, 4])):
        data = table(draw, kinds, draw.choice([0, 1, 8, 10, 12, 16]))
        fields = [(name, kind.to_pandas_dtype()) for name, kind in kinds.items()]
        stored = np.zeros(data.num_rows, np.dtype(fields))
        for name in kinds:
            stored[name] = data[name].to_numpy()
        np.save(folder / f"part-{number}.npy", stored)
    return read_numpy(folder, atom_rows=draw.choice([1, 2, 2, 3, 5]))


def _csv(data: pa.Table, _: int) -> bytes:
    """Write text as it is, and null as an empty field; a null text is read as empty text."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(data.column_names)
    for row in data.to_pylist():
        writer.writerow(["" if value is None else str(value) for value in row.values()])
    return out.getvalue().encode()


def _json(data: pa.Table, _: int) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in data.to_pylist()).encode()


def _arrow(data: pa.Table, rows: int) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, data.schema) as writer:
        writer.write_table(data, max_chunksize=rows)
    return out.getvalue()


WRITERS = {"csv": _csv, "json": _json, "arrow": _arrow}


def memory(draw: Draw) -> Dataset:
    """Draw a table in memory, or a range."""
    if draw.random() < 0.3:
        step = draw.choice([1, 1, 3, -2])
        stop = draw.randint(0, 40) * (1 if step > 0 else -1)
        return range(draw.randint(-3, 3), stop, step, atom_rows=draw.randint(1, 7))
    data = table(draw, columns(draw), draw.choice([0, 1, 7, 30, 45]))
    each = draw.randint(1, 9)
    if draw.random() < 0.4:
        return read_datasource(Handed.drawn(draw, data), atom_rows=each)
    return from_arrow(data, atom_rows=each)


class Handed(DataSource):
    """A source of a table's rows in parts, some of which do not state their number of rows."""

    def __init__(self, data: pa.Table, ends: list[int], told: list[bool], each: int) -> None:
        self.data, self.ends, self.told, self.each = data, ends, told, each

    @staticmethod
    def drawn(draw: Draw, data: pa.Table) -> Handed:
        """Draw up to four parts with batches of a few rows, or a source with random access."""
        cuts = [draw.randint(0, data.num_rows) for _ in "abc"[: draw.randint(0, 3)]]
        ends = sorted([*cuts, data.num_rows])
        if draw.random() < 0.3:
            return HandedAnywhere(data, ends, [True] * len(ends), draw.randint(1, 8))
        told = [draw.random() < 0.5 for _ in ends]
        return Handed(data, ends, told, draw.randint(1, 8))

    def schema(self) -> pa.Schema:
        """Return the schema of the table."""
        return self.data.schema

    def parts(self) -> list[SourcePart]:
        """Return runs of rows as parts."""
        starts = [0, *self.ends[:-1]]
        return [
            SourcePart(f"{start}-{number}", end - start if told else None, payload=(start, end))
            for number, (start, end, told) in enumerate(
                zip(starts, self.ends, self.told, strict=True)
            )
        ]

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Read a few rows at a time."""
        start, end = part.payload
        rows = self.data.slice(start, end - start).select(list(columns))
        yield from rows.to_batches(max_chunksize=self.each)

    def identity(self) -> object:
        """Return the content and the boundaries of its parts."""
        return (self.data, self.ends, self.told)


class HandedAnywhere(Handed):
    """A source of a table's rows with random access."""

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.Table:
        """Return the rows of the table at ``index``."""
        return self.data.select(list(columns)).take(pa.array(index))


class DataPool:
    """Data sets that are made once and used by many pipelines; most are sets of files."""

    def __init__(self, folder: Path, seed: int = 0, size: int = 40) -> None:
        self.sets = [
            (arrays if i % 8 == 7 else lines if i % 4 == 3 else parquet)(
                random.Random(f"{seed}/{i}"),  # noqa: S311
                folder / f"set-{seed}-{i}",
            )
            for i in np.arange(size)
        ]

    def dataset(self, draw: Draw) -> Dataset:
        """Draw files with a chance of seven in eight, else a source in memory."""
        return memory(draw) if draw.random() < 1 / 8 else draw.choice(self.sets)
