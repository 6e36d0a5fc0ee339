"""Rows and pipelines that tests of driver processes share, and a check for leftovers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from tests.idle import descriptors, no_drivers, no_workers

HANG_S = 60.0
ROWS, GROUP = 3000, 100


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "numbers.parquet"
    rows = np.arange(ROWS)
    x = np.random.Generator(np.random.Philox(5)).normal(size=(ROWS,))
    pq.write_table(pa.table({"n": rows, "x": x}), path, row_group_size=GROUP)
    return path


@pytest.fixture
def numbers(table: Path) -> Dataset:
    return dml.read_parquet(table).with_options(telemetry_dir="off", num_workers=2)


@pytest.fixture(scope="module", autouse=True)
def nothing_stays() -> Iterator[None]:
    """After all of these tests: no process, and no descriptor that was not there before."""
    no_workers(HANG_S)
    no_drivers(HANG_S)
    before = descriptors()
    yield
    no_workers(HANG_S)
    no_drivers(HANG_S)
    assert not descriptors() - before


def afar(ds: Dataset, **options: Any) -> Dataset:
    return ds.with_options(driver="process", **options)


def texts(row: dict[str, Any]) -> dict[str, Any]:
    """Its types are settled by rows."""
    return {"n": row["n"], "t": str(row["n"]) * 2, "v": [row["n"], 1] if row["n"] % 7 else None}


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    threads = [Path(task / "children") for task in Path(f"/proc/{pid}/task").iterdir()]
    more = [each for path in threads for each in path.read_text().split()]
    return sorted({int(each) for each in (*found, *more)})


def gone(pids: list[int]) -> None:
    """All of them have ended; a child that nobody waited for has."""
    until = time.monotonic() + HANG_S
    while any(map(lives, pids)):
        assert time.monotonic() < until, pids
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
