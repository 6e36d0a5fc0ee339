"""This file measures functions that look up one of forty columns of a Parquet file.

    python benchmarks/bench_columns.py [--turns 5] [--rows 200000]

Each pipeline runs as it is, and with ``disable_rules=["projection_into_source"]``, in turn, in one
process: then every column is decoded, and each dict of a row has forty items. Medians of turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml import col
from dml.api.dataset import Dataset

COLUMNS, GROUP, BATCH = 40, 20_000, 256
SCALE = [2.0]  # a list could change, so functions that read it are called, and not lifted
EVERYTHING = ["projection_into_source"]

PIPELINES: dict[str, Callable[[Dataset], Dataset]] = {
    "a row, lifted": lambda ds: ds.map(lambda row: {"y": row["c1"] + 1}),
    "a row, called": lambda ds: ds.map(lambda row: {"y": row["c1"] * SCALE[0]}),
    "a filter and a row": lambda ds: ds.filter(lambda row: row["c2"] > SCALE[0] / 4).map(
        lambda row: {"y": row["c1"] * SCALE[0]}
    ),
    "columns and a row": lambda ds: (
        ds.filter(col("c0") > 0.5).with_columns(z=col("c1") + 1).map(lambda row: {"a": row["z"]})
    ),
    "1,024 rows": lambda ds: ds.map_batches(
        lambda batch: {"y": batch["c1"] * SCALE[0]}, batch_size=1024
    ),
}


def write(folder: Path, rows: int) -> Path:
    """A file of forty columns of doubles."""
    draw = np.random.default_rng(0)
    table = pa.table({f"c{number}": draw.random(rows) for number in range(COLUMNS)})
    pq.write_table(table, folder / "wide.parquet", row_group_size=GROUP)
    return folder


def opened(folder: Path, name: str, rules: list[str]) -> Dataset:
    """The pipeline ``name`` over the file, without ``rules``."""
    made = PIPELINES[name](dml.read_parquet(folder)).batch(BATCH)
    return made.with_options(telemetry_dir="off", disable_rules=rules)


def run(ds: Dataset) -> tuple[float, int]:
    """Seconds until the last batch, and the bytes that were fetched."""
    started = time.perf_counter()
    iterator = iter(ds)
    for _ in iterator:
        pass
    spent = time.perf_counter() - started
    return spent, iterator.stats().summary["bytes_read"]


def test_columns_that_nothing_looks_up_cost_no_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path, 4 * GROUP)
    for name in PIPELINES:
        some, every = (run(opened(folder, name, rules))[1] for rules in ([], EVERYTHING))
        needed = 2 if "filter" in name or "columns" in name else 1
        assert some * COLUMNS < every * needed * 1.1, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200_000)
    given = parser.parse_args()
    print("| a function of | its columns | all | of it | bytes |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as place:
        folder = write(Path(place), given.rows)
        for name in PIPELINES:
            sets = [opened(folder, name, rules) for rules in ([], EVERYTHING)]
            turns = [[run(ds) for ds in sets] for _ in range(given.turns)]
            some, every = (statistics.median(turn[i][0] for turn in turns) for i in (0, 1))
            share = turns[0][0][1] / turns[0][1][1]
            print(f"| {name} | {some:.3f} s | {every:.3f} s | {some / every:.2f} | {share:.3f} |")


if __name__ == "__main__":
    main()
