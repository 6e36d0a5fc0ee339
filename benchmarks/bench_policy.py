"""This file measures the scheduling policy in virtual time, against the best that could be.

    python benchmarks/bench_policy.py

Section 5.3.1 of the streaming batch model, with every memory number divided as in a run: 160 loads
of 500 rows of 1 MB in 5 s, transformed on the same 8 processors, inferred on 4 GPUs. The paper's
solver, whose partitions are larger, needs 153 s; Ray Data is at about 1.3 times that. Then two
stages of 1 s and 2 s on 8 slots, which no division of the slots between them can keep busy. Then
how far the rows made of two inputs are apart that a slow consumer takes in equal shares.
No clock is read but that of the virtual cluster: the figures are the same on every machine.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dml.testing.scenes import GB, MB, OPTIMUM_S, Scene, fractional, memory_aware
from dml.verify.simulate.virtual_cluster import ClusterTrace
from tests.exec.scheduler.merged_cores import Input, MergedCores

LIMITS_GB = (0.5, 1, 2, 4, 8, 12, 16, 32)
ONE = 4  # that is run where nothing is timed
MOST = {0.5: 1.10, 1: 1.10}  # of the optimum; 1.05 everywhere else
UNITS = (16, 64, 160, 800)
TURNS, ROWS, COSTS = 40_000, ((100, 100), (100, 25)), ((1.0, 1.0), (0.25, 1.0), (0.05, 1.0))


def scene(limit_gb: float) -> Scene:
    """The pipeline within so many GB."""
    return memory_aware(int(limit_gb * GB))


def row(limit_gb: float, *, ordered: bool) -> tuple[ClusterTrace, str]:
    """A run, and its line of the table."""
    given = scene(limit_gb)
    trace = given.run(ordered=ordered, watched=False)
    cells = (
        f"{limit_gb:g} GB",
        "yes" if ordered else "no",
        f"{given.demands[0].output_bytes / MB:.1f} MB",
        f"{trace.seconds:.1f}",
        f"{trace.seconds / OPTIMUM_S:.3f}",
        f"{trace.peak_bytes / MB:.0f} MB",
        f"{trace.forced}",
    )
    return trace, f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("limit_gb", LIMITS_GB)
def test_a_run_within_memory(benchmark: Any, limit_gb: float) -> None:
    if benchmark.disabled and limit_gb != ONE:
        pytest.skip("tests/exec/scheduler/test_policy.py has them all; `make bench` times them")
    trace, _ = benchmark(row, limit_gb, ordered=False)
    assert trace.seconds <= MOST.get(limit_gb, 1.05) * OPTIMUM_S


def apart_part(slots: int, rows: tuple[int, int], costs: tuple[float, float]) -> float:
    """The largest difference of the rows made of two inputs, by their sum, after a tenth of them.

    The consumer takes half as long again as making all rows takes.
    """
    inputs = [
        Input(TURNS // each, each, seconds=cost * each / 100)
        for each, cost in zip(rows, costs, strict=True)
    ]
    work_s = sum(each.units * each.seconds for each in inputs) / slots
    cores = MergedCores(inputs, slots, 10 * MB, 1.5 * work_s / TURNS)
    cores.run()
    return cores.imbalance()


def main() -> None:
    print("| limit | in order | partition | seconds | x optimum | peak | over the limit |")
    print("|---|---|---|---|---|---|---|")
    for ordered in (False, True):
        for limit_gb in LIMITS_GB:
            print(row(limit_gb, ordered=ordered)[1], flush=True)
    print("\n| units of 1 s + 2 s | shared, s | 4 and 4, s | less time |\n|---|---|---|---|")
    for units in UNITS:
        shared = fractional(units).run().seconds
        apart = fractional(units, apart=(4.0, 4.0)).run().seconds
        print(f"| {units} | {shared:.0f} | {apart:.0f} | {1 - shared / apart:.1%} |")
    print(
        "\n| workers | rows of a partition | s for 100 rows | rows made apart |\n|---|---|---|---|"
    )
    for slots, rows, costs in itertools.product((1, 2, 8), ROWS, COSTS):
        print(f"| {slots} | {rows} | {costs} | {apart_part(slots, rows, costs):.1%} |", flush=True)


if __name__ == "__main__":
    main()
