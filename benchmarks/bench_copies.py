"""This file measures what it takes to bring large arrays that functions return into batches.

    python benchmarks/bench_copies.py [--before CHECKOUT] [--times 7]

Processor time a row of batches of 64 images: made by a function that takes next to nothing, and by
arithmetic on columns; beside ``np.stack`` of the same rows, which is what an expert writes. With
``--before``, another checkout of dml takes turns with this one. Each turn is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BATCH, ROWS = 64, 512
QUIET = {"telemetry_dir": "off"}
Work = Callable[[], None]


def loader(shape: tuple[int, ...], code: str) -> Callable[[dict[str, int]], dict[str, Any]]:
    """A function of a row that makes an image of it."""
    image = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(code)

    def load(row: dict[str, int]) -> dict[str, Any]:
        return {"image": image + image.dtype.type(row["id"] % 3)}

    return load


def stacked(row: Callable[[int], np.ndarray]) -> None:
    """All batches, as an expert writes them."""
    for start in range(0, ROWS, BATCH):
        np.stack([row(number) for number in range(start, start + BATCH)])


def consumed(ds: Any) -> None:
    """An epoch."""
    for _ in ds:
        pass


def cases() -> dict[str, tuple[Work, Any]]:
    """What is measured: an expert's way, and the pipeline."""
    import dml  # noqa: PLC0415 - of the checkout that this process is of

    made: dict[str, tuple[Work, Any]] = {}
    for name, shape, code in (
        ("map, u1, 150 kB", (224, 224, 3), "u1"),
        ("map, f4, 600 kB", (224, 224, 3), "f4"),
    ):
        load = loader(shape, code)
        expert = partial(stacked, lambda k, load=load: load({"id": k})["image"])
        made[name] = expert, dml.range(ROWS).map(load).batch(BATCH)
        made[f"shuffle, {name}"] = expert, dml.range(ROWS).shuffle(seed=1).map(load).batch(BATCH)
    images = np.random.default_rng(0).random((ROWS, 112, 112, 3)).astype("f4")
    expert = partial(stacked, lambda k: images[k] * np.float32(2) - 1)
    ds = dml.from_numpy({"image": images}).with_columns(image=dml.col("image") * 2 - 1)
    made["columns, f4, 150 kB"] = expert, ds.batch(BATCH)
    return made


def spent(work: Work) -> float:
    """Microseconds of all processors a row."""
    started = time.process_time()
    work()
    return (time.process_time() - started) / ROWS * 1e6


def one_turn() -> dict[str, float]:
    """Every way once, after it was done once to warm up."""
    found: dict[str, float] = {}
    for name, (expert, ds) in cases().items():
        ways = {"np.stack": expert}
        for executor in ("sync", "threads"):
            ways[executor] = partial(consumed, ds.with_options(executor=executor, **QUIET))
        for way, work in ways.items():
            work()
            found[f"{name}|{way}"] = spent(work)
    return found


def turn_of(checkout: Path) -> dict[str, float]:
    """A turn in a process that imports dml from ``checkout``."""
    surroundings = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, __file__, "--turn"]
    out = subprocess.run(command, env=surroundings, check=True, capture_output=True, text=True)  # noqa: S603 - itself
    found: dict[str, float] = json.loads(out.stdout)
    return found


def main() -> None:
    """Turns of both, and their middles."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--turn", action="store_true")
    given = parser.parse_args()
    if given.turn:
        print(json.dumps(one_turn()))
        return
    checkouts = {"now": Path(__file__).resolve().parent.parent}
    if given.before:
        checkouts = {"before": given.before.resolve(), **checkouts}
    turns = [{name: turn_of(path) for name, path in checkouts.items()} for _ in range(given.times)]
    titles = [f"{way}, {name}" for way in ("sync", "threads") for name in checkouts]
    print(f"| case | np.stack | {' | '.join(titles)} |")
    print(f"|---|---|{'---|' * 2 * len(checkouts)}")
    for case in dict.fromkeys(key.partition("|")[0] for key in turns[0]["now"]):
        cells = [("np.stack", "now")]
        cells += [(way, name) for way in ("sync", "threads") for name in checkouts]
        figures = [np.median([turn[c][f"{case}|{way}"] for turn in turns]) for way, c in cells]
        print(f"| {case} | {' | '.join(f'{each:.0f}' for each in figures)} |")


if __name__ == "__main__":
    main()
