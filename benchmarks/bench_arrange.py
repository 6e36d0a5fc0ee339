"""This file measures arrangements: what is chosen against fixed ones, and how long choosing takes.

    python benchmarks/bench_arrange.py

Each pipeline runs in every fixed arrangement and in the one that is chosen once two runs have shown
what its operators take: interleaved, the best of some, in one process. Ratios are to what is usual,
by the wall clock. "Chosen" should be near the best of its line.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from benchmarks.bench_optimize import SHAPES
from dml import col
from dml.api import session
from dml.api.dataset import Dataset
from dml.settings import Settings

WORKERS, REPEATS = 2, 3
CHOICES = ("stages_by_cost", "partitions_by_cost", "executor_by_cost")
WAYS: dict[str, dict[str, Any]] = {
    "usual": {"disable_rules": CHOICES},
    "threads, stages": {"executor": "threads"},
    "processes": {"executor": "processes", "disable_rules": CHOICES},
    "chosen": {},
}


def written(row: dict[str, Any]) -> dict[str, Any]:
    """Python for some microseconds, proven pure and not lifted."""
    x = row["x"]
    return {"t": f"{row['s']} {x} {x:b} {x:x} {x:o} {x:e} {x:,} {x:+} {x:09}"}


def files(folder: Path, rows: int) -> Path:
    """The same rows in one row group, and in forty."""
    table = pa.table({"x": np.arange(rows), "s": [f"text {i % 977} abc" for i in range(rows)]})
    pq.write_table(table, folder / "one.parquet")
    pq.write_table(table, folder / "many.parquet", row_group_size=rows // 40)
    return folder


def cases(folder: Path, rows: int) -> dict[str, Dataset]:
    """Name and pipeline: where stages, sizes or drivers matter, and where they do not."""
    one, many = (dml.read_parquet(str(folder / f"{name}.parquet")) for name in ("one", "many"))
    small = dml.from_numpy({"x": np.arange(rows)}, atom_rows=100)
    text = col("s").str.to_uppercase().str.contains("7")
    return {
        "light numbers, many units": many.select("x").with_columns(y=col("x") * 2).batch(1000),
        "small atoms": small.with_columns(y=col("x") * 2).batch(1000),
        "functions of text, one unit": one.with_columns(t=text).batch(1000),
        "heavy Python, many units": many.map(written).batch(1000),
        "heavy Python, one unit": one.map(written).batch(1000),
    }


def timed(ds: Dataset) -> float:
    """Seconds of one pass."""
    begin = time.perf_counter()
    for _ in ds:
        pass
    return time.perf_counter() - begin


def line(name: str, ds: Dataset, telemetry: str) -> str:
    """A row of the table: seconds as usual, and the others by these."""
    ds = ds.with_options(num_workers=WORKERS, telemetry_dir=telemetry)
    for _ in range(2):  # what history there is
        timed(ds.with_options(disable_rules=CHOICES))
    ds.explain("costs")  # waits until it is known
    runs = {way: ds.with_options(**options) for way, options in WAYS.items()}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(REPEATS):
        for way, each in runs.items():
            best[way] = min(best[way], timed(each))
    ratios = [f"{best[way] / best['usual']:.2f}" for way in runs if way != "usual"]
    told = runs["chosen"].explain("arranged").split("\n")[0].removeprefix("chosen  ")
    return f"| {name} | {best['usual']:.2f} s | {' | '.join(ratios)} | {told} |"


def planning_ms(shape: Callable[[int], Dataset], n: int, runs: int = 5) -> tuple[float, float]:
    """Milliseconds of processor time: of optimising ``n`` operators, of arranging the plan."""
    node = shape(n)._node  # noqa: SLF001 - below the handle is what is measured
    settings = Settings(telemetry_dir="off", num_workers=WORKERS)
    best = (float("inf"), float("inf"))
    for _ in range(runs):
        node.memo.clear()
        started = time.process_time()
        session.optimized(node, settings)
        optimised = time.process_time()
        session.arrangement(node, settings)
        best = min(best[0], optimised - started), min(best[1], time.process_time() - optimised)
    return best[0] * 1e3, best[1] * 1e3


def over_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines of ``bench_optimize`` begin with a file of one unit: there is much to choose."""
    values = np.arange(1_000_000)
    table = {"id": values, "x": values / 7, "y": values / 3, "label": (values % 5).astype(np.int8)}
    pq.write_table(pa.table(table), folder / "narrow.parquet")
    path = str(folder / "narrow.parquet")
    monkeypatch.setattr("benchmarks.bench_optimize.narrow", lambda: dml.read_parquet(path))
    monkeypatch.setattr(
        "dml.exec.streams.plan_run.DEEPEST", 1 << 20
    )  # of operators that are only planned


def test_what_is_measured_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, ds in cases(files(tmp_path, 4000), 4000).items():
        assert name in line(name, ds, str(tmp_path / "told"))
    over_file(tmp_path, monkeypatch)
    assert min(planning_ms(SHAPES["mixed"], 50, runs=1)) > 0


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        print(f"| pipeline | {' | '.join(WAYS)} | arrangement |\n|{'---|' * (len(WAYS) + 2)}")
        rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
        for case, ds in cases(files(folder, rows), rows).items():
            print(line(case, ds, f"{name}/{abs(hash(case))}"), flush=True)
        over_file(folder, patch)
        print("\n| 1000 operators | optimised | arranged |\n|---|---|---|")
        for shape in ("mixed", "dependent", "doubling", "filters"):
            optimised, arranged = planning_ms(SHAPES[shape], 1000)
            print(f"| {shape} | {optimised:.1f} ms | {arranged:.1f} ms |", flush=True)


if __name__ == "__main__":
    main()
