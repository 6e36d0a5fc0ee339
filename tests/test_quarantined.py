"""Test what users are told of an entry with wrong rows, and how its quarantine ends."""

from __future__ import annotations

from pathlib import Path

import pytest

import dml
from dml.api.catalog import Catalog
from dml.api.dataset import Dataset
from dml.cache.store import open_stores
from dml.errors import CacheError, QuarantineWarning
from tests.cache.rows.test_stored_rows import data
from tests.verify.lying import Said, kept, reads_a_file, scaled, values

__all__ = ["data"]


@pytest.fixture
def caught(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A pipeline whose entry was quarantined."""
    function, turned, _ = reads_a_file(Said(tmp_path), monkeypatch)
    ds = kept(dml.read_parquet(data).map(function).cache(tier="disk"), tmp_path)
    turned(2)
    assert values(ds) == scaled(2)
    turned(3)
    with pytest.warns(QuarantineWarning):
        assert values(ds) == scaled(3)
    return ds


@pytest.mark.law
def test_everybody_is_told_why(caught: Dataset, tmp_path: Path) -> None:
    wrong = "column 'y' is another value, MapRows(lies)"
    (status,) = caught.cache_status()
    assert status.quarantined.startswith(wrong)
    assert "which is quarantined: column 'y'" in str(caught.cache_status())
    assert "which is quarantined: column 'y'" in caught.explain("physical")
    catalog = Catalog(tmp_path / "kept" / "store")
    (entry,) = catalog
    assert entry.quarantined == catalog.entry(entry.fingerprint).quarantined
    assert entry.quarantined.startswith(wrong)
    assert entry.about["operators"], "what it was is still told"
    found = catalog.lookup(caught)
    assert (found.state, found.parts, found.fingerprint) == ("miss", 0, entry.fingerprint)
    assert f"quarantined: {wrong}" in str(found)
    for given in (None, entry.fingerprint[:6]):
        miss = catalog.why_miss(caught, given)
        assert miss.kind == "quarantined"
        assert "what was kept of it was wrong: column 'y'" in str(miss)
        assert "MapRows(lies)" in str(miss)
        assert "clear_cache()" in str(miss)


@pytest.mark.law
@pytest.mark.parametrize("way", ["evict", "clear_cache"])
def test_it_ends_by_hand(caught: Dataset, tmp_path: Path, way: str) -> None:
    catalog = Catalog(tmp_path / "kept" / "store")
    (entry,) = catalog
    if way == "evict":
        assert catalog.evict(entry.fingerprint[:6])
        assert not catalog.evict(entry.fingerprint)
    else:
        caught.clear_cache()
    assert not list(catalog)
    with pytest.raises(CacheError):
        catalog.entry(entry.fingerprint)
    assert not caught.cache_status()[0].quarantined
    for _ in range(2):
        assert values(caught) == scaled(3)
    assert catalog.lookup(caught).state == "hit"


@pytest.mark.law
def test_autocache_leaves_it(data: Path, tmp_path: Path) -> None:
    ds = kept(dml.read_parquet(data).map(dict, fingerprint="auto").autocache(), tmp_path)
    (status,) = ds.cache_status()
    assert "what was kept was wrong" not in str(status)
    store = open_stores.store_at(open_stores.Where(str(tmp_path / "kept" / "store")))
    assert store.quarantine(status.name, {"what": "column 'x' is another value"})
    for _ in range(3):
        assert "COMPUTE what was kept was wrong, and is quarantined" in str(ds.cache_status())
        assert [row["x"] for row in ds] == scaled(1)
    assert not list((tmp_path / "kept").rglob("*.arrow"))
    ds.clear_cache()
    assert "what was kept was wrong" not in str(ds.cache_status())
