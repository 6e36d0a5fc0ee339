"""What ``timeout=`` costs: the same cheap functions with and without a limit of their calls.

    python benchmarks/bench_timeout.py            # --rows 100000 by default

Wall-clock time of whole runs in the caller's thread, in turn, and the best of five counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import dml
from dml.api.dataset import Dataset

OPTIONS: dict[str, Any] = {"executor": "sync", "telemetry_dir": "off", "prefetch": 0}
TURNS = 5
Row = dict[str, Any]


def text(row: Row) -> Row:
    return {"x": f"{row['id']:04d}"}


def some(row: Row) -> bool:
    return hash(f"{row['id']}") % 2 == 0


def drawn(_row: Row, rng: Any) -> Row:
    return {"x": rng.random()}


def pair(row: Row) -> Iterator[Row]:
    yield row
    yield row


def batch(given: Row) -> Row:
    return {"x": given["id"] + 1}


class Text:
    """A class as a function."""

    def __call__(self, row: Row) -> Row:
        return text(row)


def written(**how: Any) -> dict[str, tuple[Callable[[Dataset], Dataset], int]]:
    """The pipelines by name, with how many rows make one call."""
    x = {"schema": {"x": "str"}, **how}
    return {
        "map(f)": (lambda ds: ds.map(text, **x), 1),
        "filter(f)": (lambda ds: ds.filter(some, **how), 1),
        "random_map(f)": (lambda ds: ds.random_map(drawn, schema={"x": "f8"}, **how), 1),
        "map(Class)": (lambda ds: ds.map(Text, **x), 1),
        "flat_map(f)": (lambda ds: ds.flat_map(pair, schema={"id": "i8"}, **how), 1),
        "map_batches(f, batch_size=100)": (
            lambda ds: ds.map_batches(batch, batch_size=100, **how),
            100,
        ),
    }


def seconds(ds: Dataset) -> float:
    """Seconds to make every row, in batches."""
    started = time.perf_counter()
    for _ in ds.batch(4096).with_options(**OPTIONS):
        pass
    return time.perf_counter() - started


def main() -> None:
    """Print microseconds per call, with and without a limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    print("| pipeline | us/call | with timeout=60 | more |\n|---|---:|---:|---:|")
    without, limited = written(), written(timeout=60)
    for name, (plain, each) in without.items():
        best = [float("inf")] * 2
        for _ in range(TURNS):
            for number, make in enumerate((plain, limited[name][0])):
                best[number] = min(best[number], seconds(make(dml.range(rows))))
        one, two = (each * value / rows * 1e6 for value in best)
        print(f"| `{name}` | {one:.2f} | {two:.2f} | {two - one:.2f} |")


if __name__ == "__main__":
    main()
