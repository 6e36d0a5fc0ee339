"""This file measures how fast the store gives rows back, beside a memory map of the same bytes.

    python benchmarks/bench_store.py [--megabytes 256] [--times 7] [--folder FOLDER]

A part of float32 columns is filled in batches, read and checked by a store that is new to it, and
read again. Every byte is summed each time, as the same bytes are through ``np.memmap``. The best of
some, in turns, of one run; pages are in memory, and once brought back from the disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dml.cache.parts.parts import PartFilling, PartRows, PartSource, PartStore
from dml.cache.store.disk import Disk

FP, COLUMNS, BATCH_ROWS = "ab" * 16, 2, 1 << 20


def batches(megabytes: int) -> list[pa.RecordBatch]:
    """Some of eight megabytes each."""
    drawn = np.random.default_rng(7)
    return [
        pa.record_batch(
            {f"c{i}": drawn.random(BATCH_ROWS, dtype=np.float32) for i in range(COLUMNS)}
        )
        for _ in range(megabytes // 8)
    ]


def filled(root: Path, made: list[pa.RecordBatch]) -> float:
    """Fill a part; seconds."""
    begun = time.perf_counter()
    filling = PartStore(Disk(root, "v1/bench")).fill(FP, 0)
    assert isinstance(filling, PartFilling)
    for each in made:
        filling.add(each)
    assert filling.commit() is PartSource.MADE
    return time.perf_counter() - begun


def summed(rows: PartRows | None) -> int:
    """Every byte of a part."""
    assert rows is not None
    return sum(
        int(np.frombuffer(column.buffers()[1], np.uint64).sum(dtype=np.uint64))
        for batch in rows.batches
        for column in batch.columns
    ) % (1 << 64)


def seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def limit(path: Path) -> Callable[[], object]:
    """Sums a file through one memory map."""
    size = path.stat().st_size // 8
    mapped = np.memmap(path, np.uint64, "r", shape=(size,))
    return lambda: [
        mapped[at : at + (1 << 20)].sum(dtype=np.uint64) for at in range(0, size, 1 << 20)
    ]


def measured(root: Path, times: int) -> dict[str, float]:
    """The best seconds of each way to sum the part."""
    (path,) = (root / "v1/bench/blobs").iterdir()
    mapped, old = limit(path), PartStore(Disk(root, "v1/bench"))
    total = summed(old.part(FP, 0))
    best: dict[str, float] = {}
    ways: dict[str, Callable[[], object]] = {
        "limit": mapped,
        "first": lambda: summed(PartStore(Disk(root, "v1/bench")).part(FP, 0)),
        "later": lambda: summed(old.part(FP, 0)),
        "later, not summed": lambda: old.part(FP, 0),
    }
    for _ in range(times):
        for name, run in ways.items():
            best[name] = min(best.get(name, 1e9), seconds(run))
    assert summed(old.part(FP, 0)) == total
    return best


def cold(root: Path) -> None:
    """Nothing of the part is in memory, and then what a checked read brings."""
    (path,) = (root / "v1/bench/blobs").iterdir()
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    PartStore(Disk(root, "v1/bench")).part(FP, 0)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--megabytes", type=int, default=256)
    given.add_argument("--times", type=int, default=7)
    given.add_argument("--folder", default=None)
    told = given.parse_args()
    with tempfile.TemporaryDirectory(dir=told.folder) as name:
        made, root = batches(told.megabytes), Path(name)
        size = sum(each.nbytes for each in made)
        print(f"fill  {size / filled(root, made) / 1e9:6.2f} GB/s  ({size / 1e6:.0f} MB)")
        for state in ("as written", "from disk"):
            if state == "from disk":
                cold(root)
            best = measured(root, told.times)
            for way, took in best.items():
                rate = f"{took * 1e3:7.2f} ms {size / took / 1e9:6.2f} GB/s"
                print(f"{state:10}  {way:17} {rate} {best['limit'] / took:5.0%}")


@pytest.mark.parametrize("megabytes", [24])
def test_a_part_is_read_as_it_was_filled(tmp_path: Path, megabytes: int) -> None:
    filled(tmp_path, batches(megabytes))
    assert set(measured(tmp_path, 1)) == {"limit", "first", "later", "later, not summed"}
    cold(tmp_path)


if __name__ == "__main__":
    main()
