"""This file measures functions that wait: the number of threads that a run finds, and fixed ones.

    python benchmarks/bench_waiting.py [--rows 2000] [--turns 3]

The same pipeline runs with as many threads as cores (``tune="off"``), with the number that the run
finds, and with each of several fixed numbers, in turn; every run begins without what earlier ones
learned. Medians of turns.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dml
from dml.exec.drivers.driver_choice import Opening

NUMBERS = (4, 8, 16, 32, 64)
BATCH = 16
CONNECTIONS = 6  # of the server that serves few
SERVER = threading.Semaphore(CONNECTIONS)
NUMBERS_TO_SORT = np.random.default_rng(0).random(40_000)


def slept(seconds: float) -> Callable[[int], int]:
    """Waits alone."""

    def work(item: int) -> int:
        time.sleep(seconds)
        return item

    return work


def parsed(item: int) -> int:
    """Waits 10 ms, then runs Python for about a millisecond."""
    time.sleep(0.01)
    return item + 0 * sum(range(25_000))


def decoded(item: int) -> int:
    """Waits 5 ms, then computes for a millisecond or two without Python's lock."""
    time.sleep(0.005)
    return item + int(0 * np.sort(NUMBERS_TO_SORT)[0])


def served(item: int) -> int:
    """Asks a server that answers six requests at once, in 10 ms each."""
    with SERVER:
        time.sleep(0.01)
    return item


def computed(item: int) -> int:
    """Runs Python for about two milliseconds, and waits for nothing."""
    return item + 0 * sum(range(50_000))


CASES: dict[str, Callable[[int], int]] = {
    "waits 2 ms": slept(0.002),
    "waits 10 ms": slept(0.01),
    "waits 100 ms": slept(0.1),
    "waits 10 ms, 1 ms of Python": parsed,
    "waits 5 ms, 2 ms without the lock": decoded,
    "a server of six": served,
    "2 ms of Python": computed,
}


def run(work: Callable[[int], int], rows: int, **options: Any) -> tuple[float, int]:
    """Seconds of an epoch, and the most slices that ran at once in its end."""
    Opening.known.clear()
    ds = dml.from_items(list(range(rows))).map(lambda row: {"y": work(row["item"])}).batch(BATCH)
    started = time.perf_counter()
    iterator = iter(ds.with_options(telemetry_dir="off", executor="threads", **options))
    count = sum(len(batch["y"]) for batch in iterator)
    seconds = time.perf_counter() - started
    assert count == rows
    tuned = iterator.stats().summary.get("tuned")
    return seconds, tuned[-1].after if tuned else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    print("| function | cores | found | number | best fixed | best / found |")
    print("|---|---|---|---|---|---|")
    for name, work in CASES.items():
        print(line(name, work, asked.rows, asked.turns), flush=True)


def line(name: str, work: Callable[[int], int], rows: int, turns: int) -> str:
    """One line of the table: seconds, and the numbers of threads."""
    ways: dict[str, dict[str, Any]] = {"off": {"tune": "off"}, "auto": {}}
    ways |= {str(number): {"num_workers": number} for number in NUMBERS}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    found = 0
    for _ in range(turns):
        for way, options in ways.items():
            took, number = run(work, rows, **options)
            seconds[way].append(took)
            found = number or found
    middle = {way: statistics.median(each) for way, each in seconds.items()}
    fixed = {way: middle[way] for way in ("off", *map(str, NUMBERS))}
    best = min(fixed, key=fixed.__getitem__)
    named = "cores" if best == "off" else best
    return (
        f"| {name} | {middle['off']:.2f} s | {middle['auto']:.2f} s | {found or 'cores'}"
        f" | {fixed[best]:.2f} s ({named}) | {fixed[best] / middle['auto']:.2f} |"
    )


if __name__ == "__main__":
    main()
