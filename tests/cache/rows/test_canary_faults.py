"""Test the check of stored rows while the store fails: the delivered rows are right."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dml
from dml.cache.store import open_stores
from dml.cache.store.disk import Disk
from dml.cache.store.health import StoreWarning
from dml.cache.store.primitives import UnusableError, UnwritableError
from dml.errors import QuarantineWarning
from tests.cache.rows.test_stored_rows import data
from tests.cluster import dask_cases
from tests.verify.lying import Said, kept, reads_a_file, scaled, values

__all__ = ["data"]


@pytest.fixture
def said(tmp_path: Path) -> Said:
    return Said(tmp_path)


@pytest.mark.law
@pytest.mark.parametrize("what", ["readonly", "full", "gone", "unplugged"])
def test_a_store_that_fails_meanwhile_costs_a_warning(
    data: Path, tmp_path: Path, said: Said, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, turned, _ = reads_a_file(said, monkeypatch)
    broken = False

    def breaking(row: dict[str, Any]) -> Any:
        nonlocal broken
        if what == "gone" and broken:
            shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        return function(row)

    put, get = Disk.put_if_absent, Disk.get

    def failing(self: Disk, name: str, text: bytes) -> bool:
        if broken and what in {"readonly", "full", "unplugged"}:
            raise (UnusableError if what == "unplugged" else UnwritableError)(what)
        return put(self, name, text)

    def lost(self: Disk, name: str) -> bytes | None:
        if broken and what == "unplugged" and "QUARANTINE" in name:
            raise UnusableError(what)
        return get(self, name)

    monkeypatch.setattr(Disk, "put_if_absent", failing)
    monkeypatch.setattr(Disk, "get", lost)
    ds = dml.read_parquet(data).map(breaking, fingerprint="breaking").cache(tier="disk")
    ds = kept(ds, tmp_path)
    turned(2)
    assert values(ds) == scaled(2)
    open_stores._OPEN.clear()
    broken = True
    turned(3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert values(ds) == scaled(3)
        assert values(ds) == scaled(3), "nor later, in this process"
    kinds = [each.category for each in told]
    assert kinds.count(QuarantineWarning) == 1
    assert kinds.count(StoreWarning) <= 1


@pytest.mark.cluster
@dask_cases.UNCLOSED
def test_workers_of_a_cluster_look_before_a_row_goes_on(
    data: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, turned, _ = reads_a_file(said, monkeypatch)
    ds = dml.read_parquet(data).map(function, fingerprint="far").cache(tier="disk")
    with dask_cases.cluster(processes=True) as cluster, Client(cluster) as client:
        ds = kept(ds, tmp_path, scheduler=client, executor="distributed")
        turned(2)
        assert values(ds) == scaled(2)
        turned(3)
        assert values(ds) == scaled(3)
        assert "StoredRowsQuarantined" in str(ds.stats())
        assert ds.cache_status()[0].quarantined.startswith("column 'y'")
        turned(4)
        assert values(ds) == scaled(4)
