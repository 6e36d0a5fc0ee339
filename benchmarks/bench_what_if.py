"""This file compares what is foreseen with what runs take, in scenarios that sleep.

    python benchmarks/bench_what_if.py

Atoms, rows of one unit, shuffled rows and batches are processed. Functions sleep, so that they hold
slots and not cores, and their work is the same whatever else the machine does. Each pipeline runs
once with two workers; from that run alone ``what_if`` foresees the others, which then take place.
Three minutes. On a busy machine sleepers wake late: what a run takes more than it should is then no
fault of what was foreseen.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import dml
from dml.api.dataset import Dataset

Batch = dict[str, np.ndarray]
OFF, STEPS = 0.10, 30  # promised; steps that are timed
APART = 1.1  # runs that take as much less are clearly faster


def sleeping(seconds: float, number: int) -> Callable[[Batch], Batch]:
    """A function called "f" and its number, which takes so long."""

    def slept(batch: Batch) -> Batch:
        time.sleep(seconds)
        return batch

    slept.__name__ = slept.__qualname__ = f"f{number}"
    return slept


@dataclass(frozen=True)
class Case:
    """A pipeline of stages that sleep (seconds, concurrency), and what is asked about it."""

    stages: tuple[tuple[float, int | None], ...]
    asked: tuple[dict[str, Any], ...]
    rows: int = 160
    of: str = "atoms"

    def pipeline(
        self, folder: str, cache: str | None = None, cost: Mapping[str, float] | None = None
    ) -> Dataset:
        """The stages, over atoms of one row, or over rows of one unit as they are, or changed.

        The rows after the function ``cache`` are cached; ``cost`` has factors of some functions.
        """
        options: dict[str, Any] = {"executor": "threads", "num_workers": 2, "telemetry_dir": folder}
        if self.of == "atoms":
            ds = dml.range(self.rows, atom_rows=1).with_options(target_partition_bytes=1, **options)
            for number, (seconds, most) in enumerate(self.stages):
                asked = {} if most is None else {"concurrency": most}
                ds = ds.map_batches(sleeping(seconds, number), batch_size=1, **asked)
            return ds
        ds = dml.range(self.rows).with_options(**options)
        ds = ds.shuffle(20) if self.of == "shuffled" else ds
        ds = ds.batch(1) if self.of == "batches" else ds
        for number, (seconds, most) in enumerate(self.stages):
            fn = sleeping(seconds * (cost or {}).get(f"f{number}", 1.0), number)
            ds = ds.map(fn, concurrency=most)
            ds = ds.cache() if fn.__name__ == cache else ds
        return ds

    def title(self) -> str:
        stages = (f"{s * 1e3:.0f} ms" + (f" ({n} at once)" if n else "") for s, n in self.stages)
        return f"{self.of}: {' > '.join(stages)}"


WORKERS = tuple({"workers": n} for n in (1, 4, 8))
CASES = (
    Case(((0.020, None),), WORKERS),
    Case(((0.050, None),), (*WORKERS[1:], {"workers": 3}), rows=80),
    Case(((0.010, None), (0.020, 2)), WORKERS),
    Case(((0.005, 1), (0.030, None)), (*WORKERS[1:], {"workers": 6})),
    Case(((0.020, None), (0.010, 3), (0.015, None)), WORKERS[1:]),
    Case(
        ((0.020, None),),
        (
            {"workers": 4, "step_s": 0.003},
            {"workers": 8, "step_s": 0.008},
            {"workers": 2, "step_s": 0.015},
        ),
    ),
    Case(((0.050, None), (0.005, None)), ({"workers": 5}, {"workers": 7}, {"workers": 8}), rows=60),
    Case(((0.020, None),), WORKERS[1:], of="rows"),
    Case(((0.010, None), (0.020, 3)), WORKERS[1:], of="rows"),
    Case(((0.020, None),), WORKERS[1:], of="shuffled"),
    Case(((0.020, None),), WORKERS[1:], of="batches"),
    Case(
        ((0.020, None), (0.010, None)),
        (
            {"workers": 2, "cache": "f0"},
            {"workers": 4, "cache": "f0"},
            {"workers": 4, "cost": {"f0": 0.5}},
            {"workers": 4, "cost": {"f1": 3.0}},
        ),
        of="rows",
    ),
    Case(
        ((0.010, 3), (0.010, None)),
        ({"workers": 4, "cache": "f0"}, {"workers": 8, "cost": {"f0": 0.25, "f1": 2.0}}),
        of="shuffled",
    ),
)


def step_of(seconds: float) -> float:
    """What such a step of the training loop takes here: sleepers wake late."""
    started = time.perf_counter()
    for _ in range(STEPS):
        time.sleep(seconds)
    return (time.perf_counter() - started) / STEPS


def measured(case: Case, folder: str, asked: dict[str, Any]) -> float:
    """Seconds of a run with what was asked about; of the second epoch if it caches."""
    ds = case.pipeline(folder, asked.get("cache"), asked.get("cost"))
    run = ds.with_options(num_workers=asked["workers"])
    if "cache" in asked:
        for _ in run:
            pass
    started = time.perf_counter()
    for _ in run:
        if "step_s" in asked:
            time.sleep(asked["step_s"])
    return time.perf_counter() - started


def ranked(pairs: list[tuple[float, float]]) -> tuple[int, int]:
    """Pairs of scenarios that rank as foreseen, of those whose runs are clearly apart."""
    both = [(a, b) for a, b in itertools.permutations(pairs, 2) if a[1] > APART * b[1]]
    return sum(a[0] > b[0] for a, b in both), len(both)


def main() -> None:
    """Print one row for each scenario."""
    print("| pipeline | what if | foreseen | measured | off | of the bound | query |")
    print("|---|---|---|---|---|---|---|")
    off, queries = list[float](), list[float]()
    pairs = list[tuple[float, float]]()  # foreseen and measured
    for case in CASES:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            ds = case.pipeline(folder)
            for _ in ds:
                pass
            for asked in case.asked:
                step = {"step_s": step_of(asked["step_s"])} if "step_s" in asked else {}
                started = time.perf_counter()
                answer = ds.what_if(**asked | step)
                queries.append(time.perf_counter() - started)
                took = measured(case, folder, asked)
                off.append(answer.seconds / took - 1)
                pairs.append((answer.seconds, took))
                told = ", ".join(f"{name}={value}" for name, value in asked.items())
                cells = [case.title(), told, f"{answer.seconds:.2f} s", f"{took:.2f} s"]
                cells += [f"{off[-1]:+.1%}", f"{answer.then.over_bound:.2f}x"]
                cells += [f"{queries[-1] * 1e3:.0f} ms"]
                print(f"| {' | '.join(cells)} |", flush=True)
            ds.explain("costs")  # waits for the account of the last run, before its folder goes
    within = sum(abs(each) <= OFF for each in off)
    worst, middle = max(map(abs, off)), statistics.median(map(abs, off))
    alike, clear = ranked(pairs)
    print(f"\n{alike} of {clear} pairs whose runs differ by a tenth rank as foreseen")
    print(
        f"{within} of {len(off)} within {OFF:.0%}; median {middle:.1%}, worst {worst:.1%}; "
        f"longest query {max(queries):.2f} s"
    )


if __name__ == "__main__":
    main()
