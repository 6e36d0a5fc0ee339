"""This file measures what a cache on disk costs the epoch that fills it, and what later ones take.

    python benchmarks/bench_cache.py --images FOLDER [--times 5] [--count 1000]

JPEGs of a folder, decoded and resized to 256 x 256 x 3 (OpenCV), in batches of 64, every byte of
which is summed. Turn by turn, in one run: an epoch without a cache, one that fills a new one, the
first that reads it in a new process (every byte is checked), later ones in it; beside them the same
sum over a memory map. Promised: filling at most 1.15 of the epoch without; the first read at least
45 % of the memory map, later ones 85 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml

SIDE, BATCH, GROUP = 256, 64, 64
EACH = SIDE * SIDE * 3


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    """One image, resized."""
    import cv2  # noqa: PLC0415 - what only this needs

    image = cv2.imdecode(np.frombuffer(row["image"], np.uint8), cv2.IMREAD_COLOR_RGB)
    return {"image": cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)}


def summed(images: np.ndarray) -> int:
    """The sum of all bytes, eight at a time."""
    return int(np.ascontiguousarray(images).reshape(-1).view(np.uint64).sum(dtype=np.uint64))


def epoch(ds: dml.Dataset) -> tuple[float, int]:
    """Seconds of one epoch, and its sum."""
    started, total = time.perf_counter(), 0
    for batch in ds:
        total = (total + summed(batch["image"])) % (1 << 64)
    return time.perf_counter() - started, total


def source(folder: Path) -> dml.Dataset:
    """The images, decoded by called Python."""
    return dml.read_parquet(folder / "images.parquet").map(decoded, fingerprint="decoded")


def cached(folder: Path, name: str) -> dml.Dataset:
    """The same over a cache of its own."""
    ds = source(folder).cache(tier="disk").batch(BATCH)
    return ds.with_options(cache_dir=str(folder / name))


def later(folder: Path, name: str, times: int) -> dict[str, Any]:
    """In a process of its own: the first epoch over a full cache, and others."""
    ds = cached(folder, name)
    first, total = epoch(ds)
    return {"first": first, "later": [epoch(ds)[0] for _ in range(times)], "sum": total}


def written(images: Path, folder: Path, count: int) -> None:
    """A Parquet file of the JPEGs of a folder, again from the first if they are too few."""
    paths = sorted(images.glob("*.[jJ][pP]*[gG]"))
    rows = [path.read_bytes() for path in itertools.islice(itertools.cycle(paths), count)]
    table = pa.table({"image": pa.array(rows, pa.binary())})
    pq.write_table(table, folder / "images.parquet", compression="none", row_group_size=GROUP)


def mapped(folder: Path, count: int, times: int) -> list[float]:
    """Seconds of the same sum over a memory map."""
    path = folder / "map"
    np.random.default_rng(0).integers(0, 256, count * EACH, np.uint8).tofile(path)
    data = np.memmap(path, np.uint8, "r")
    found = []
    for _ in range(times):
        started = time.perf_counter()
        for start in range(0, len(data), BATCH * EACH):
            summed(data[start : start + BATCH * EACH])
        found.append(time.perf_counter() - started)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--later", nargs=2)
    given = parser.parse_args()
    if given.later:
        print(json.dumps(later(Path(given.later[0]), given.later[1], given.times)))
        return
    folder = Path(tempfile.mkdtemp(prefix="dml-bench-"))
    try:
        written(given.images, folder, given.count)
        measured(folder, given)
    finally:
        shutil.rmtree(folder)


def measured(folder: Path, given: argparse.Namespace) -> None:
    """Measure turn by turn, and print."""
    plain, filling, first, others, limit = ([] for _ in range(5))
    _, wanted = epoch(source(folder).batch(BATCH))
    for turn in range(given.times):
        plain.append(epoch(source(folder).batch(BATCH))[0])
        seconds, total = epoch(cached(folder, f"kept{turn}"))
        filling.append(seconds)
        command = [sys.executable, __file__, "--images", str(given.images)]
        command += ["--later", str(folder), f"kept{turn}", "--times", "3"]
        done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - this file
        told = json.loads(done.stdout)
        if {total, told["sum"]} != {wanted}:
            raise SystemExit("a cache has changed what comes out")
        first.append(told["first"])
        others += told["later"]
        limit += mapped(folder, given.count, 3)
        shutil.rmtree(folder / f"kept{turn}")
    size = given.count * EACH / 1e9
    best = min(limit)
    print(f"{given.count} images, {size:.3f} GB decoded; medians of {given.times} turns")
    print("| epoch | seconds | GB/s | of |")
    print("|---|---|---|---|")
    told = statistics.median
    print(f"| without a cache | {told(plain):.3f} | {size / told(plain):.2f} | |")
    ratio = told(filling) / told(plain)
    print(f"| that fills it | {told(filling):.3f} | {size / told(filling):.2f} | {ratio:.3f} |")
    rows = {"first read, another process": first, "later reads": others, "memory map": limit}
    for name, seconds in rows.items():
        share = best / told(seconds)
        print(f"| {name} | {told(seconds):.4f} | {size / told(seconds):.1f} | {share:.0%} |")


if __name__ == "__main__":
    main()
