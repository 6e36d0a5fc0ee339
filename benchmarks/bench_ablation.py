"""This file measures what each optimisation is worth: whole pipelines with one of them off.

It is `dml bench --ablate` for families of rules, over pipelines of its own.

    make bench ABLATE=1, or python benchmarks/bench_ablation.py [ROWS]

Four pipelines as people write them: a table of 40 columns, text into buckets, functions of rows,
many small maps. Every way to run is warmed up once, then they take turns in one process; the table
has the processor seconds of the best turn, as a multiple of what the whole optimizer takes. As
plain tests, the pipelines deliver the same batches in all ways.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api.ablation import in_turns
from dml.data.stream_hash import stream_hash

ROWS, TURNS, BUDGET_S = 200_000, 5, 55.0
NUMBERS = [f"I{i}" for i in range(1, 14)]
CLASSES = [f"C{i}" for i in range(1, 27)]

# What is switched off: options of a run.
OFF: dict[str, dict[str, Any]] = {
    "nothing": {},
    "map fusion": {"disable_rules": ["map_fusion"]},
    "map+batch fusion": {"disable_rules": ["batch_fusion"]},
    "vectorisation of functions": {"disable_rules": ["lifting"]},
    "predicate push-down": {"disable_rules": ["predicate_pushdown"]},
    "projection push-down": {"disable_rules": ["projection_pushdown"]},
    "shuffle fusion": {"disable_rules": ["shuffle_fusion"]},
    "compiled kernels": {"kernels": "numpy"},
    "all rules": {"optimize": False},
    "all rules and kernels": {"optimize": False, "kernels": "numpy"},
}
USUAL: dict[str, Any] = {"kernels": "compiled", "telemetry_dir": "off"}


@dataclasses.dataclass(frozen=True)
class Work:
    """A pipeline over what a folder holds, and how many of its input rows there are."""

    made: Callable[[Path, int], dml.Dataset]
    written: Callable[[Path, int], None]
    share: float = 1.0


def write_table(folder: Path, rows: int) -> None:
    """Rows by day: numbers with nulls, classes, a label."""
    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "day": np.sort(draw.integers(0, 100, rows)),
        "label": (draw.random(rows) < 0.25).astype(np.int8),
    }
    for i, name in enumerate(NUMBERS):
        values = np.round(draw.lognormal(0, 1 + i / 6, rows) * 64) / 64
        columns[name] = pa.array(values.astype(np.float32), mask=draw.random(rows) < 0.05 + i / 40)
    for name in CLASSES:
        columns[name] = draw.zipf(1.3, rows).clip(0, 2**40).astype(np.int64)
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=max(1, rows // 10))


def table(folder: Path, rows: int) -> dml.Dataset:
    """Scaled numbers and hashed classes of recent rows, shuffled, half of the classes kept."""
    hashed = {name: (col(name) ^ (col(name) >> 16)) & (2**18 - 1) for name in CLASSES}
    return (
        dml.read_parquet(str(folder / "rows.parquet"))
        .with_columns(**{name: col(name).fill_null(0.0).clip(0, None) for name in NUMBERS})
        .with_columns(**{name: col(name).log1p().clip(0, 10) for name in NUMBERS})
        .with_columns(**hashed)
        .filter(col("I1") > 0.8)
        .filter(col("day") >= 50)
        .shuffle(min(65_536, rows), seed=1)
        .batch(8192)
        .with_columns(**{name: col(name).cast("int32", strict=False) for name in CLASSES})
        .select("label", *NUMBERS, *CLASSES[:13])
    )


def write_text(folder: Path, rows: int) -> None:
    """Lines of words, some much longer than others."""
    draw = np.random.default_rng(1)
    words = np.array(["Data", "moves  ", "THROUGH", "\tfused", "kernels", "a", "BATCH", " by "])
    lengths = draw.geometric(0.1, rows).clip(1, 90)
    lines = [" ".join(words[draw.integers(0, len(words), n)]) for n in lengths.tolist()]
    made = {"text": lines, "source": [f"s{i % 7}" for i in range(rows)], "line": range(rows)}
    pq.write_table(pa.table(made), folder / "text.parquet", row_group_size=max(1, rows // 10))


def text(folder: Path, _rows: int) -> dml.Dataset:
    """Lower case, blanks that stand alone, no line of one source; in buckets by length."""
    return (
        dml.read_parquet(str(folder / "text.parquet"))
        .with_columns(text=col("text").str.to_lowercase())
        .with_columns(text=col("text").str.replace_all(r"\s+", " "))
        .with_columns(text=col("text").str.strip_chars())
        .filter(col("text").str.len_bytes() > 3)
        .filter(col("source") != "s3")
        .with_columns(tokens=col("text").str.tokenize_bytes())
        .select("tokens")
        .bucket_by_length("tokens", [32, 64, 128, 256], [512, 256, 128, 64, 32])
    )


def no_files(_folder: Path, _rows: int) -> None:
    """Nothing to write."""


def doubled(row: Mapping[str, Any]) -> dict[str, Any]:
    """A function of one row."""
    return {"x": row["id"] * 2 + 1}


def thirds(row: Mapping[str, Any]) -> bool:
    """A test of one row."""
    return bool(row["x"] % 3 == 0)


def functions(_folder: Path, rows: int) -> dml.Dataset:
    """Python functions, called row by row unless they are proven to be expressions."""
    return dml.range(rows).map(doubled).filter(thirds).batch(1024)


def chained(_folder: Path, rows: int) -> dml.Dataset:
    """Twelve small maps and two filters, over a full shuffle, then batches and one map more."""
    ds = dml.range(rows).with_columns(x=col("id") * 0.5, y=col("id") % 97).shuffle(seed=3)
    for i in range(6):
        ds = ds.with_columns(x=(col("x") + i).sqrt()).with_columns(y=col("y") * 2 - i)
        ds = ds.filter(col("y") % 5 != i) if i % 3 == 0 else ds
    return ds.batch(1024).with_columns(z=(col("x") * col("y")).tanh()).select("x", "z")


WORKS: dict[str, Work] = {
    "table": Work(table, write_table),
    "text": Work(text, write_text, share=0.5),
    "functions of rows": Work(functions, no_files, share=8.0),
    "chained maps": Work(chained, no_files, share=4.0),
}


def each_way(ds: dml.Dataset) -> dict[str, dml.Dataset]:
    """The pipeline with each optimisation off in turn."""
    return {name: ds.with_options(**USUAL | off).epoch(0) for name, off in OFF.items()}


def measured(work: Work, folder: Path, rows: int, until: float) -> dict[str, float]:
    """The least processor seconds of each way, of as many turns as there is time for."""
    rows = int(rows * work.share)
    work.written(folder, rows)
    found = in_turns(each_way(work.made(folder, rows)), TURNS, until=until)
    return {name: turn.cpu_s for name, turn in found.items()}


def main() -> None:
    """Print the table."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    print(f"{os.cpu_count()} processors, load before {os.getloadavg()[0]:.1f}, {rows} rows\n")
    print(f"| without | {' | '.join(WORKS)} |\n{'|---' * (1 + len(WORKS))}|")
    found: dict[str, dict[str, float]] = {}
    for name, work in WORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            until = time.monotonic() + BUDGET_S / len(WORKS)
            found[name] = measured(work, Path(folder), rows, until)
    for off in OFF:
        ratios = [f"{best[off] / best['nothing']:.2f}x" for best in found.values()]
        usual = [f"{best[off] * 1e3:.0f} ms" for best in found.values()]
        print(f"| {off} | {' | '.join(usual if off == 'nothing' else ratios)} |", flush=True)


@pytest.mark.parametrize("name", WORKS)
def test_every_way_delivers_the_same(name: str, tmp_path: Path) -> None:
    work = WORKS[name]
    work.written(tmp_path, 2000)
    ways = each_way(work.made(tmp_path, 2000))
    assert len({stream_hash(list(ds.with_options(kernels="numpy"))) for ds in ways.values()}) == 1


if __name__ == "__main__":
    main()
