"""This file measures ten lifted maps in a row beside one map that computes the same.

    python benchmarks/bench_lifted_chain.py [--turns 7] [--rows 3000000]

Each chain and its one function run in turn, in one process; the best of the turns, wall and
processor time. The chains: ten maps of ten columns, ten of one column, and ten with column
expressions (``with_columns``, ``filter``) between them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dml
from dml import col
from dml.api.dataset import Dataset

BATCH, NAMES = 1024, "abcdefghij"

Row = dict[str, Any]


def ten_columns(ds: Dataset) -> Dataset:
    """Ten maps, of which each adds one to a column of its own."""
    ds = ds.map(lambda r: {**r, "a": r["a"] + 1}).map(lambda r: {**r, "b": r["b"] + 1})
    ds = ds.map(lambda r: {**r, "c": r["c"] + 1}).map(lambda r: {**r, "d": r["d"] + 1})
    ds = ds.map(lambda r: {**r, "e": r["e"] + 1}).map(lambda r: {**r, "f": r["f"] + 1})
    ds = ds.map(lambda r: {**r, "g": r["g"] + 1}).map(lambda r: {**r, "h": r["h"] + 1})
    return ds.map(lambda r: {**r, "i": r["i"] + 1}).map(lambda r: {**r, "j": r["j"] + 1})


def all_columns(r: Row) -> Row:
    """Add one to each of the ten columns."""
    return {
        "a": r["a"] + 1, "b": r["b"] + 1, "c": r["c"] + 1, "d": r["d"] + 1, "e": r["e"] + 1,
        "f": r["f"] + 1, "g": r["g"] + 1, "h": r["h"] + 1, "i": r["i"] + 1, "j": r["j"] + 1,
    }  # fmt: skip


def one_column(ds: Dataset) -> Dataset:
    """Ten maps, of which each adds a number to the same column."""
    for _ in range(10):
        ds = ds.map(lambda r: {**r, "a": r["a"] * 3 + 1})
    return ds


def ten_times(r: Row) -> Row:
    """The same column, ten times."""
    a = r["a"]
    for _ in range(10):
        a = a * 3 + 1
    return {**r, "a": a}


def between(ds: Dataset) -> Dataset:
    """Maps and filters by functions, with column expressions between them."""
    ds = ds.map(lambda r: {**r, "a": r["a"] + 1}).map(lambda r: {**r, "b": r["b"] * 2})
    ds = ds.with_columns(c=col("a") + col("b")).map(lambda r: {**r, "d": r["c"] + r["d"]})
    ds = ds.filter(lambda r: r["d"] > 3).map(lambda r: {**r, "e": r["d"] - 1})
    ds = ds.filter(col("e") > 5).map(lambda r: {**r, "f": r["e"] + 1})
    return ds.map(lambda r: {**r, "g": r["f"] + 1}).filter(lambda r: r["g"] > 9)


def values_between(r: Row) -> Row:
    """The columns of ``between``."""
    a, b = r["a"] + 1, r["b"] * 2
    c = a + b
    d = c + r["d"]
    return {**r, "a": a, "b": b, "c": c, "d": d, "e": d - 1, "f": d, "g": d + 1}


CHAINS: dict[str, tuple[Callable[[Dataset], Dataset], Callable[[Dataset], Dataset]]] = {
    "ten columns": (ten_columns, lambda ds: ds.map(all_columns)),
    "one column": (one_column, lambda ds: ds.map(ten_times)),
    "with expressions": (
        between,
        lambda ds: ds.map(values_between).filter(
            lambda r: r["d"] > 3 and r["e"] > 5 and r["g"] > 9
        ),
    ),
}


def source(rows: int) -> Dataset:
    """Ten columns of small integers in memory."""
    draw = np.random.default_rng(0)
    return dml.from_dict({name: draw.integers(0, 100, rows) for name in NAMES})


def run(ds: Dataset) -> tuple[float, float]:
    """Seconds and processor seconds until the last batch."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in ds:
        pass
    return time.perf_counter() - wall, time.process_time() - cpu


def test_chains_and_their_one_function_give_the_same_batches() -> None:
    ds = source(5000)
    for name, ways in CHAINS.items():
        chain, one = (way(ds).batch(BATCH).to_arrow() for way in ways)
        assert chain.equals(one), name
        assert chain.num_rows > 4000, name


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rows", type=int, default=3_000_000)
    given = parser.parse_args()
    ds = source(given.rows)
    print("| chain | ten, wall | one, wall | ratio | ten, cpu | one, cpu | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, ways in CHAINS.items():
        pair = [way(ds).batch(BATCH).with_options(telemetry_dir="off") for way in ways]
        turns = [[run(each) for each in pair] for _ in range(given.turns + 2)][2:]
        figures = []
        for kind in (0, 1):  # wall, cpu
            ten, one = (min(turn[i][kind] for turn in turns) for i in (0, 1))
            figures += [f"{ten:.3f} s", f"{one:.3f} s", f"{ten / one:.2f}"]
        print(f"| {name} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
