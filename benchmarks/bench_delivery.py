"""This file measures what lies between a ready batch and the caller, and small things whole.

    python benchmarks/bench_delivery.py

A batch is ready when its partition is: workers have done their part, and the consumer, who is slow,
waits for nothing. Promised: 50 microseconds for a batch of 40 columns, 8 for one of one column.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import pytest

import dml
from dml.api.dataset import Dataset
from dml.kernels.compiled import tier_choice
from dml.kernels.rows import permutation
from dml.physical import operators

ROWS, WIDE = 1024, 40
OPTIONS: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 1}


def wide() -> Dataset:
    """Batches of 40 columns of float64."""
    columns = {f"c{i}": np.random.default_rng(i).random(200 * ROWS) for i in range(WIDE)}
    return dml.from_numpy(columns).batch(ROWS).with_options(**OPTIONS)


def narrow() -> Dataset:
    """Batches of one column of int64."""
    return dml.range(400 * ROWS).batch(ROWS).with_options(**OPTIONS)


def next_us(ds: Dataset) -> float:
    """Median microseconds of ``next()`` for a consumer that leaves the workers time."""
    spent = []
    for batch in iter(ds):
        del batch
        break
    it = iter(ds)
    next(it)
    time.sleep(0.2)
    while True:
        started = time.perf_counter()
        batch = next(it, None)  # type: ignore[arg-type]
        spent.append(time.perf_counter() - started)
        if batch is None:
            return statistics.median(spent) * 1e6


def whole_us(ds: Dataset) -> tuple[float, float]:
    """Microseconds an element, everything included, the best of three: elapsed, processor."""
    elapsed, used = [], []
    for _ in range(3):
        started, cpu = time.perf_counter(), time.process_time()
        count = sum(1 for _ in ds)
        elapsed.append((time.perf_counter() - started) / count)
        used.append((time.process_time() - cpu) / count)
    return min(elapsed) * 1e6, min(used) * 1e6


def mapped_and_filtered(rows: int) -> Dataset:
    """Batches of a proven map and filter."""
    numbers = dml.range(rows).map(lambda row: {"x": row["id"] * 2 + 1})
    return numbers.filter(lambda row: row["x"] % 3 == 0).batch(ROWS).with_options(**OPTIONS)


def compile_lifted() -> None:
    """Compile the kernel of ``lifted``, which otherwise earlier runs on the machine decide."""
    for _ in range(5):
        for _ in mapped_and_filtered(60_000_000):
            pass
        shared = tier_choice._SHARED.values()  # noqa: SLF001 counts of this process
        if any(tiers.counts.compiled for tiers in shared):
            return


def lifted(units: int) -> tuple[float, float]:
    """Ns a number of a proven map and filter in batches, so many atoms as one block."""
    ds = mapped_and_filtered(10_000_000)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "FILTERED", units)
        for _ in range(2):
            started, cpu = time.perf_counter(), time.process_time()
            sum(1 for _ in ds)
            found.append((time.perf_counter() - started, time.process_time() - cpu))
    return min(each[0] for each in found) * 100, min(each[1] for each in found) * 100


# A dict that anybody may change: functions that look into it are called for every row.
BY = {"times": 2, "modulus": 3}


def double(row: dict[str, int]) -> dict[str, int]:
    """A map that has to be called."""
    return {"x": row["id"] * BY["times"] + 1}


def third(row: dict[str, int]) -> bool:
    """A filter that has to be called."""
    return row["x"] % BY["modulus"] == 0


def bare(rows: int) -> int:
    """The same calls from a loop, in batches."""
    held: list[int] = []
    batches = 0
    for i in range(rows):
        row = double({"id": i})
        if third(row):
            held.append(row["x"])
            if len(held) == ROWS:
                batches += len(np.array(held, dtype=np.int64)) > 0
                held = []
    return batches


def called_ns(rows: int = 500_000) -> tuple[float, float]:
    """Processor ns a row of true calls, by dml and by a bare loop, the best of turns."""
    ds = dml.range(rows).map(double).filter(third).batch(ROWS).with_options(**OPTIONS)
    found = []
    for _ in range(7):
        started = time.process_time()
        sum(1 for _ in ds)
        between = time.process_time()
        bare(rows)
        found.append((between - started, time.process_time() - between))
    ours, loop = (min(each) for each in zip(*found, strict=True))
    return ours / rows * 1e9, loop / rows * 1e9


def ordered_ns(least: int) -> float:
    """Processor ns a row of the order of a window, by counting keys from ``least`` of them on."""
    best = float("inf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "COUNTED_LEAST", least)
        for _ in range(20):
            started = time.thread_time()
            permutation.window_permutation(7, 1 << 16)
            best = min(best, time.thread_time() - started)
    return best / (1 << 16) * 1e9


def test_small_batches_cost_little(benchmark: Any) -> None:
    assert benchmark(lambda: sum(1 for _ in narrow())) == 400


@pytest.mark.parametrize("make", [wide, narrow])
def test_a_ready_batch_arrives(benchmark: Any, make: Any) -> None:
    assert benchmark(next_us, make()) > 0


def main() -> None:
    print(f"next() of a ready batch, 40 columns: {next_us(wide()):.1f} us (promised: 50)")
    print(f"next() of a ready batch, one column: {next_us(narrow()):.1f} us (promised: 8)")
    elapsed, used = whole_us(dml.range(10_000_000).batch(ROWS).with_options(**OPTIONS))
    print(f"range(10M).batch(1024): {elapsed:.1f} us a batch, {used:.1f} us of processor (aim: 10)")
    elapsed, used = whole_us(dml.range(3_000_000).with_options(**OPTIONS))
    print(f"range(3M) by rows: {1 / elapsed:.2f} M rows/s, {1 / used:.2f} by processor (aim: 2)")
    compile_lifted()
    turns = [(lifted(1), lifted(operators.FILTERED)) for _ in range(9)]
    for name, found in zip(("alone", "together"), zip(*turns, strict=True), strict=True):
        elapsed, used = (min(each) for each in zip(*found, strict=True))
        print(f"lifted map and filter, atoms {name}: {elapsed:.2f} ns, {used:.2f} of processor")
    counted, compared = ordered_ns(2048), ordered_ns(1 << 40)
    print(f"order of a window of 65,536: {counted:.0f} ns a row counted, {compared:.0f} compared")
    ours, loop = called_ns()
    print(
        f"true calls: {ours:.0f} ns of processor, bare loop {loop:.0f} ({100 * loop / ours:.0f} %)"
    )


if __name__ == "__main__":
    main()
