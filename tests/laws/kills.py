"""What tests with killed workers share: a pipeline, and the code that kills."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import dml

HANG_S = 60.0
FILES, ROWS, GROUP = 4, 9000, 1500


def worked(row: dict[str, Any]) -> dict[str, Any]:
    """Some work that cannot be lifted."""
    text = row["s"]
    for _ in range(6):
        text = text[1:] + text[:1]
    return {"k": row["k"], "s": text, "words": len(text.split("a"))}


def write(root: Path) -> Path:
    """The files that are read, in ``root``."""
    draw = random.Random(11)
    for number in range(FILES):
        texts = ["".join(draw.choices("abcdefgh", k=40)) for _ in range(ROWS)]
        table = pa.table({"k": list(range(ROWS)), "s": texts})
        pq.write_table(table, root / f"{number}.parquet", row_group_size=GROUP)
    return root


def pipeline(folder: Path, **options: Any) -> dml.Dataset:
    """Read, filtered, worked upon, shuffled and batched: the same epoch every time."""
    ds = dml.read_parquet(folder, columns=["k", "s"]).filter(dml.col("k") % 7 != 3).map(worked)
    ds = ds.shuffle(2000, seed=4).batch(256)
    return ds.with_options(telemetry_dir="off", target_partition_bytes=20_000, **options).epoch(0)


class Killer:
    """Kills one of ``targets()`` after random times, while it is entered; ``kills`` counts."""

    def __init__(
        self, targets: Callable[[], Sequence[int]], seed: int, most: int, each_s: float
    ) -> None:
        self.targets, self.draw, self.most, self.kills = targets, random.Random(seed), most, 0
        self.rate, self.over = 1 / each_s, threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self) -> None:
        while self.kills < self.most and not self.over.wait(self.draw.expovariate(self.rate)):
            if found := sorted(self.targets()):
                with suppress(ProcessLookupError):
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
