"""This file measures what a cache on disk costs the epoch that fills it, and what later ones take.

    python benchmarks/bench_cache.py --images FOLDER [--times 5] [--count 1000]

JPEGs of a folder, decoded and resized to 256 x 256 x 3 (OpenCV), in batches of 64, every byte of
which is summed. Turn by turn, in one run: an epoch without a cache, one that fills a new one, the
first that reads it in a new process (every byte is checked; also once that process has loaded its
libraries with another pipeline, and knows its file's name), later ones in it; beside them the same
sum over a memory map. Row groups are as long as a batch; where they have 40 rows, batches cross
them; and batches themselves are kept. Promised: filling at most 1.15 of the epoch without; the
first read at least 45 % of the memory map, later ones 85 %.
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

SIDE, BATCH = 256, 64
WAYS = {"": 64, "crossing": 40, "batches": 64}  # rows of a row group
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


def source(folder: Path, way: str = "") -> dml.Dataset:
    """The images, decoded by called Python."""
    path = folder / f"images{WAYS[way]}.parquet"
    return dml.read_parquet(path).map(decoded, fingerprint="decoded")


def cached(folder: Path, name: str, way: str = "") -> dml.Dataset:
    """The same over a cache of its own."""
    ds = source(folder, way)
    ds = (
        ds.batch(BATCH).cache(tier="disk")
        if way == "batches"
        else ds.cache(tier="disk").batch(BATCH)
    )
    return ds.with_options(cache_dir=str(folder / name), verify="off")


def later(folder: Path, name: str, times: int, way: str, *, loaded: bool) -> dict[str, Any]:
    """In a process of its own: the first epoch over a full cache, and others."""
    ds = cached(folder, name, way)
    if loaded:
        small = folder / "small.parquet"
        other = dml.read_parquet(small).map(dict, fingerprint="dict").cache(tier="disk").batch(8)
        for _ in range(2):
            list(other.with_options(cache_dir=str(folder / "other")))
        ds.fingerprint()
    first, total = epoch(ds)
    return {"first": first, "later": [epoch(ds)[0] for _ in range(times)], "sum": total}


def read(folder: Path, given: argparse.Namespace, name: str, way: str, *, loaded: bool) -> Any:
    """What ``later`` gives, in another process."""
    command = [sys.executable, __file__, "--images", str(given.images), "--times", "5"]
    command += ["--later", str(folder), name, way, str(int(loaded))]
    done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - this file
    return json.loads(done.stdout)


def written(images: Path, folder: Path, count: int) -> None:
    """Parquet files of the JPEGs of a folder, again from the first if they are too few."""
    paths = sorted(images.glob("*.[jJ][pP]*[gG]"))
    rows = [path.read_bytes() for path in itertools.islice(itertools.cycle(paths), count)]
    table = pa.table({"image": pa.array(rows, pa.binary())})
    for rows in set(WAYS.values()):
        path = folder / f"images{rows}.parquet"
        pq.write_table(table, path, compression="none", row_group_size=rows)
    pq.write_table(pa.table({"x": range(32)}), folder / "small.parquet")


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
    parser.add_argument("--later", nargs=4)
    given = parser.parse_args()
    if given.later:
        folder, name, way, loaded = given.later
        print(json.dumps(later(Path(folder), name, given.times, way, loaded=loaded == "1")))
        return
    folder = Path(tempfile.mkdtemp(prefix="dml-bench-"))
    try:
        written(given.images, folder, given.count)
        measured(folder, given)
    finally:
        shutil.rmtree(folder)


def measured(folder: Path, given: argparse.Namespace) -> None:
    """Measure turn by turn, and print."""
    found: dict[str, list[float]] = {name: [] for name in TOLD}
    _, wanted = epoch(source(folder).batch(BATCH))
    for turn in range(given.times):
        found["without a cache"].append(epoch(source(folder).batch(BATCH))[0])
        for way in WAYS:
            name = f"kept{turn}{way}"
            seconds, total = epoch(cached(folder, name, way))
            new = read(folder, given, name, way, loaded=False)
            old = read(folder, given, name, way, loaded=True)
            if {total, new["sum"], old["sum"]} != {wanted}:
                raise SystemExit("a cache has changed what comes out")
            found[f"later reads{SAID[way]}"] += new["later"] + old["later"]
            if not way:
                found["that fills it"].append(seconds)
                found["first read, a process that starts"].append(new["first"])
                found["first read, one at work"].append(old["first"])
            shutil.rmtree(folder / name)
        found["memory map"] += mapped(folder, given.count, 5)
    shown(found, given)


SAID = {"": "", "crossing": ", batches cross row groups", "batches": ", of batches kept as such"}
TOLD = [
    *("without a cache", "that fills it", "first read, a process that starts"),
    *("first read, one at work", *(f"later reads{each}" for each in SAID.values()), "memory map"),
]


def shown(found: dict[str, list[float]], given: argparse.Namespace) -> None:
    """Print the table: medians, and the best."""
    size, plain = given.count * EACH / 1e9, found["without a cache"]
    middle_limit, best_limit = statistics.median(found["memory map"]), min(found["memory map"])
    print(f"{given.count} images, {size:.3f} GB decoded, {given.times} turns")
    print("| epoch | seconds | GB/s | of the map, or of the epoch without | best of the best |")
    print("|---|---|---|---|---|")
    for name, seconds in found.items():
        middle, best = statistics.median(seconds), min(seconds)
        of = ratio = ""
        if "read" in name:
            of, ratio = f"{middle_limit / middle:.0%}", f"{best_limit / best:.0%}"
        elif "map" not in name:
            of = f"{middle / statistics.median(plain):.3f}"
        print(f"| {name} | {middle:.4f} | {size / middle:.2f} | {of} | {ratio} |")


if __name__ == "__main__":
    main()
