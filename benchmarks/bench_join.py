"""This file measures joins against Polars and pandas, each in one thread, from and to memory.

    POLARS_MAX_THREADS=1 python benchmarks/bench_join.py

A left side of three million rows looks up 100,000 rows of the right side; the best of three runs in
turn, and each makes one table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import dml

LEFT_ROWS, RIGHT_ROWS, RUNS = 3_000_000, 100_000, 3
OPTIONS: dict[str, Any] = {"executor": "sync", "telemetry_dir": "off", "prefetch": 0}


def tables(keys: np.ndarray | pa.Array, matching: float) -> tuple[pa.Table, pa.Table]:
    """Both sides; of the left rows the share ``matching`` has a key of the right side."""
    draw = np.random.default_rng(0)
    known = pa.array(keys[: int(len(keys) * matching)])
    right = pa.table({"k": known, "v": draw.random(len(known))})
    picked = pa.array(keys).take(pa.array(draw.integers(0, len(keys), LEFT_ROWS)))
    return pa.table({"k": picked, "x": draw.random(LEFT_ROWS)}), right


def cases() -> dict[str, tuple[pa.Table, pa.Table, str]]:
    """Name, both sides, how."""
    draw = np.random.default_rng(1)
    near = draw.permutation(RIGHT_ROWS)
    far = draw.choice(2**62, RIGHT_ROWS, replace=False)
    words = pa.array([f"user-{n}" for n in near])
    return {
        "int64, near each other, inner": (*tables(near, 1.0), "inner"),
        "int64, anywhere, inner": (*tables(far, 1.0), "inner"),
        "int64, anywhere, half match, left": (*tables(far, 0.5), "left"),
        "text, inner": (*tables(words, 1.0), "inner"),
    }


def with_dml(left: pa.Table, right: pa.Table, how: str) -> int:
    """Rows that the join has."""
    ds = dml.from_arrow(left).join(dml.from_arrow(right), "k", how=how)
    return int(ds.with_options(**OPTIONS).to_arrow().num_rows)


def with_polars(left: Any, right: Any, how: Any) -> int:
    """The same; frames were made before."""
    found = left.join(right, on="k", how=how, maintain_order="left_right")
    return int(found.height)


def with_pandas(left: Any, right: Any, how: Any) -> int:
    """The same."""
    return len(left.merge(right, on="k", how=how))


def best_s(run: Callable[[], int]) -> float:
    """Seconds of the best run."""
    spent = []
    for _ in range(RUNS):
        started = time.perf_counter()
        run()
        spent.append(time.perf_counter() - started)
    return min(spent)


def main() -> None:
    """Print the table."""
    import pandas as pd  # noqa: PLC0415
    import polars as pl  # noqa: PLC0415

    threads = pl.thread_pool_size()
    print(f"polars {pl.__version__} with {threads} thread, pandas {pd.__version__};", end=" ")
    print(f"load before: {os.getloadavg()[0]:.1f}")
    print("| keys | dml | Polars | pandas |\n|---|---|---|---|")
    for name, (left, right, how) in cases().items():
        frames = [
            (pl.from_arrow(left), pl.from_arrow(right)),
            (left.to_pandas(), right.to_pandas()),
        ]
        runs = [
            lambda one=left, two=right, how=how: with_dml(one, two, how),
            lambda pair=frames[0], how=how: with_polars(*pair, how),
            lambda pair=frames[1], how=how: with_pandas(*pair, how),
        ]
        assert len({run() for run in runs}) == 1, name
        shown = [f"{LEFT_ROWS / best_s(run) / 1e6:.1f}" for run in runs]
        print(f"| {name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
