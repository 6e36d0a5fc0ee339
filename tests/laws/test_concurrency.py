"""Law: with ``concurrency=2``, at most two calls run at once; calls are counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset

ROWS, MOST = 120, 2
LOOKS = 30  # of a call that waits for others to come


class Noting:
    """A function whose running calls have a file each, which any process sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        for name in ("running", "most"):
            (folder / name).mkdir(parents=True)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mine = f"{self.folder}/running/{os.getpid()}-{threading.get_ident()}"
        Path(mine).touch()
        most = max(len(os.listdir(f"{self.folder}/running")) for _ in range(LOOKS))
        Path(mine).unlink()
        Path(f"{self.folder}/most/{most}").touch()
        return {"id": row["id"]}

    def seen(self) -> list[int]:
        """How many there were at once, of all calls."""
        return sorted(int(path.name) for path in Path(self.folder, "most").iterdir())


def units(folder: Path) -> Dataset:
    path = folder / "units.parquet"
    pq.write_table(pa.table({"id": range(ROWS)}), path, row_group_size=10)
    return dml.read_parquet(path)


Made = Callable[[Dataset, Noting], Dataset]
WHERE: dict[str, Made] = {
    "source": lambda ds, f: ds.map(f, concurrency=MOST),
    "shuffle": lambda ds, f: ds.shuffle(20).map(f, concurrency=MOST),
    "shuffle of all": lambda ds, f: ds.shuffle().map(f, concurrency=MOST),
    "batch": lambda ds, f: ds.batch(3).map(f, concurrency=MOST),
    "zip": lambda ds, f: dml.zip(ds, ds.rename({"id": "other"})).map(f, concurrency=MOST),
    "repeat": lambda ds, f: ds.repeat(2).map(f, concurrency=MOST),
    "below repeat": lambda ds, f: ds.map(f, concurrency=MOST).repeat(3),
    "below shuffle and repeat": lambda ds, f: ds.map(f, concurrency=MOST).shuffle(9).repeat(3),
    "between others": lambda ds, f: ds.map(same).map(f, concurrency=MOST).map(same, num_cpus=2),
}


def same(row: dict[str, Any]) -> dict[str, Any]:
    return dict(row)


def most_at_once(tmp_path: Path, where: str, executor: str) -> int:
    noting = Noting(tmp_path)
    ds = WHERE[where](units(tmp_path), noting)
    workers = 8 if executor == "threads" else 3
    options: dict[str, Any] = {"executor": executor, "num_workers": workers, "prefetch": 0}
    assert list(ds.with_options(telemetry_dir="off", **options))
    return noting.seen()[-1]


@pytest.mark.law
@pytest.mark.parametrize("where", WHERE)
def test_on_threads_it_is_obeyed_wherever_it_stands(tmp_path: Path, where: str) -> None:
    assert 1 <= most_at_once(tmp_path, where, "threads") <= MOST


@pytest.mark.sample(3)
@pytest.mark.cluster
@pytest.mark.parametrize("where", ["source", "shuffle", "batch", "zip", "repeat", "below repeat"])
def test_in_processes_it_is_obeyed_wherever_it_stands(tmp_path: Path, where: str) -> None:
    assert 1 <= most_at_once(tmp_path, where, "processes") <= MOST
