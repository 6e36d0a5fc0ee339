"""Test that pipelines of ordinary functions do not read the bytes of unused columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset

ROWS, GROUP, PICTURE = 240, 60, 400
SCALE = [2]  # a list could change, so functions that read it are called, and not lifted

Row = dict[str, Any]


def plus(row: Row) -> Row:
    """Lifted."""
    return {"id": row["id"] + 1, "x": row["x"] * 2}


def scaled(row: Row) -> Row:
    """Called."""
    return {"id": row["id"], "x": row["x"] * SCALE[0]}


def kept(row: Row) -> bool:
    return bool(row["id"] % 3 != SCALE[0])


def other() -> Dataset:
    return dml.from_dict({"id": list(range(0, ROWS, 2)), "y": list(range(0, ROWS, 2))})


PIPELINES: dict[str, Callable[[Dataset], Dataset]] = {
    "map, lifted": lambda ds: ds.map(plus),
    "map, called": lambda ds: ds.map(scaled),
    "filter, then map": lambda ds: ds.filter(kept).map(scaled),
    "several maps": lambda ds: ds.map(plus).map(scaled).map(plus).map(plus),
    "flat_map": lambda ds: ds.flat_map(lambda row: [{"id": row["id"], "x": row["x"]}] * SCALE[0]),
    "map_batches": lambda ds: ds.map_batches(
        lambda batch: {"x": batch["x"] * SCALE[0]}, batch_size=16
    ),
    "with_columns, then map": lambda ds: ds.with_columns(x=col("x") + col("id")).map(scaled),
    "filter of a column, then map": lambda ds: ds.filter(col("x") > 9).map(plus),
    "columns between functions": lambda ds: (
        ds.filter(kept).with_columns(x=col("x") + 1).filter(col("x") > 9).map(scaled)
    ),
    "shuffle, then map": lambda ds: ds.shuffle(50, seed=1).map(scaled),
    "shuffle, columns, then map": lambda ds: (
        ds.shuffle(50, seed=1).with_columns(x=col("x") / 2).filter(col("x") > 9).map(scaled)
    ),
    "full shuffle, take, then map": lambda ds: ds.shuffle(seed=1).take(100).map(plus),
    "join, then map": lambda ds: (
        ds.select("id", "x").join(other(), on="id").map(lambda row: {"z": row["x"] + row["y"]})
    ),
    "map of batches": lambda ds: ds.batch(16).map(lambda batch: {"x": batch["x"] * SCALE[0]}),
    "random_map": lambda ds: ds.random_map(lambda row, rng: {"x": row["x"] + rng.random()}),
    "map that skips errors": lambda ds: ds.filter(col("id") > 5).map(
        lambda row: {"q": row["x"] / (row["id"] % 7) * SCALE[0]}, on_error="skip"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of two small columns, and a large one that no function looks up."""
    made = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "id": range(ROWS),
            "picture": [draw.bytes(PICTURE) for _ in range(ROWS)],
            "x": np.arange(ROWS) / 4,
        }
    )
    pq.write_table(table, made / "a.parquet", row_group_size=GROUP)
    return made


def run(ds: Dataset) -> tuple[list[str], int]:
    """Elements as text, and the bytes that were read."""
    iterator = iter(ds.with_options(executor="sync", telemetry_dir="off"))
    return list(map(repr, iterator)), int(iterator.stats().summary["bytes_read"])


@pytest.mark.law
@pytest.mark.parametrize("name", PIPELINES)
def test_a_column_that_no_function_looks_up_is_not_read(folder: Path, name: str) -> None:
    ds = PIPELINES[name](dml.read_parquet(folder))
    rows, read = run(ds)
    assert 0 < read < ROWS * PICTURE / 4
    every, all_read = run(ds.with_options(optimize=False))
    assert all_read > ROWS * PICTURE or "join" in name  # which selects columns itself
    assert rows == every
    assert len(rows) > 10


@pytest.mark.law
@pytest.mark.parametrize("name", ["map, called", "columns between functions"])
def test_a_function_that_may_notice_the_column_reads_it(folder: Path, name: str) -> None:
    noticing = PIPELINES[name](dml.read_parquet(folder).map(lambda row: {**row, "n": len(row)}))
    assert run(noticing)[1] > ROWS * PICTURE
