"""This file measures what a partition costs beside its work: scheduling, cutting, handing over.

    python benchmarks/bench_scheduling.py

Twenty thousand partitions of one row each, one per task, through driver, stage and stream; what is
left of the time per partition when there is nothing to compute. The promise is 60 microseconds.
"""

from __future__ import annotations

import time

import pytest

import dml
from dml.dataset import Dataset

PARTITIONS = 20_000
PROMISED_US = 60


def pipeline(executor: str, workers: int) -> Dataset:
    """A partition per row."""
    return dml.range(PARTITIONS, atom_rows=1).with_options(
        executor=executor,
        num_workers=workers,
        target_partition_bytes=1,
        memory_limit="64MiB",
        telemetry_dir="off",
    )


def drain(ds: Dataset) -> int:
    """Deliver everything; how many rows there were."""
    return sum(1 for _ in ds)


def per_partition_us(executor: str, workers: int) -> tuple[float, float]:
    """Microseconds per partition, the best of three: elapsed, and of all processors together."""
    elapsed, used = [], []
    for _ in range(3):
        started, cpu = time.perf_counter(), time.process_time()
        assert drain(pipeline(executor, workers)) == PARTITIONS
        elapsed.append(time.perf_counter() - started)
        used.append(time.process_time() - cpu)
    return min(elapsed) / PARTITIONS * 1e6, min(used) / PARTITIONS * 1e6


@pytest.mark.parametrize(("executor", "workers"), [("sync", 1), ("threads", 1), ("threads", 2)])
def test_a_partition_costs_little(benchmark: object, executor: str, workers: int) -> None:
    rows = benchmark(drain, pipeline(executor, workers))  # type: ignore[operator]
    assert rows == PARTITIONS


def main() -> None:
    for executor, workers in (("sync", 1), ("threads", 1), ("threads", 2)):
        elapsed, used = per_partition_us(executor, workers)
        print(
            f"{executor} x {workers}: {used:.0f} us of processor a partition, {elapsed:.0f} us"
            f" elapsed (promised: {PROMISED_US})"
        )


if __name__ == "__main__":
    main()
