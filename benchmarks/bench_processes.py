"""This file measures what crossing to processes of this host costs, beside threads.

    python benchmarks/bench_processes.py

Partitions of rising size are made by a function over whole batches that does next to nothing, so
that what is measured is the way: schedule, order, slice, parcel, delivery. Then a row function
that holds Python's lock, where processes should win; then how long workers take to start.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml.api.dataset import Dataset
from dml.exec.delivery.meter import Tallies
from dml.exec.drivers.processes import Processes
from dml.exec.drivers.threads import Threads
from dml.exec.memory.spill import DiskSpill
from dml.exec.process.worker_pool import ALL, POOL
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import PartitionSizes, TaskList
from dml.expr.flow import At
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.optimize.phases import optimize

COLUMNS, WORKERS, REPEATS = 8, 2, 5
KIB, MIB = 1 << 10, 1 << 20


def job_of(ds: Dataset) -> Job:
    """The stage of a pipeline, one partition per unit."""
    plan = optimize(ds._node, 0).plan  # noqa: SLF001 (below the public doors)
    at = At(0, 0, KernelTiers(Path(tempfile.gettempdir()), "numpy"), {}, DiskSpill, MIB)
    return Job(plan.stage, at, PartitionSizes(1, 1 << 40))


def drained(job: Job, driver: str) -> tuple[float, int]:
    """Seconds to take every partition, and how many there were."""
    tallies = Tallies()
    tasks: Any = TaskList(0, job.reading.places, 1, 0)
    begin = time.perf_counter()
    if driver == "processes":
        feed = Processes().open(tasks, job, tallies, slots=WORKERS)
    else:
        feed = Threads().open(tasks, job.starts(tallies.mine), slots=WORKERS)
    count = 0
    while (outcome := feed.next()) is not None:
        count += 1
        assert outcome.rows
    return time.perf_counter() - begin, count


def best(work: Callable[[], tuple[float, int]]) -> tuple[float, int]:
    """The quickest of some repetitions, after one to warm up."""
    work()
    return min(work() for _ in range(REPEATS))


def crossing(nbytes: int, total: int = 400 * MIB) -> str:
    """A line of the table: partitions of ``nbytes`` bytes, ``total`` bytes of them or so."""
    rows = max(1, nbytes // (8 * COLUMNS))
    partitions = max(20, min(1000, total // nbytes))
    first = np.arange(rows * partitions, dtype=np.float64)
    ds = dml.from_numpy({f"x{i}": first for i in range(COLUMNS)}, atom_rows=rows)
    ds = ds.with_columns(x0=dml.col("x0") + 1)
    job, found = job_of(ds), []
    for driver in ("threads", "processes"):
        seconds, count = best(lambda driver=driver: drained(job, driver))  # type: ignore[misc]
        each = seconds / count
        found.append(f"{each * 1e6:9.0f} us {nbytes / each / 1e6:9.0f} MB/s")
    return f"{nbytes // KIB:8} KiB {found[0]} {found[1]}"


def busy(row: dict[str, Any]) -> dict[str, Any]:
    """Holds Python's lock for some microseconds."""
    words = [str(row["n"] * i) for i in range(20)]
    return {"n": row["n"], "letters": len(" ".join(words))}


def rows(folder: Path, executor: str, count: int = 200_000) -> float:
    """Rows per second of a function that holds Python's lock."""
    path = folder / "n.parquet"
    if not path.exists():
        pq.write_table(pa.table({"n": np.arange(count)}), path, row_group_size=5000)
    ds = dml.read_parquet(path).map(busy).batch(1000)
    ds = ds.with_options(executor=executor, num_workers=WORKERS, telemetry_dir="off")
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        assert sum(len(batch["n"]) for batch in ds) == count
        seconds.append(time.perf_counter() - begin)
    return count / min(seconds)


def start() -> float:
    """Seconds from nothing to the first row."""
    while ALL:  # those of the run before, as they come back
        POOL.close()
        gc.collect()
    ds = dml.range(10).map(busy_number)
    begin = time.perf_counter()
    next(iter(ds.with_options(executor="processes", num_workers=1, telemetry_dir="off")))
    return time.perf_counter() - begin


def busy_number(row: dict[str, Any]) -> dict[str, Any]:
    """As ``busy``, over a range."""
    return busy({"n": row["id"]})


def main() -> None:
    """Print the tables."""
    print(f"{WORKERS} workers\n{'partition':>12} {'threads':>27} {'processes':>27}")
    for nbytes in (KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB):
        print(crossing(nbytes))
    with tempfile.TemporaryDirectory() as folder:
        for executor in ("threads", "processes"):
            print(f"row function, {executor}: {rows(Path(folder), executor):,.0f} rows/s")
    print(f"first row from new workers after {min(start() for _ in range(3)):.2f} s")


def test_processes_are_measured(tmp_path: Path) -> None:
    assert "MB/s" in crossing(MIB, 40 * MIB)
    assert rows(tmp_path, "processes", 20_000) > 0


if __name__ == "__main__":
    main()
