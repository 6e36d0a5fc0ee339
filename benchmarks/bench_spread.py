"""This file measures a sort, a full shuffle and groups by workers of a cluster, and in the client.

    python benchmarks/bench_spread.py [--megabytes 1024] [--limit 256MiB] [--workers 2]

The cluster is one of worker processes on this host, which are there and have loaded what they need
before the clock runs. Every process is watched every 100 ms, by itself, as the memory contract has
it (dml/exec/memory/memory_meter.py); the table has the most that any of the workers had, and the
client.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import dml
from benchmarks.bench_all_to_all import MIB, write
from dml import col
from dml.exec.memory.memory_meter import anonymous_bytes, counted_bytes

SAMPLE_S = 0.1
WAYS: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "sort": lambda ds: ds.sort("x0"),
    "sort by text": lambda ds: ds.sort("name"),
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "group_by": lambda ds: ds.group_by("k2").agg(
        n=dml.len(), mean=col("x0").mean(), most=col("y0").max()
    ),
}


@contextmanager
def watched(*looks: Callable[[], int | None]) -> Iterator[list[int]]:
    """The most that each of ``looks`` has told meanwhile."""
    most, ended = [0] * len(looks), threading.Event()

    def look() -> None:
        while not ended.wait(SAMPLE_S):
            most[:] = [max(seen, each() or 0) for seen, each in zip(most, looks, strict=True)]

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def used(client: Client) -> float:
    """Processor seconds of this process and all workers so far."""
    return time.process_time() + sum(client.run(time.process_time).values())


def ways(folder: Path, client: Client, given: argparse.Namespace) -> Iterator[str]:
    """A row of the table for each operator and each way."""
    workers = list(client.run(os.getpid).values())
    rows = dml.read_parquet(folder / "rows.parquet").with_options(
        memory_limit=given.limit, telemetry_dir="off", scheduler=client
    )
    list(rows.take(100_000).sort("x0").batch(8192).with_options(spread=True))  # all is loaded
    for name in given.only.split(","):
        for spread in (False, True):
            ds = WAYS[name](rows).with_options(spread=spread).batch(8192)
            with watched(
                anonymous_bytes, *(partial(counted_bytes, pid) for pid in workers)
            ) as most:
                started, before = time.perf_counter(), used(client)
                iterator = iter(ds)
                count = sum(len(next(iter(batch.values()))) for batch in iterator)
                seconds, cpu_s = time.perf_counter() - started, used(client) - before
            spilled = iterator.memory_report().spilled_bytes
            yield (
                f"| {name} | {'workers' if spread else 'client'} | {count:,} |"
                f" {seconds:.1f} | {cpu_s:.1f} |"
                f" {max(most[1:]) / MIB:.0f} | {most[0] / MIB:.0f} | {spilled / MIB:.0f} |"
            )


def main() -> None:
    """Write the data, run everything, print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--limit", default="256MiB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep")
    parser.add_argument("--only", default=",".join(WAYS))
    given = parser.parse_args()
    options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        tempfile.TemporaryDirectory() as temporary,
        LocalCluster(n_workers=given.workers, processes=True, silence_logs=50, **options) as made,
        Client(made) as client,
    ):
        folder = Path(given.keep or temporary)
        folder.mkdir(exist_ok=True)
        if not (folder / "rows.parquet").exists():
            write(folder, given.megabytes * MIB)
        print("| operator | by | rows | seconds | processor | worker MiB | client MiB | disk MiB |")
        print("|---|---|---|---|---|---|---|---|")
        for row in ways(folder, client, given):
            print(row, flush=True)


if __name__ == "__main__":
    main()
