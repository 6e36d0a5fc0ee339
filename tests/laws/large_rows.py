"""Run random pipelines over rows of 4 MiB, each in a process of its own.

    python -m tests.laws.large_rows NUMBER

This prints the output, and the output of the same pipeline over small rows.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import dml
from dml.api.dataset import Dataset
from dml.errors import DmlError
from tests.laws.adversarial_run import MIB, say

LIMIT_BYTES = 64 * MIB
LARGE = MIB  # numbers of 4 bytes
ROWS = 30
EXECUTORS = ("threads", "threads", "threads", "sync", "processes")
WORKERS = 2
Row = dict[str, Any]


class Functions:
    """Functions of rows with an array ``x`` of ``size`` numbers, each the row's ``id``."""

    def __init__(self, size: int) -> None:
        self.size = size

    def load(self, row: Row) -> Row:
        return {"id": row["id"], "x": np.full(self.size, row["id"], "f4")}

    def again(self, row: Row) -> Row:
        return {"id": row["id"], "x": row["x"] + 0}

    def keep(self, row: Row) -> bool:
        return bool(row["x"][-1] % 3)

    def parts(self, row: Row) -> Iterator[Row]:
        for part in range(2):
            yield {"id": row["id"] + part, "x": row["x"] + part}

    def columns(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"id": batch["id"], "x": batch["x"] * 1}


def below(draw: random.Random) -> Dataset:
    """Small rows, in some order."""
    ids = {"id": list(range(ROWS))}
    ds = draw.choice([dml.range(ROWS), dml.range(ROWS, atom_rows=4), dml.from_dict(ids)])
    verbs: list[Callable[[], Dataset]] = [
        lambda: ds,
        lambda: ds.shuffle(10, seed=1),
        lambda: ds.concat(ds).take(ROWS),
        lambda: ds.batch(4).unbatch(),
    ]
    return draw.choice(verbs)()


def above(draw: random.Random, ds: Dataset, f: Functions) -> Dataset:
    """One more step over large rows."""
    other = ds.select("id").rename({"id": "other"})
    verbs: list[Callable[[], Dataset]] = [
        lambda: ds.map(f.again),
        lambda: ds.map(f.again, num_cpus=0.5),
        lambda: ds.map(f.again, concurrency=1),
        lambda: ds.filter(f.keep),
        lambda: ds.flat_map(f.parts),
        lambda: ds.map_batches(f.columns, batch_size=draw.choice([1, 2])),
        lambda: ds.batch(2).map(f.columns).unbatch(),
        lambda: ds.shuffle(2, seed=2),
        lambda: ds.concat(ds),
        lambda: ds.mix(ds),
        lambda: dml.zip(ds, other),
        lambda: ds.repeat(2),
        lambda: ds.sort("id", descending=True),
        lambda: ds.take(20),
    ]
    return draw.choice(verbs)().select("id", "x")


def drawn(number: int, size: int) -> tuple[Dataset, str]:
    """Pipeline ``number`` over rows of ``size`` numbers, and who runs it."""
    draw, f = random.Random(number), Functions(size)
    ds = below(draw).map(f.load)
    for _ in range(draw.randint(0, 3)):
        ds = above(draw, ds, f)
    ds = ds.batch(draw.choice([1, 2])) if draw.random() < 0.7 else ds
    return ds, draw.choice(EXECUTORS)


def counted(ds: Dataset) -> list[int]:
    """Rows, and the sums of their ids and of the last numbers of their arrays."""
    found = np.zeros(3, "i8")
    for element in ds:
        ids = np.atleast_1d(element["id"])
        last = np.reshape(element["x"], (len(ids), -1))[:, -1]
        found += [len(ids), ids.sum(), int(last.sum())]
    return [int(each) for each in found]


def processes(number: int) -> int:
    """How many it takes."""
    return 1 + WORKERS * (drawn(number, 1)[1] == "processes")


def main() -> None:
    number, error = int(sys.argv[1]), list[str]()
    given: dict[str, Any] = {"memory_limit": LIMIT_BYTES, "telemetry_dir": "off"}
    wanted = counted(drawn(number, 1)[0].with_options(executor="sync", **given))
    found = list[int]()
    try:
        ds, executor = drawn(number, LARGE)
        found = counted(ds.with_options(executor=executor, num_workers=WORKERS, **given))
    except DmlError as raised:
        error = [type(raised).__name__, raised.what, raised.at, raised.why, raised.try_]
    told = {"rows": int(found == wanted), "total": int(not error), "error": error}
    say(json.dumps(told))
    os._exit(0)


if __name__ == "__main__":
    main()
