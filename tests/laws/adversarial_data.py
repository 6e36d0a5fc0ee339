"""Write the files that adversarial pipelines read: small on disk, large as rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml

MB = 1_000_000


def ones(n: int) -> bytes:
    """So many bytes, each of which was written."""
    return b"\1" * n


def kept(path: Path, write: Callable[[Path], None]) -> Path:
    """``path``, written if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write(path)
    return path


def skewed(folder: Path) -> dml.Dataset:
    """Parquet: most rows of a byte, some of 8 MB."""

    def write(path: Path) -> None:
        with pq.ParquetWriter(path, pa.schema({"k": pa.int64(), "b": pa.binary()})) as out:
            for start in range(0, 400, 100):
                keys = list(range(start, start + 100))
                values = [np.random.default_rng(k).bytes(8 * MB if not k % 50 else 1) for k in keys]
                out.write_table(pa.table({"k": keys, "b": values}, schema=out.schema))

    return dml.read_parquet(kept(folder / "skewed.parquet", write))


def one_group(folder: Path) -> dml.Dataset:
    """Parquet of 200 MB in one row group."""

    def write(path: Path) -> None:
        rng, rows = np.random.default_rng(1), 3_000_000
        columns = {f"x{i}": rng.random(rows) for i in range(7)}
        table = pa.table({"k": np.arange(rows), **columns})
        pq.write_table(table, path, row_group_size=rows, compression="none")

    return dml.read_parquet(kept(folder / "group.parquet", write))


def nested(folder: Path) -> dml.Dataset:
    """Parquet of lists of lists, one of them of 3 million numbers."""

    def write(path: Path) -> None:
        sizes = [3_000_000 if k == 500 else 3 for k in range(1000)]
        inner = pa.ListArray.from_arrays(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32), np.arange(sum(sizes))
        )
        outer = pa.ListArray.from_arrays(np.arange(1001, dtype=np.int32), inner)
        pq.write_table(pa.table({"k": np.arange(1000), "v": outer}), path)

    return dml.read_parquet(kept(folder / "nested.parquet", write))


def long_line(folder: Path, kind: str) -> dml.Dataset:
    """Lines, one of which is 30 MB long, as text, CSV or JSON."""
    make: dict[str, Callable[[int, str], str]] = {
        "txt": lambda _, text: text,
        "csv": lambda k, text: f"{k},{text}",
        "json": lambda k, text: json.dumps({"k": k, "s": text}),
    }

    def write(path: Path) -> None:
        with path.open("w", encoding="ascii") as out:
            out.write("k,s\n" * (kind == "csv"))
            for k in range(2000):
                out.write(make[kind](k, "x" * (30 * MB if k == 1000 else 30)) + "\n")

    path = kept(folder / f"long.{kind}", write)
    if kind == "txt":
        return dml.read_text(path).with_columns(k=0)
    return dml.read_csv(path) if kind == "csv" else dml.read_json(path)


def packed_lines(folder: Path) -> dml.Dataset:
    """Text of 300 MB that is packed a thousandfold."""

    def write(path: Path) -> None:
        with gzip.open(path, "wb", compresslevel=1) as out:
            for _ in range(300):
                out.write((b"x" * 999 + b"\n") * 1000)

    return dml.read_text(kept(folder / "packed.txt.gz", write)).with_columns(k=1)


def blobs(folder: Path) -> dml.Dataset:
    """Twelve files of 20 MB, each a row."""

    def write(path: Path) -> None:
        path.write_bytes(ones(20 * MB))

    for i in range(12):
        kept(folder / "blobs" / f"{i:02}.bin", write)
    return dml.read_binary_files(folder / "blobs").with_columns(k=1)


def tiles(folder: Path) -> dml.Dataset:
    """A NumPy file of 300 MB."""

    def write(path: Path) -> None:
        out = np.lib.format.open_memmap(path, mode="w+", dtype="f4", shape=(30_000, 2500))
        for start in range(0, 30_000, 1000):
            out[start : start + 1000] = 1.0

    return dml.read_numpy(kept(folder / "tiles.npy", write)).with_columns(k=1)


def generated() -> Iterator[dict[str, Any]]:
    """Rows of a megabyte."""
    for k in range(300):
        yield {"k": k, "b": ones(MB)}
