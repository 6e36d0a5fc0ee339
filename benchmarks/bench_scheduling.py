"""This file measures what a partition costs beside its work: scheduling, cutting, handing over.

    python benchmarks/bench_scheduling.py

First the scheduling alone: empty slices through core and driver, the promise of 60 microseconds.
Then whole runs. Twenty thousand partitions of one row each, one per task, through driver,
stage and stream: what is left of the time per partition when there is nothing to compute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import dml
from dml.api.dataset import Dataset
from dml.exec.drivers.sync import Sync
from dml.exec.drivers.threads import Threads
from dml.exec.tasks.slices import Outcome

PARTITIONS, FEW = 20_000, 2_000  # where it is timed, and where it is only run
PROMISED_US = 60


def empty(_: object) -> Iterator[Outcome]:
    """A unit with one partition that holds nothing."""
    yield Outcome(None, 8, 1, done=True)


def schedule(driver: Sync | Threads, workers: int, partitions: int = PARTITIONS) -> int:
    """Empty slices from a driver, in order; how many came."""
    feed = driver.open(range(partitions), empty, slots=workers)
    came = 0
    while feed.next() is not None:
        came += 1
    feed.close()
    return came


def pipeline(executor: str, workers: int, partitions: int = PARTITIONS) -> Dataset:
    """A partition per row."""
    return dml.range(partitions, atom_rows=1).with_options(
        executor=executor,
        num_workers=workers,
        target_partition_bytes=1,
        memory_limit="64MiB",
        telemetry_dir="off",
    )


def drain(ds: Dataset) -> int:
    """Deliver everything; how many rows there were."""
    return sum(1 for _ in ds)


def per_partition_us(work: Callable[[], int]) -> tuple[float, float]:
    """Microseconds per partition, the best of three: elapsed, and of all processors together.

    On a machine that others use the second says what a partition costs, the first how long it took.
    """
    elapsed, used = [], []
    for _ in range(3):
        started, cpu = time.perf_counter(), time.process_time()
        assert work() == PARTITIONS
        elapsed.append(time.perf_counter() - started)
        used.append(time.process_time() - cpu)
    return min(elapsed) / PARTITIONS * 1e6, min(used) / PARTITIONS * 1e6


@pytest.mark.parametrize(("executor", "workers"), [("sync", 1), ("threads", 1), ("threads", 2)])
def test_a_partition_costs_little(benchmark: Any, executor: str, workers: int) -> None:
    partitions = FEW if benchmark.disabled else PARTITIONS
    assert benchmark(drain, pipeline(executor, workers, partitions)) == partitions


@pytest.mark.parametrize("driver", [Sync(), Threads()], ids=["sync", "threads"])
def test_scheduling_alone(benchmark: Any, driver: Sync | Threads) -> None:
    partitions = FEW if benchmark.disabled else PARTITIONS
    assert benchmark(schedule, driver, 2, partitions) == partitions


def main() -> None:
    drivers: tuple[tuple[str, Sync | Threads, int], ...]
    drivers = (("sync", Sync(), 1), ("threads", Threads(), 1), ("threads", Threads(), 2))
    for name, driver, workers in drivers:
        elapsed, used = per_partition_us(partial(schedule, driver, workers))
        print(
            f"{name} x {workers}: {used:.0f} us of processor a partition, {elapsed:.0f} us elapsed,"
            f" scheduling alone (promised: {PROMISED_US})"
        )
    for executor, _, workers in drivers:
        elapsed, used = per_partition_us(lambda e=executor, w=workers: drain(pipeline(e, w)))  # type: ignore[misc]
        print(
            f"{executor} x {workers}: {used:.0f} us of processor a partition, {elapsed:.0f} us"
            " elapsed, reading and delivery included"
        )


if __name__ == "__main__":
    main()
