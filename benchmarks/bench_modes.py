"""This file compares ways to schedule: dml's, and those of batch, stream and fused systems.

    python benchmarks/bench_modes.py

First the memory-aware experiment of the streaming batch paper (5.3.1) on the virtual cluster, as
times of its bound of 150 s, and what else the paper shows that a virtual clock can. Then the same
experiment at a fiftieth of its size as a real run in eight threads, beside what the virtual cluster
foresees for it. Its functions sleep, which holds slots and no processor, so that a busy machine
hardly changes what comes out. Inference takes hundredths of a processor, and with them one of eight
slots while it runs.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest

import dml
from dml.settings import SCHEDULER_POLICIES
from tests.exec.delivery.figure_cases import (
    DASK_S,
    EMBEDDED_S,
    FIFTIETH_BOUND_S,
    FIFTIETH_S,
    GB,
    IMAGE_LIMIT,
    MEMORY_BOUND_S,
    Work,
    best_static,
    fiftieth,
    first_output_s,
    fractional,
    images,
    images_fused,
    memory_aware,
    memory_aware_fused,
    outage,
    plateau,
    scaled,
    videos,
)

LIMITS = (1, 2, 4, 8, 32)
LOADS, THREADS = 160, 8


def row(*cells: object) -> None:
    """A line of a table."""
    print("| " + " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells) + " |")


def heading(*cells: object) -> None:
    """The first two lines of a table."""
    row(*map(str, cells))
    print("|---" * len(cells) + "|")


def ratios(work: Work, policy: str) -> list[float]:
    """Times of the bound, by limit."""
    return [work.run(policy, int(gb * GB)).seconds / MEMORY_BOUND_S for gb in LIMITS]


def best_ratios() -> list[float]:
    """The same for the best of all static shares."""
    work = memory_aware()
    shares = [(cpus, 8 - cpus, 4) for cpus in range(1, 8)]
    return [
        min(work.static(each, int(gb * GB)).seconds for each in shares) / MEMORY_BOUND_S
        for gb in LIMITS
    ]


def memory_table() -> None:
    """Section 5.3.1 and Figure 9."""
    heading("5.3.1, times of the bound", *(f"{gb} GB" for gb in LIMITS), "the paper")
    told = {
        "optimistic": "Ray Data, up to 1.3",
        "conservative": "10 to 88 % more than that",
        "static": "Flink, 1.68 to 2",
        "staged": "Spark, 2.35 to 4.34",
    }
    row("adaptive, partitions of 25 MB", *ratios(memory_aware(25), "adaptive"), "")
    for policy in SCHEDULER_POLICIES[:-1]:
        row(policy, *ratios(memory_aware(), policy), told.get(policy, ""))
    row("static, the best shares", *best_ratios(), "")
    row("fused", *ratios(memory_aware_fused(), "adaptive"), "")
    row("adaptive, no repartition", *ratios(memory_aware(500), "adaptive"), "far slower, or fails")


def image_rows() -> None:
    """Figures 6a and 6b."""
    usual, staged = (images().run(each, IMAGE_LIMIT) for each in ("adaptive", "staged"))
    shares, best = best_static(images(), IMAGE_LIMIT)
    row("6a: best static / adaptive, s", "equal", best.seconds / usual.seconds)
    row("6a: first result, part of the job", "at once", first_output_s(usual) / usual.seconds)
    first = first_output_s(staged) / staged.seconds
    row("6a: the same, staged", "when the last stage begins", first)
    fused = images_fused().run("adaptive", IMAGE_LIMIT)
    row("6a: fused / adaptive, s", "the slowest", fused.seconds / usual.seconds)
    shares, _ = best_static(videos(drift=False), IMAGE_LIMIT)
    fixed = videos().static(shares, IMAGE_LIMIT)
    gain = fixed.seconds / videos().run("adaptive", IMAGE_LIMIT).seconds
    row("6b: throughput over static while costs drift", "+28 %", f"+{gain - 1:.0%}")


def model_table() -> None:
    """The other figures."""
    heading("figure", "the paper", "here")
    image_rows()
    hosts = outage()
    redone = sum(hosts.gone_at - at for _, at in hosts.lost)
    row("6c: work made again after a node is lost, slot seconds", "little", redone)
    efficiency = 2 * scaled(2).seconds / (16 * scaled(16).seconds)
    row("6d: efficiency of 16 nodes", "nearly perfect", efficiency)
    for name, beside_s in (("embedded", EMBEDDED_S), ("Dask", DASK_S)):
        wide = [rows for rows, part in plateau(beside_s).items() if part >= 0.95]
        span = f"{min(wide)}-{max(wide)} MB"
        row(f"10: sizes with 95 % of the best, {name}", "about 128 MB", span)
    even, usual = (fractional(800).run(each, GB).seconds for each in ("static", "adaptive"))
    row("A.1: time saved over static 4-4", "19 %", f"{1 - usual / even:.0%}")


# -------------------------------------------------------------------------------------- a real run


def slept(batch: dict[str, np.ndarray], seconds: float) -> dict[str, np.ndarray]:
    """Holds a slot for ``seconds`` and no processor."""
    time.sleep(seconds)
    return batch


def pipeline(policy: str, loads: int = LOADS) -> dml.Dataset:
    """Load and transform on eight threads, infer at four places that hardly need one."""
    ds = dml.range(loads, atom_rows=1)
    stages = {"load": {}, "transform": {"memory": 1}, "infer": {"num_cpus": 0.01, "concurrency": 4}}
    for (name, needs), seconds in zip(stages.items(), FIFTIETH_S, strict=True):
        work = partial(slept, seconds=seconds)
        ds = ds.map_batches(work, fingerprint=name, schema={"id": "i8"}, **needs)  # type: ignore[arg-type]
    return ds.with_options(
        scheduler_policy=policy,
        executor="threads",
        num_workers=THREADS,
        target_partition_bytes=1,
        telemetry_dir="off",
    )


def foreseen(policy: str) -> float:
    """Seconds of the same on the virtual cluster."""
    work = fiftieth(whole=policy == "fused")
    return work.run("adaptive" if policy == "fused" else policy, GB, ordered=True).seconds


def drained(ds: dml.Dataset) -> tuple[int, float]:
    """Rows that came, and after how many seconds the first one did."""
    started, rows, first = time.perf_counter(), 0, 0.0
    for _ in ds:
        first = first or time.perf_counter() - started
        rows += 1
    return rows, first


def real_table() -> None:
    """Seconds of a real run, as times of its bound."""
    drained(pipeline("adaptive", 8))  # what is made once in a process is made before
    told = ("times of the bound", "foreseen", "first result, s")
    heading("real run, 8 threads, 3 s of work", *told)
    for policy in SCHEDULER_POLICIES:
        started = time.perf_counter()
        rows, first = drained(pipeline(policy))
        assert rows == LOADS
        took = time.perf_counter() - started
        row(policy, took / FIFTIETH_BOUND_S, foreseen(policy) / FIFTIETH_BOUND_S, first)


@pytest.mark.parametrize("policy", SCHEDULER_POLICIES)
def test_a_run_under_every_policy(benchmark: object, policy: str) -> None:
    rows, _ = benchmark(drained, pipeline(policy, 8))  # type: ignore[operator]
    assert rows == 8


def main() -> None:
    memory_table()
    print()
    model_table()
    print()
    real_table()


if __name__ == "__main__":
    main()
