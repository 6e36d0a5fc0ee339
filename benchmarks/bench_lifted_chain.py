"""This file measures ten lifted maps in a row beside one map that computes the same.

    python benchmarks/bench_lifted_chain.py [--turns 7] [--rows 3000000]

Each chain, the same with each function in a pass of its own, and its one function run in turn, in
one process; the best of the turns, wall and processor time. The chains: ten maps of a number
(``range``, six times the rows), ten maps of ten columns, ten of one of ten columns, and ten
functions with column expressions (``with_columns``, ``filter``) between them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.expr.node import Node
from dml.ops.row.lifted_chain import LiftedChain

BATCH, NAMES = 1024, "abcdefghij"
TOGETHER = LiftedChain.of
WARM_UP = 8  # turns until kernels are compiled

Row = dict[str, Any]


def one_number(ds: Dataset) -> Dataset:
    """Ten maps of rows that are one number."""
    for _ in range(10):
        ds = ds.map(lambda r: {"a": r["a"] * 3 + 1})
    return ds


def number_ten_times(r: Row) -> Row:
    """The number, ten times."""
    a = r["a"]
    for _ in range(10):
        a = a * 3 + 1
    return {"a": a}


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
    "one number": (one_number, lambda ds: ds.map(number_ten_times)),
    "ten columns": (ten_columns, lambda ds: ds.map(all_columns)),
    "one column": (one_column, lambda ds: ds.map(ten_times)),
    "with expressions": (
        between,
        lambda ds: ds.map(values_between).filter(
            lambda r: r["d"] > 3 and r["e"] > 5 and r["g"] > 9
        ),
    ),
}


def source(name: str, rows: int) -> Dataset:
    """A range, or ten columns of small integers in memory."""
    if name == "one number":
        return dml.range(6 * rows).rename({"id": "a"})
    draw = np.random.default_rng(0)
    return dml.from_dict({name: draw.integers(0, 100, rows) for name in NAMES})


def apart(_: Sequence[Node]) -> None:
    """In place of ``LiftedChain.of``: no operators are computed together."""


def run(ds: Dataset, *, together: bool = True) -> tuple[float, float]:
    """Seconds and processor seconds until the last batch."""
    way = staticmethod(TOGETHER if together else apart)
    LiftedChain.of = way  # type: ignore[method-assign,assignment]
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in ds:
        pass
    return time.perf_counter() - wall, time.process_time() - cpu


def test_chains_and_their_one_function_give_the_same_batches() -> None:
    for name, ways in CHAINS.items():
        ds = source(name, 5000)
        chain, one = (way(ds).batch(BATCH).to_arrow() for way in ways)
        assert chain.equals(one), name
        assert chain.num_rows > 4000, name


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rows", type=int, default=3_000_000)
    given = parser.parse_args()
    print("| chain | seconds of | one function | ten | ratio | ten, one by one | ratio |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name, ways in CHAINS.items():
        ds = source(name, given.rows)
        ten, one = (way(ds).batch(BATCH).with_options(telemetry_dir="off") for way in ways)
        turns = [
            (run(one), run(ten), run(ten, together=False)) for _ in range(WARM_UP + given.turns)
        ][WARM_UP:]
        for kind, of in enumerate(("wall", "processor")):
            base, chain, each = (min(turn[i][kind] for turn in turns) for i in range(3))
            figures = f"{base:.3f} | {chain:.3f} | {chain / base:.2f} | {each:.3f}"
            print(f"| {name} | {of} | {figures} | {each / base:.2f} |")


if __name__ == "__main__":
    main()
