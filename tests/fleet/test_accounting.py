"""Test recorded rows and bytes of operators against what their pipelines deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dml
from dml import Dataset, col
from dml.api import run_telemetry
from dml.events import OperatorTotals
from dml.fleet.reader import read
from tests.cluster.dask_cases import cluster

ROWS = 20_000
Step = Callable[[Dataset], Dataset]


def scaled(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "z": float(row["y"]) * 2}


def doubled(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"x": row["x"]}, {"x": -row["x"]}]


def odd(row: dict[str, Any]) -> bool:
    return bool(row["x"] % 2)


def halves(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": batch["x"] // 2}


PIPELINES: dict[str, Sequence[Step]] = {
    "filter": [lambda d: d.filter(col("x") > 5_000)],
    "columns": [lambda d: d.with_columns(w=col("x") * 2), lambda d: d.select("w", "s")],
    "function": [lambda d: d.map(scaled)],
    "functions": [lambda d: d.map(scaled), lambda d: d.filter(odd)],
    "more rows": [lambda d: d.flat_map(doubled)],
    "batches": [lambda d: d.map_batches(halves), lambda d: d.batch(64)],
    "shuffle": [lambda d: d.shuffle(500), lambda d: d.filter(col("x") % 3 == 0)],
    "slice": [lambda d: d.take(9_000), lambda d: d.skip(1_000)],
    "drop": [lambda d: d.drop("s"), lambda d: d.map(scaled)],
    "text": [
        lambda d: d.with_columns(u=col("s").str.to_uppercase()),
        lambda d: d.filter(col("x") < 99),
    ],
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    table = pa.table({
        "x": np.arange(ROWS), "y": np.arange(ROWS) * 0.5, "s": [f"row {n}" for n in range(ROWS)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2_000)
    return tmp_path / "t.parquet"


def truth(ds: Dataset) -> tuple[int, int]:
    """Rows that a pipeline delivers, and the bytes of their values as Arrow counts them."""
    table = (ds.unbatch() if ds._node.batched else ds).to_arrow()
    return table.num_rows, table.nbytes


def recorded(ds: Dataset, root: Path) -> list[tuple[int, int]]:
    """Rows and bytes out of each operator above the source, as the store has them."""
    list(ds)
    collector = run_telemetry.collector_of(ds._settings)
    assert collector is not None
    assert collector.flush()
    found: dict[int, tuple[int, int]] = {}
    for event in read(root):
        if isinstance(event, OperatorTotals) and event.ordinal:
            rows, nbytes = found.get(event.ordinal, (0, 0))
            found[event.ordinal] = rows + event.rows_out, nbytes + event.bytes_out
    return [found[ordinal] for ordinal in sorted(found)]


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_rows_and_bytes_are_those_of_the_data(
    tmp_path: Path, source: Path, name: str, executor: str
) -> None:
    judged(name, source, tmp_path / "t", executor=executor)


@pytest.mark.cluster
def test_they_are_on_a_cluster_too(tmp_path: Path, source: Path) -> None:
    with cluster(2, processes=True) as made, Client(made) as client:
        for name in PIPELINES:
            judged(name, source, tmp_path / name, scheduler=client)


def judged(name: str, source: Path, root: Path, **options: Any) -> None:
    """Run a pipeline as written; compare each operator with the pipeline that ends with it."""
    ds = dml.read_parquet(source)
    wanted = []
    for step in PIPELINES[name]:
        ds = step(ds)
        wanted.append(truth(ds.with_options(telemetry_dir="off")))
    got = recorded(ds.with_options(telemetry_dir=str(root), optimize=False, **options), root)
    assert [rows for rows, _ in got] == [rows for rows, _ in wanted], name
    assert [size for _, size in got] == pytest.approx([size for _, size in wanted], rel=0.01), name
