"""This file measures what a run takes of the trainer's own core, with the driver there and apart.

    python benchmarks/bench_driver.py

The training loop holds each batch for a while as one does that waits for a GPU: it sleeps, which
takes no processor, so that what its process uses meanwhile is dml's. Counted is the processor time
of that process, over the time from the first batch to the last; its threads count, its children do
not. The pipeline decodes nothing: rows of 512 floats are scaled by a function of batches that
cannot be lifted, shuffled in windows, and cut into batches. The cluster is a scheduler and workers
in processes of their own (``LocalCluster`` would have its scheduler in the trainer's).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # for tests/processes.py

import dml
from dml.cluster.cluster import close_all
from tests.processes import cluster_of_processes

WORKERS, ATOM, BATCH, WIDTH = 2, 64, 256, 512
BATCHES, STEP_S = 400, 0.05
PROMISED = 0.05


@dataclass(frozen=True)
class Seen:
    """A run: how long it took, what the trainer's process used, how long it waited."""

    batches: int
    wall: float
    used: float
    waited: float

    @property
    def share(self) -> float:
        """Of one core."""
        return self.used / self.wall

    @property
    def each_us(self) -> float:
        """Processor time of the trainer's process for a batch."""
        return self.used / self.batches * 1e6


def scaled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Two kibibytes a row, as of an image or an embedding."""
    wave = np.linspace(0.0, 1.0, WIDTH, dtype=np.float32)
    return {"id": batch["id"], "x": np.sin(batch["id"][:, None].astype(np.float32) * wave)}


def pipeline(batches: int, **options: Any) -> dml.Dataset:
    """Batches of half a megabyte, each of four tasks or more."""
    ds = dml.range(batches * BATCH, atom_rows=ATOM)
    ds = ds.map_batches(scaled, fingerprint="scaled").shuffle(4 * BATCH, seed=1).batch(BATCH)
    small = {"target_partition_bytes": "128KiB", "memory_limit": "512MiB"}
    return ds.with_options(telemetry_dir="off", **small, **options)


def trained(ds: dml.Dataset, step_s: float) -> Seen:
    """One epoch by a loop that takes ``step_s`` for a batch, and no processor."""
    batches = iter(ds)
    next(batches)
    count, waited = 0, 0.0
    start, cpu = time.perf_counter(), time.process_time()
    asked = start
    for batch in batches:
        waited += time.perf_counter() - asked
        assert batch["x"].shape[1] == WIDTH
        count += 1
        time.sleep(step_s)
        asked = time.perf_counter()
    used, wall = time.process_time() - cpu, time.perf_counter() - start
    return Seen(count, wall, used, waited)


@contextmanager
def clustered() -> Iterator[str]:
    """The address of a scheduler with workers, none of them in this process."""
    with cluster_of_processes(WORKERS) as cluster:
        yield cluster.scheduler_address


def compared(name: str, batches: int, step_s: float, **options: Any) -> Iterator[str]:
    """Rows of the table: the driver here, and apart; after an epoch that starts processes."""
    for driver in ("here", "process"):
        ds = pipeline(batches, driver=driver, **options)
        trained(ds.take(min(batches, 8)), 0.0)
        seen = trained(ds.epoch(0), step_s)
        yield (
            f"| {name} | {driver} | {seen.wall:.1f} s | {seen.waited:.1f} s |"
            f" {seen.each_us:.0f} us | {seen.share:.1%} |"
        )


def table(batches: int, step_s: float) -> Iterator[str]:
    """What is measured, as Markdown."""
    yield "| workers | driver | time | waited | trainer's processor, a batch | share of its core |"
    yield "|---|---|---|---|---|---|"
    yield from compared("threads", batches, step_s, executor="threads", num_workers=WORKERS)
    yield from compared("processes", batches, step_s, executor="processes", num_workers=WORKERS)
    with clustered() as address:
        yield from compared("cluster", batches, step_s, scheduler=address)
        close_all()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--batches", type=int, default=BATCHES)
    asked.add_argument("--step", type=float, default=STEP_S, help="seconds a batch is held")
    found = asked.parse_args()
    size = BATCH * WIDTH * 4 / 1e6
    print(
        f"{found.batches} batches of {size:.1f} MB, each held for {found.step * 1e3:g} ms;", end=""
    )
    print(f" promised: under {PROMISED:.0%} of the trainer's core with driver=process")
    for line in table(found.batches, found.step):
        print(line, flush=True)


@pytest.mark.cluster
def test_both_drivers_are_measured() -> None:
    lines = list(compared("processes", 12, 0.0, executor="processes", num_workers=1))
    assert len(lines) == 2
    assert "process" in lines[1]


if __name__ == "__main__":
    main()
