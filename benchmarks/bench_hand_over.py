"""This file measures what it takes to hand rows over: to the caller in batches, to his functions.

    python benchmarks/bench_hand_over.py

Processor time of each way, all in one process and in turn, the best of seven: batches of 1,024
numbers that leave a block together or one by one, proven functions in one pass or in two, with and
without checks that no row needs, beside NumPy on blocks; and functions that have to be called, in
one loop or one by one, beside a bare Python loop that makes the same calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import dml
from dml.exec.delivery import iterator
from dml.exec.delivery.prefetch import BatchMaker
from dml.ops.row import call_chain
from dml.ops.row.lifted_chain import LiftedChain

LIFTED_ROWS, CALLED_ROWS, RUNS, BATCH = 20_000_000, 500_000, 7, 1024
# A dict that anybody may change: functions that look into it are called for every row.
PARAMETERS = {"times": 2, "modulus": 3}
STARTS = call_chain.starts
CHAIN = LiftedChain.of


def double(row: dict[str, int]) -> dict[str, int]:
    """A map."""
    return {"x": row["id"] * PARAMETERS["times"] + 1}


def third(row: dict[str, int]) -> bool:
    """A filter."""
    return row["x"] % PARAMETERS["modulus"] == 0


LIFTED = (
    dml.range(LIFTED_ROWS)
    .map(lambda row: {"x": row["id"] * 2 + 1})
    .filter(lambda row: row["x"] % 3 == 0)
    .batch(BATCH)
)
CALLED = dml.range(CALLED_ROWS).map(double).filter(third).batch(BATCH)


def bare() -> Iterator[np.ndarray]:
    """The same calls."""
    held: list[int] = []
    for i in range(CALLED_ROWS):
        row = double({"id": i})
        if third(row):
            held.append(row["x"])
            if len(held) == BATCH:
                yield np.array(held, dtype=np.int64)
                held = []
    yield np.array(held, dtype=np.int64)


def side_by_side(*, together: bool, of: Any = None) -> Iterator[Any]:
    """Batches of lifted functions."""

    def batches(streaming: Any, epoch: int, position: Any, *, runs: bool) -> BatchMaker:
        return BatchMaker(streaming, epoch, position, runs=runs and together)

    vars(iterator)["BatchMaker"] = batches
    return iter(LIFTED if of is None else of)


def in_passes(*, together: bool, checked: bool = False) -> Iterator[Any]:
    """Batches of lifted functions, all of a block at once."""
    chain = CHAIN if together else lambda _: None
    LiftedChain.of = staticmethod(chain)  # type: ignore[method-assign]
    off = ("drop_needless_checks",) if checked else ()
    return side_by_side(together=True, of=LIFTED.with_options(disable_rules=off))


def blocks() -> Iterator[np.ndarray]:
    """What an expert writes: the same on blocks of 65,536, joined and cut."""
    rest = np.empty(0, np.int64)
    for start in range(0, LIFTED_ROWS, 65536):
        x = np.arange(start, min(start + 65536, LIFTED_ROWS)) * 2 + 1
        rest = np.concatenate([rest, x[x % 3 == 0]])
        whole = len(rest) - len(rest) % BATCH
        yield from (rest[i : i + BATCH] for i in range(0, whole, BATCH))
        rest = rest[whole:]
    yield rest


def in_a_loop(*, together: bool) -> Iterator[Any]:
    """Batches of called functions."""
    vars(call_chain)["starts"] = STARTS if together else lambda _: False
    return iter(CALLED)


WAYS: dict[str, tuple[Callable[[], Iterator[Any]], int]] = {
    "lifted, batches of a block together": (lambda: side_by_side(together=True), LIFTED_ROWS),
    "lifted, batches one by one": (lambda: side_by_side(together=False), LIFTED_ROWS),
    "lifted, map and filter in one pass": (lambda: in_passes(together=True), LIFTED_ROWS),
    "lifted, one after the other": (lambda: in_passes(together=False), LIFTED_ROWS),
    "lifted, with every check": (lambda: in_passes(together=True, checked=True), LIFTED_ROWS),
    "NumPy on blocks": (blocks, LIFTED_ROWS),
    "called, map and filter in one loop": (lambda: in_a_loop(together=True), CALLED_ROWS),
    "called, one after the other": (lambda: in_a_loop(together=False), CALLED_ROWS),
    "called, bare loop": (bare, CALLED_ROWS),
}


def spent(way: Callable[[], Iterator[Any]]) -> tuple[float, float]:
    """Processor seconds of an epoch: of all threads, of the caller's."""
    process, thread = time.process_time(), time.thread_time()
    for _ in way():
        pass
    return time.process_time() - process, time.thread_time() - thread


def main() -> None:
    """Print the table."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for run in range(RUNS + 2):
        for name, (way, _) in WAYS.items():
            seconds = spent(way)
            if run > 1:  # the first ones find types and compile
                found[name].append(seconds)
    print("| | ns an element | of these in the caller's thread |\n|---|---|---|")
    for name, (_, rows) in WAYS.items():
        whole, caller = (min(each) / rows * 1e9 for each in zip(*found[name], strict=True))
        print(f"| {name} | {whole:.2f} | {caller:.2f} |")


if __name__ == "__main__":
    main()
