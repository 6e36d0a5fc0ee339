"""The whole story on one page, to read first: write, inspect, run, stop and resume a pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col


@pytest.fixture
def ds(tmp_path: Path) -> dml.Dataset:
    """A pipeline over 1000 clicks in two Parquet files; writing it runs nothing."""
    for part in range(2):
        ids = np.arange(part * 500, part * 500 + 500)
        clicks = pa.table({"id": ids, "price": ids / 10 - 5, "site": [f"s{i % 7}" for i in ids]})
        pq.write_table(clicks, tmp_path / f"part-{part}.parquet", row_group_size=100)
    return (
        dml.read_parquet(tmp_path)
        .filter(col("price") > 0)
        .map(lambda row: {"id": row["id"], "price": row["price"] * 2, "site": row["site"]})
        .with_columns(site=col("site").hash(32), dear=col("price") > 100)
        .shuffle(seed=1)
        .batch(64)
        .with_options(num_workers=2, telemetry_dir="off")
    )


def test_look(ds: dml.Dataset, tmp_path: Path) -> None:
    assert "Filter((price > 0))" in ds.explain("written")
    assert "skips units by (price > 0)" in ds.explain("physical")
    assert len(ds.fingerprint()) == 32  # equal text, equal bytes
    with pytest.raises(dml.errors.SchemaError, match=r"(?s)'prise'.*test_tiny\.py.*mean 'price'"):
        dml.read_parquet(tmp_path).filter(col("prise") > 0)  # what, where, why, what to try


def test_run(ds: dml.Dataset) -> None:
    first, second = (list(ds), list(ds))  # two epochs: each row once, in an order of its own
    assert [len(batch["id"]) for batch in first] == [64] * 14 + [53]
    one, two = (np.concatenate([batch["id"] for batch in epoch]) for epoch in (first, second))
    assert sorted(one) == sorted(two) == list(range(51, 1000))
    assert not np.array_equal(one, two)


@pytest.mark.law
def test_stop_and_go_on(ds: dml.Dataset) -> None:
    whole, it = list(ds.epoch(0)), iter(ds)
    for _ in range(5):
        next(it)
    state = json.dumps(it.state_dict())  # in a file, in another process ...
    resumed = iter(ds)
    resumed.load_state_dict(json.loads(state))
    for batch, expected in zip(resumed, whole[5:], strict=True):
        assert all(np.array_equal(batch[name], expected[name]) for name in expected)
