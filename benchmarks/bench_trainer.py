"""This file measures a training loop beside the functions of its pipeline.

    python benchmarks/bench_trainer.py [--turns 5] [lock | step | passes]

``lock``: how long a step of 10 ms in Python takes, of its time alone, beside a function that holds
Python's lock and may run in no other process, and the longest time in which the step stood still;
with batches made when asked for; and beside one plain thread. ``step``: the time from one batch to
the next, with a function that waits 10 ms a row and a step of 10 ms, by ``prefetch``. ``passes``:
the longest wait for a batch between two passes of ``repeat``, in times from batch to batch.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from typing import Any, NamedTuple

import dml
from dml.api.dataset import Dataset

WORKERS, BATCH, STEP_S, ROW_S = 8, 16, 0.01, 0.01
STEPS, TICKS = 100, 100  # steps of the loop; parts of each, between which the clock is looked at
PASSES, EACH = 3, 320  # passes of ``repeat``, and rows of each
CALLS = count()
Row = dict[str, Any]


def holding(row: Row) -> Row:
    """One row, by 1 ms of Python; it counts its calls, so that it is called in this process."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    next(CALLS)
    return row


def waiting(row: Row) -> Row:
    """One row, after a wait as for an object store."""
    time.sleep(ROW_S)
    return row


class Step:
    """Work of the loop in Python: ``rounds`` of it take as long as a tick, with nothing beside."""

    def __init__(self) -> None:
        self.rounds = 1000
        spent = min(self._tick() for _ in range(200))
        self.rounds = int(self.rounds * STEP_S / TICKS / spent)
        self.alone_s = statistics.median(self()[0] for _ in range(50))

    def __call__(self) -> tuple[float, float]:
        """Seconds that a step took, and the longest of its ticks."""
        ticks = [self._tick() for _ in range(TICKS)]
        return sum(ticks), max(ticks)

    def _tick(self) -> float:
        started, total = time.perf_counter(), 0
        for number in range(self.rounds):
            total += number
        return time.perf_counter() - started


class Beside(NamedTuple):
    """Steps beside something, in times of a step alone; the longest tick, and seconds in all."""

    step: float
    pause_s: float
    all_s: float


def stepped(step: Step, batches: Iterator[Any]) -> Beside:
    """A step after each of the batches."""
    started = time.perf_counter()
    found = [step() for _ in batches]
    took = time.perf_counter() - started
    steps, pauses = zip(*found, strict=True)
    return Beside(statistics.median(steps) / step.alone_s, max(pauses), took)


def beside_thread(step: Step) -> Beside:
    """Beside one thread that computes all the time."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            holding({})

    thread = threading.Thread(target=work)
    thread.start()
    try:
        return stepped(step, iter(range(STEPS)))
    finally:
        done.set()
        thread.join()


def run(ds: Dataset, **options: Any) -> Iterator[Any]:
    return iter(ds.with_options(num_workers=WORKERS, telemetry_dir="off", **options))


def lock(turns: int) -> None:
    """Print what becomes of the step."""
    ds = dml.range(STEPS * BATCH).map(holding).batch(BATCH)
    cases: dict[str, Callable[[Step], Beside]] = {
        "one plain thread": beside_thread,
        "threads": lambda step: stepped(step, run(ds, executor="threads")),
        "auto": lambda step: stepped(step, run(ds)),
        "auto, prefetch=0": lambda step: stepped(step, run(ds, prefetch=0)),
        "sync": lambda step: stepped(step, run(ds, executor="sync")),
    }
    found = {name: [case(Step()) for _ in range(turns)] for name, case in cases.items()}
    for name, each in found.items():
        steps, pauses, took = (statistics.median(some) for some in zip(*each, strict=True))
        print(f"{name:20} step {steps:5.2f}   pause {pauses * 1e3:6.1f} ms   all {took:6.2f} s")


def period_s(ds: Dataset, **options: Any) -> float:
    """Seconds from batch to batch, where the loop waits as for a GPU."""
    started, batches = time.perf_counter(), 0
    for _ in run(ds, **options):
        time.sleep(STEP_S)
        batches += 1
    return (time.perf_counter() - started) / batches


def batched(batch: Any) -> Any:
    """All rows of a batch, one after the other."""
    time.sleep(ROW_S * len(batch["item"]))
    return batch


def step(turns: int) -> None:
    """Print the time from batch to batch by what is made ahead."""
    rows = dml.from_items(list(range(EACH * 5))).shuffle(100, seed=1)
    cases = {
        "map.batch(16)": rows.map(waiting).batch(BATCH),
        "batch(50).map": rows.batch(50).map(batched),
    }
    for name, ds in cases.items():
        found: dict[Any, list[float]] = {}
        for _ in range(turns):
            for ahead in ("auto", 1, 2, 4, 8):
                found.setdefault(ahead, []).append(period_s(ds, prefetch=ahead))
        each = (
            f"{ahead}: {statistics.median(some) * 1e3:6.1f} ms" for ahead, some in found.items()
        )
        print(f"{name:20}", *each, sep="   ")


def passes(turns: int) -> None:
    """Print how long nothing came between two passes."""
    rows = dml.from_items(list(range(EACH)))
    cases = {
        "map.batch.repeat": rows.map(waiting).batch(BATCH).repeat(PASSES),
        "map.repeat.batch": rows.map(waiting).repeat(PASSES).batch(BATCH),
        "shuffle.map.batch.repeat": rows.shuffle().map(waiting).batch(BATCH).repeat(PASSES),
        "repeat.map.batch": rows.repeat(PASSES).map(waiting).batch(BATCH),
    }
    for name, ds in cases.items():
        found = [waits(ds) for _ in range(turns)]
        edge, period = (statistics.median(some) for some in zip(*found, strict=True))
        print(f"{name:26} period {period * 1e3:6.1f} ms   edge {edge / period:5.2f} periods")


def waits(ds: Dataset) -> tuple[float, float]:
    """The longest wait next to where a pass begins, and the time from batch to batch."""
    times = [time.perf_counter() for _ in run(ds)]
    gaps = [after - before for before, after in pairwise(times)]
    each = EACH // BATCH
    edges = [max(gaps[each * n - 3 : each * n + 2]) for n in range(1, PASSES)]
    return max(edges), (times[-1] - times[0]) / len(gaps)


def test_a_step_is_measured_beside_what_runs() -> None:
    ds, before = dml.range(4 * BATCH).map(holding).batch(BATCH), next(CALLS)
    found = stepped(Step(), run(ds, prefetch=0))
    assert next(CALLS) - before - 1 == 4 * BATCH  # in this process, once a row
    assert found.all_s >= 4 * BATCH * 0.001


CASES = {"lock": lock, "step": step, "passes": passes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", choices=[*CASES, []])
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    for name in given.case or CASES:
        CASES[name](given.turns)


if __name__ == "__main__":
    main()
