"""This file kills workers at random moments: the bytes stay the same, and nothing is left."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.testing.stream_hash import stream_hash

HANG_S = 60.0


def worked(row: dict[str, Any]) -> dict[str, Any]:
    """Some work that cannot be lifted."""
    text = row["s"]
    for _ in range(6):
        text = text[1:] + text[:1]
    return {"k": row["k"], "s": text, "words": len(text.split("a"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kills")
    draw = random.Random(11)
    for number in range(4):
        texts = ["".join(draw.choices("abcdefgh", k=40)) for _ in range(9000)]
        table = pa.table({"k": list(range(9000)), "s": texts})
        pq.write_table(table, root / f"{number}.parquet", row_group_size=1500)
    return root


def pipeline(folder: Path, **options: Any) -> dml.Dataset:
    ds = dml.read_parquet(folder, columns=["k", "s"]).filter(dml.col("k") % 7 != 3).map(worked)
    ds = ds.shuffle(2000, seed=4).batch(256)
    return ds.with_options(telemetry_dir="off", target_partition_bytes=20_000, **options).epoch(0)


@pytest.fixture(scope="module")
def wanted(folder: Path) -> str:
    return stream_hash(pipeline(folder, executor="sync"))


def workers() -> list[int]:
    """Worker processes that are children of this one."""
    entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(entry.name) for entry in entries if _is_worker(entry)]


def _is_worker(entry: Path) -> bool:
    try:
        line = (entry / "cmdline").read_bytes()
        parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return False
    return b"dml.exec.worker" in line and int(parent) == os.getpid()


class Killer:
    """Kills a random worker after random times, while it is entered; ``kills`` counts."""

    def __init__(self, seed: int, most: int) -> None:
        self.draw, self.most, self.kills = random.Random(seed), most, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self) -> None:
        while self.kills < self.most and not self.over.wait(self.draw.expovariate(6.0)):
            if found := workers():
                os.kill(self.draw.choice(found), signal.SIGKILL)
                self.kills += 1

    def __enter__(self) -> Killer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def within(batches: Iterator[Any], seconds: float) -> Iterator[Any]:
    """``batches``, none of which may take longer than ``seconds``."""
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        assert time.perf_counter() - started < seconds
        if batch is None:
            return
        yield batch


def test_killed_processes_change_no_byte(
    folder: Path, wanted: str, many: Callable[[int, int], int]
) -> None:
    kills, run = 0, 0
    while kills < many(4, 100):
        run += 1
        # more losses of one slice than are forgiven would be an error, as it should be
        with Killer(run, most=3) as killer:
            ds = pipeline(folder, executor="processes", num_workers=2)
            assert stream_hash(within(iter(ds), HANG_S)) == wanted, run
        kills += killer.kills


def test_files_and_processes_of_a_run_are_gone(folder: Path, wanted: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    ds = pipeline(folder, executor="processes", num_workers=2)
    assert stream_hash(ds) == wanted
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:dml")
    assert mapped == 0
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 2  # connections to idle workers
