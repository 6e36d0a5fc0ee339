"""This file measures columns that are decoded late: a filter on one column over a wide table.

    python -m benchmarks.bench_late

Each line is the same query with and without the rule, taking turns in one process; processor time
of the process, the best of several. `shared` is several pipelines at once against one by one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml.api.dataset import Dataset

ROWS, GROUP, TIMES = 1_000_000, 20_000, 5
OFF = {"disable_rules": ["filter_columns_first", "run_shared_once"]}
WORDS = ("a crate of tea", "The  Red kettle", "some words, and more", "nothing")


def written(folder: Path) -> np.ndarray:
    """Keys that are there once and in no order, 20 numbers, a text; the keys."""
    draw = np.random.default_rng(0)
    keys = draw.permutation(ROWS)
    numbers = {f"c{i}": draw.random(ROWS) for i in range(20)}
    text = [WORDS[i % len(WORDS)] for i in range(ROWS)]
    table = pa.table({"k": keys, **numbers, "t": text})
    pq.write_table(table, folder / "wide.parquet", row_group_size=GROUP)
    return keys


def spent(work: Callable[[], Any]) -> float:
    """Seconds of processor time."""
    started = time.process_time()
    work()
    return time.process_time() - started


def ratio(ways: Sequence[Callable[[], Any]]) -> tuple[float, float]:
    """The best of each way, in turns."""
    best = [float("inf")] * len(ways)
    for _ in range(TIMES):
        best = [min(known, spent(way)) for known, way in zip(best, ways, strict=True)]
    return best[0], best[1]


def line(name: str, best: tuple[float, float]) -> str:
    """One row of the table."""
    return f"| {name} | {best[0] * 1e3:.0f} | {best[1] * 1e3:.0f} | {best[1] / best[0]:.2f} |"


def one_by_one(datasets: Sequence[Dataset]) -> list[pa.Table]:
    """Separate runs."""
    return [each.to_arrow() for each in datasets]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        keys = written(Path(name))
        ds = dml.read_parquet(name).with_options(telemetry_dir="off")
        queries = {
            "one key": dml.col("k") == int(keys[ROWS // 3]),
            "three keys": dml.col("k").is_in([int(keys[i]) for i in (5, ROWS // 2, ROWS - 9)]),
            "a row of each group": dml.col("c0") < 1 / GROUP,
            "half of the rows": dml.col("c0") < 0.5,
        }
        print("| query | with, ms of processor | without | ratio |\n|---|---|---|---|")
        for query, predicate in queries.items():
            with_ = ds.filter(predicate)
            best = ratio([with_.to_arrow, with_.with_options(**OFF).to_arrow])
            print(line(query, best))
        clean = ds.with_columns(w=dml.col("t").str.to_lowercase().str.tokenize_words())
        ends = [
            clean.filter(dml.col("c0") < 0.1).select("w"),
            clean.select(n=dml.col("w").list.len()),
            clean.select("w", "c1").take(ROWS // 2),
        ]
        best = ratio([partial(dml.collect_all, ends), partial(one_by_one, ends)])
        print(line("shared: three ends of one cleaned text", best))


if __name__ == "__main__":
    main()
