"""This file measures what Dask costs beside the work, and what the client does meanwhile.

    python benchmarks/bench_dask.py

First a run of a minute: two thousand slices of 50 ms on two workers, sleeping, so that the work is
the same whatever else the machine does. What the workers' time holds beside the work is the
overhead, in time; beside it stands the client's processor time. Then half as many with a task of
Dask for each, which dml would not do by itself. Last, tens of thousands of 2 ms, during which the
client's memory is read again and again: with less work partitions would wait for the client, and
take the memory that they may.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import distributed
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # for tests/processes.py

import dml
from dml.cluster import placement
from tests.processes import cluster_of_processes

WORKERS, TASKS, WORK_S = 2, 2000, 0.05
BRIEF, BRIEF_S, READINGS = 40_000, 0.002, 40
PROMISED_MS, PROMISED_SHARE = 4.0, 1 / 3
PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def started() -> Iterator[distributed.Client]:
    """A client of a scheduler and of workers with a thread each, all processes of their own."""
    with (
        cluster_of_processes(WORKERS) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(WORKERS)
        yield client


def worked(batch: dict[str, np.ndarray], seconds: float) -> dict[str, np.ndarray]:
    """Takes ``seconds``, and says how long it took in truth."""
    begin = time.perf_counter()
    if seconds:
        time.sleep(seconds)
    return {"id": batch["id"], "seconds": np.array([time.perf_counter() - begin])}


def pipeline(client: distributed.Client, tasks: int, seconds: float) -> dml.Dataset:
    """One row, and one slice, for each task."""
    ds = dml.range(tasks, atom_rows=1)
    ds = ds.map_batches(lambda batch: worked(batch, seconds), fingerprint="worked")
    return ds.with_options(scheduler=client, telemetry_dir="off", target_partition_bytes=1)


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@dataclass(frozen=True)
class Seen:
    """A run: per slice what is not work, and the client's processor time."""

    tasks: int
    dask_tasks: int
    wall: float
    worked: float
    client: float

    @property
    def overhead_ms(self) -> float:
        """Of a worker's time, for each slice."""
        return (self.wall * WORKERS - self.worked) / self.tasks * 1e3

    @property
    def client_ms(self) -> float:
        """Processor time of the client for a slice, whatever else the machine does."""
        return self.client / self.tasks * 1e3

    @property
    def share(self) -> float:
        """Of one processor."""
        return self.client / self.wall


def run(client: distributed.Client, tasks: int, seconds: float) -> Seen:
    """One run from the first row to the last."""
    begun = submitted(client)
    rows = iter(pipeline(client, tasks, seconds).epoch(0))
    start, cpu = time.perf_counter(), time.process_time()
    took = [float(row["seconds"]) for row in rows]
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    assert len(took) == tasks
    return Seen(tasks, submitted(client) - begun, wall, sum(took), used)


def submitted(client: distributed.Client) -> int:
    """How many tasks this client has given to Dask so far, as its hub numbers them."""
    hub: Any = client.extensions.get("dml")
    return next(hub.tickets) if hub is not None else 0


def memory(client: distributed.Client, tasks: int) -> tuple[float, int, list[int]]:
    """Bytes by which the client grows in 10,000 slices, tasks of Dask, and what was read."""
    begun, found, at = submitted(client), list[int](), list[int]()
    step = max(1, tasks // READINGS)
    for number, _ in enumerate(pipeline(client, tasks, BRIEF_S).epoch(0)):
        if number % step == 0:
            gc.collect()
            at.append(number)
            found.append(resident())
    late = len(at) // 3  # what libraries allocate once is there by then
    slope = float(np.polyfit(at[late:], found[late:], 1)[0]) if len(at) > 5 else 0.0
    return slope * 10_000, submitted(client) - begun, found


def shown(seen: Seen) -> str:
    """A line of the table."""
    return (
        f"{seen.tasks:6} slices of {seen.worked / seen.tasks * 1e3:5.1f} ms in"
        f" {seen.dask_tasks:6} tasks of Dask, {seen.wall:6.1f} s: {seen.overhead_ms:6.2f} ms of"
        f" overhead a slice (promised {PROMISED_MS:g}), client {seen.client_ms:.2f} ms of processor"
        f" a slice, {seen.share:.2f} of a core (promised {PROMISED_SHARE:.2f})"
    )


def main() -> None:
    with started() as client:
        run(client, 50, 0.0)
        print(shown(run(client, TASKS, WORK_S)), flush=True)
        with patch.object(placement, "TASK_S", 0.0):
            print(shown(run(client, TASKS // 2, WORK_S)), flush=True)
        slope, tasks, found = memory(client, BRIEF)
        print(
            f"{BRIEF} slices in {tasks} tasks: client {found[0] / 1e6:.0f} MB at first,"
            f" {found[-1] / 1e6:.0f} MB at last, {slope / 1e6:+.2f} MB per 10,000 slices"
        )


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning")
def test_dask_is_measured() -> None:
    with started() as client:
        assert run(client, 20, 0.01).worked > 0.2
        slope, _, found = memory(client, 2 * READINGS)
        assert np.isfinite(slope)
        assert len(found) == READINGS


if __name__ == "__main__":
    main()
