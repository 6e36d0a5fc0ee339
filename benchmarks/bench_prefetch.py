"""This file measures what it brings, and costs, that batches are made ahead of the training loop.

    python benchmarks/bench_prefetch.py

Microseconds from one batch to the next: of functions of batches that take so long, for loops that
take so long, with batches made when asked for, as dml decides, and ahead in any case; then of
batches that are handed over many at once, which nothing is to make slower.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import dml
from dml.api.dataset import Dataset

TURNS, LEAST_S = 3, 3.0  # of each case, at least
CHOICES = (0, "auto", 2)
Batch = dict[str, Any]


def sleeping(seconds: float) -> Callable[[Batch], Batch]:
    """A function that waits, as for a disk or another processor."""

    def wait(batch: Batch) -> Batch:
        time.sleep(seconds)
        return batch

    return wait


def computing(seconds: float) -> Callable[[Batch], Batch]:
    """A function that holds Python's lock."""

    def compute(batch: Batch) -> Batch:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass
        return batch

    return compute


def mapped(fn: Callable[[Batch], Batch], batches: int) -> Dataset:
    """So many batches of 64 rows through ``fn``."""
    return dml.range(64 * batches).batch(64).map(fn, fingerprint="work")


def period_us(ds: Dataset, prefetch: Any, step_s: float) -> float:
    """Microseconds a batch, of a whole epoch, with a loop that sleeps for ``step_s``."""
    count, started = 0, time.perf_counter()
    for _ in ds.with_options(prefetch=prefetch, telemetry_dir="off"):
        count += 1
        if step_s:
            time.sleep(step_s)
    return (time.perf_counter() - started) / count * 1e6


CASES: dict[str, tuple[Dataset, float]] = {
    "10 ms sleeping, loop 10 ms": (mapped(sleeping(0.01), 100), 0.01),
    "10 ms computing, loop 10 ms": (mapped(computing(0.01), 100), 0.01),
    "1 ms computing, loop 1 ms": (mapped(computing(0.001), 500), 0.001),
    "150 us computing, loop 0": (mapped(computing(150e-6), 3000), 0.0),
    "30 us computing, loop 0": (mapped(computing(30e-6), 3000), 0.0),
    "range(3M).batch(1024), loop 0": (dml.range(3_000_000).batch(1024), 0.0),
    "range(400k).batch(1024), loop 0": (dml.range(400 * 1024).batch(1024), 0.0),
    "range(500k) by rows, loop 0": (dml.range(500_000), 0.0),
}


def test_batches_are_made_while_the_loop_trains(benchmark: Any) -> None:
    ds = mapped(sleeping(0.01), 20)
    assert benchmark.pedantic(period_us, (ds, "auto", 0.01)) >= 10_000


def main() -> None:
    for name, (ds, step_s) in CASES.items():
        found: dict[Any, list[float]] = {choice: [] for choice in CHOICES}
        until = time.perf_counter() + LEAST_S
        while time.perf_counter() < until or len(found[0]) < TURNS:
            for choice in CHOICES:
                found[choice].append(period_us(ds, choice, step_s))
        each = (f"{choice}: {statistics.median(us):9.2f}" for choice, us in found.items())
        print(f"{name:32}", *each, sep="   ")


if __name__ == "__main__":
    main()
