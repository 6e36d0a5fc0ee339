"""This file tells the whole story in a page, the first to read: write, look, run, stop, go on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col


def test_the_story(tmp_path: Path) -> None:
    # Data: 1000 clicks in two Parquet files, in row groups of 100.
    for part in range(2):
        ids = np.arange(part * 500, part * 500 + 500)
        clicks = pa.table({"id": ids, "price": ids / 10 - 5, "site": [f"s{i % 7}" for i in ids]})
        pq.write_table(clicks, tmp_path / f"part-{part}.parquet", row_group_size=100)

    # A pipeline is written in plain Python over symbolic columns. Nothing runs yet.
    ds = (
        dml.read_parquet(tmp_path)
        .filter(col("price") > 0)
        .map(lambda row: {"id": row["id"], "price": row["price"] * 2, "site": row["site"]})
        .with_columns(site=col("site").hash(32), dear=col("price") > 100)
        .shuffle(seed=1)
        .batch(64)
        .with_options(num_workers=2, telemetry_dir="off")
    )
    assert "Filter((price > 0))" in ds.explain("written")
    assert "(price > 0)" in ds.explain("physical")  # row groups are skipped by it
    assert len(ds.fingerprint()) == 32  # equal text, equal bytes

    # It runs when it is iterated: dicts of arrays, each row once, in an order of the epoch's own.
    first, second = list(ds), list(ds)
    assert [len(batch["id"]) for batch in first] == [64] * 14 + [53]
    assert first[0]["dear"].dtype == np.bool_
    rows = np.concatenate([batch["id"] for batch in first])
    assert sorted(rows) == list(range(51, 1000)) != list(rows)
    assert list(rows) != list(np.concatenate([batch["id"] for batch in second]))

    # Stopped anywhere, it goes on there, from a small piece of JSON.
    it = iter(ds.epoch(0))
    for _ in range(5):
        next(it)
    state = json.loads(json.dumps(it.state_dict()))
    it.close()
    resumed = iter(ds)
    resumed.load_state_dict(state)
    for batch, expected in zip(resumed, first[5:], strict=True):
        assert all(np.array_equal(batch[name], expected[name]) for name in expected)

    # A mistake says what, where, why, and what to try, at the line that made it.
    with pytest.raises(dml.errors.SchemaError, match=r"(?s)'prise'.*test_tiny\.py.*mean 'price'"):
        dml.read_parquet(tmp_path).filter(col("prise") > 0)
