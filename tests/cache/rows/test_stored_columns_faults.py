"""Regression tests of rows and columns that pipelines share through a store."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.cache.lookup import cache_index
from dml.cache.parts import parts
from tests.cache.rows.test_stored_columns import GROUPS, ROWS, Calls, calls, data, kept, on_disk

__all__ = ["calls", "data"]
pytestmark = pytest.mark.usefixtures("unchecked")


def test_filters_that_are_one_in_the_type_of_the_column(tmp_path: Path) -> None:
    """As float32, 0.1 and a little more are the same number, which only one of both keeps."""
    table = pa.table({"x": np.array([0.05, 0.1, 0.2], np.float32)})
    pq.write_table(table, tmp_path / "x.parquet")
    ds = dml.read_parquet(tmp_path / "x.parquet")
    kept(ds.filter(col("x") > 0.1), tmp_path)
    asked = ds.filter(col("x") >= 0.1 + 1e-12)
    assert kept(asked, tmp_path) == list(asked)
    assert len(list(asked)) == 2


@pytest.mark.parametrize("failing", ["leases", "room"])
def test_without_a_place_for_them_rows_below_are_made_once(
    failing: str, data: Path, tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are stored first where somebody knows what becomes of such rows."""

    def job(name: str, factor: int) -> list[dict[str, Any]]:
        lower = calls.row(name, lambda row: {"v": row["x"] * factor})
        upper = calls.row("upper", lambda row: {"w": row["v"] + 1})
        below = dml.read_parquet(data).map(lower["fn"], fingerprint=name).cache(tier="disk")
        made = below.map(upper["fn"], fingerprint="upper", schema={"w": "int64"})
        return kept(made, tmp_path)

    job("first", 2)
    calls.taken()
    if failing == "leases":
        monkeypatch.setattr(parts.PartStore, "fill", lambda *_: None)
    else:
        monkeypatch.setattr(parts.PartStore, "_published", lambda *_: False)
    assert job("other", 3) == [{"w": x * 3 + 1} for x in range(ROWS)]
    made = calls.taken()
    assert made["upper"] == ROWS
    assert made["other"] == ROWS + (failing == "room") * ROWS // GROUPS, "a unit shows it"


@pytest.mark.parametrize("others", ["swapped", "renamed"])
def test_columns_that_two_pipelines_call_otherwise(
    others: str, data: Path, tmp_path: Path, calls: Calls
) -> None:
    """The first stores some of them beside what was there, the second the rest of them."""
    read, x = dml.read_parquet(data), col("x")
    f, g = calls.udf("f", lambda v: v * 2.0), calls.udf("g", lambda v: v * 3.0 + 1)
    kept(read.select("z"), tmp_path)
    first = read.with_columns(a=f(x), b=g(x)).select("z", "a", "b")
    made = {"b": f(x), "a": g(x)} if others == "swapped" else {"c": f(x), "d": g(x)}
    second = read.with_columns(**made).select("z", *made)
    rows = iter(on_disk(first, tmp_path))
    for _ in range(ROWS // 5):
        next(rows)
    rows.close()
    assert kept(second, tmp_path) == list(second)
    assert kept(first, tmp_path) == list(first)


def test_rows_of_the_same_content_are_found_again_once_the_first_are_gone(
    data: Path, tmp_path: Path, calls: Calls
) -> None:
    def job(name: str) -> dml.Dataset:
        lower = calls.row(name, lambda row: {"v": row["x"] * 2})
        upper = calls.row("upper", lambda row: {"w": row["v"] + 1})
        below = dml.read_parquet(data).map(lower["fn"], fingerprint=name).cache(tier="disk")
        return on_disk(below.map(upper["fn"], fingerprint="upper"), tmp_path)

    first = job("first")
    list(first)
    catalog = dml.Catalog(tmp_path / "kept" / "store")
    catalog.evict(catalog.lookup(first).fingerprint)
    list(job("second"))
    assert calls.taken()["upper"] == 2 * ROWS
    list(job("third"))
    assert calls.taken() == {"third": ROWS}, "the second has them"


def test_what_is_damaged_beside_the_entries_is_said_again(
    data: Path, tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_index, "_INDEXES", weakref.WeakKeyDictionary())
    read, f = dml.read_parquet(data), calls.udf("f", lambda v: v * 2.0)
    features = on_disk(read.with_columns(a=f(col("x"))), tmp_path)
    list(features)
    told = [each for each in (tmp_path / "kept").rglob("c/*/*/*/**/*") if each.is_file()]
    assert told
    for each in told:
        each.write_bytes(b"damaged")
    features.clear_cache()
    cache_index._INDEXES.clear()  # as another process begins
    list(features)
    calls.taken()
    cache_index._INDEXES.clear()
    assert kept(read.select(b=f(col("x"))), tmp_path) == [{"b": x * 2.0} for x in range(ROWS)]
    assert not calls.taken()
