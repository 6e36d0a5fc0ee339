"""Clusters, rows and pipelines that tests on Dask clusters share."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dml
from dml.cluster.worker_monitor import Hub
from tests.processes import LocalCluster

# what Dask leaves open is closed when it is collected
UNCLOSED = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning")
SOON_S = 90.0  # only a hang takes so long, however busy the machine is
ROWS = 12_000


def cluster(workers: int = 2, **options: Any) -> LocalCluster:
    usual = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    return LocalCluster(n_workers=workers, silence_logs=50, **{**usual, **options})


@pytest.fixture(scope="module")
def rows_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of rows, for the functions of PIPELINES."""
    root = tmp_path_factory.mktemp("rows")
    for part in range(3):
        start = part * ROWS // 3
        keys = np.arange(start, start + ROWS // 3)
        texts = [f"row {key}" for key in keys]
        values = np.random.Generator(np.random.Philox(part)).normal(size=len(keys))
        table = pa.table({"k": keys, "x": values, "s": texts})
        pq.write_table(table, root / f"{part}.parquet", row_group_size=500)
    return root


def turned(row: dict[str, Any]) -> dict[str, Any]:
    """Work that cannot be lifted."""
    text = row["s"]
    for _ in range(3):
        text = text[1:] + text[:1]
    return {"k": row["k"], "s": text, "words": len(text.split("o"))}


def halves(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"k": row["k"], "half": half} for half in range(row["k"] % 3)]


def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"k": batch["k"] * 2}


PIPELINES: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "columns": lambda ds: ds.select("k", "x").filter(dml.col("x") > 0).batch(100),
    "rows": lambda ds: ds.filter(dml.col("k") % 7 != 3).map(turned).shuffle(900, seed=4).batch(64),
    "children": lambda ds: ds.select("k").flat_map(halves).shuffle(seed=1).batch(50),
    "stages": lambda ds: ds.map_batches(doubled, num_cpus=2).map(lambda r: {"z": r["k"] + 1}),
    "nothing": lambda ds: ds.filter(dml.col("x") > 1000).batch(10),
    "part": lambda ds: ds.map(turned).take(3001).batch(7),
}


def written(folder: Path, name: str, **options: Any) -> dml.Dataset:
    ds = PIPELINES[name](dml.read_parquet(folder))
    return ds.with_options(**{"telemetry_dir": "off", **options}).epoch(0)


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while not holds() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    return holds()


def clean(client: Client) -> bool:
    """True once nothing of any run is left on the cluster."""
    scheduler = client.cluster.scheduler
    return eventually(
        lambda: not scheduler.tasks and not client.futures and not Hub.of(client).crews
    )
