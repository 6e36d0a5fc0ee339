"""Write more files for adversarial pipelines: dictionaries, archives, compressed tables."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from tests.laws.adversarial_data import MB, kept, ones

# Ten texts of so many letters, each in every tenth of so many rows: 400 MB, of 400 kB.
TEXTS, LETTERS, TEXT_ROWS = 10, 20_000, 20_000


def few_texts() -> pa.Table:
    """Many rows of few long texts, which an encoded column holds once each."""
    texts = pa.array([chr(97 + i) * LETTERS for i in range(TEXTS)])
    numbers = pa.array(np.arange(TEXT_ROWS) % TEXTS, pa.int32())
    encoded = pa.DictionaryArray.from_arrays(numbers, texts)
    return pa.table({"k": np.arange(TEXT_ROWS), "s": encoded})


def dictionary(folder: Path) -> dml.Dataset:
    """Parquet of few long texts."""

    def write(path: Path) -> None:
        pq.write_table(few_texts(), path)

    return dml.read_parquet(kept(folder / "dictionary.parquet", write))


def uncounted(folder: Path, atom_rows: int | None = None) -> dml.Dataset:
    """The same, of a writer that does not count what they are when they are decoded."""

    def write(path: Path) -> None:
        import polars as pl

        text = pl.Series([chr(97 + i % TEXTS) * LETTERS for i in range(TEXT_ROWS)])
        frame = pl.DataFrame({"k": np.arange(TEXT_ROWS), "s": text})
        frame.write_parquet(path, row_group_size=TEXT_ROWS)

    return dml.read_parquet(kept(folder / "uncounted.parquet", write), atom_rows=atom_rows)


def listed(folder: Path) -> dml.Dataset:
    """Parquet of lists of one long text."""

    def write(path: Path) -> None:
        texts = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(40_000), pa.int32()), pa.array(["x" * LETTERS])
        )
        lists = pa.ListArray.from_arrays(np.arange(0, 40_001, 10).astype(np.int32), texts)
        pq.write_table(pa.table({"k": np.arange(4000), "v": lists}), path)

    return dml.read_parquet(kept(folder / "listed.parquet", write))


def arrow(folder: Path) -> dml.Dataset:
    """An Arrow file of few long texts."""

    def write(path: Path) -> None:
        table = few_texts()
        with pa.ipc.new_file(path, table.schema) as out:
            out.write_table(table)

    return dml.read_ipc(kept(folder / "few.arrow", write))


def zeros(folder: Path) -> dml.Dataset:
    """Parquet of 320 MB of zeros, which are stored as nothing."""

    def write(path: Path) -> None:
        columns = {f"x{i}": np.zeros(10_000_000) for i in range(3)}
        table = pa.table({"k": np.arange(10_000_000) % 7, **columns})
        pq.write_table(table, path, row_group_size=len(table))

    return dml.read_parquet(kept(folder / "zeros.parquet", write))


def packed_csv(folder: Path) -> dml.Dataset:
    """A CSV file of 300 MB that is packed a thousandfold."""

    def write(path: Path) -> None:
        with gzip.open(path, "wb", compresslevel=1) as out:
            out.write(b"k,s\n")
            for _ in range(300):
                out.write((b"1," + b"x" * 997 + b"\n") * 1000)

    return dml.read_csv(kept(folder / "packed.csv.gz", write))


def long_list(folder: Path) -> dml.Dataset:
    """JSON lines, one of them with three million numbers."""

    def write(path: Path) -> None:
        with path.open("w", encoding="ascii") as out:
            for k in range(1000):
                out.write(json.dumps({"k": k, "v": [1] * (3_000_000 if k == 500 else 3)}) + "\n")

    return dml.read_json(kept(folder / "list.json", write))


def archive(folder: Path) -> dml.Dataset:
    """A WebDataset shard: most members of ten bytes, some of 20 MB."""

    def write(path: Path) -> None:
        with tarfile.open(path, "w") as out:
            for k in range(200):
                data = ones(20 * MB if k % 50 == 25 else 10)
                member = tarfile.TarInfo(f"{k:04}.bin")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))

    return dml.read_webdataset(kept(folder / "shard.tar", write)).with_columns(k=1)


def words(folder: Path) -> dml.Dataset:
    """Parquet of lists of a thousand short texts, which take ten times as much as objects."""

    def write(path: Path) -> None:
        texts = pa.array([f"w{i % 1000}" for i in range(1_000_000)])
        with pq.ParquetWriter(path, pa.schema({"k": pa.int64(), "v": pa.list_(pa.string())})) as to:
            for start in range(0, 20_000, 1000):
                lists = pa.ListArray.from_arrays(np.arange(1001, dtype=np.int32) * 1000, texts)
                keys = np.arange(start, start + 1000)
                to.write_table(pa.table({"k": keys, "v": lists}), row_group_size=20_000)

    return dml.read_parquet(kept(folder / "words.parquet", write))
