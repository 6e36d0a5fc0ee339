"""Test that commands which only inspect a store find it, and write nothing there."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dml
from dml.api.catalog import Catalog
from dml.cache.eviction.uses import PartUses
from dml.cache.store import layout
from dml.cache.store.bucket import Bucket
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import UnwritableError
from dml.errors import PlanError
from tests.api.test_catalog import NAMES, base, described, kept
from tests.cache.conftest import bucket_options

__all__ = ["bucket_options"]

LONG_S = 30 * 86_400.0


def everything(root: Path) -> dict[str, tuple[int, int]]:
    """Each file and folder, with its size and the moment in which it was last written.

    A folder is written by whoever makes or removes a name in it, even for a moment.
    """
    found = [root, *root.rglob("*")]
    return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in found}


LOOKS: dict[str, Callable[[Catalog], Any]] = {
    "list": list,
    "entry": lambda catalog: [catalog.entry(each.fingerprint) for each in catalog],
    "lookup": lambda catalog: catalog.lookup(base()),
    "lookup of elements": lambda catalog: catalog.lookup(base().shuffle().cache(tier="disk")),
    "why_miss": lambda catalog: catalog.why_miss(base(3)),
    "verify": lambda catalog: catalog.verify(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("namespace", ["default", "other"])
@pytest.mark.parametrize("full", [True, False], ids=["full", "empty"])
def test_looking_writes_nothing_not_even_for_a_moment(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[Catalog], Any],
    namespace: str,
    *,
    full: bool,
) -> None:
    home, root = tmp_path / "home", tmp_path / "root"
    home.mkdir()
    root.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    if full:
        described(root, base())
    before = everything(tmp_path)
    look(Catalog(root, namespace))
    assert everything(tmp_path) == before


def test_who_looks_leaves_what_others_told_long_ago(tmp_path: Path) -> None:
    """A run that needs room removes it; who looks has no business there."""
    kept(tmp_path, NAMES[1])
    (told,) = (tmp_path / "v1" / "default" / "uses").iterdir()
    then = time.time() - LONG_S
    os.utime(told, (then, then))
    (entry,) = Catalog(tmp_path)
    assert entry.used_s is not None
    assert entry.used_s == pytest.approx(LONG_S, rel=0.01)
    assert told.exists()
    PartUses(Disk(tmp_path, layout.namespace("default"))).gathered()
    assert not told.exists()


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with an entry in which no file can be made, whoever runs the tests."""
    kept(tmp_path, NAMES[1])

    def refused(self: Disk) -> Path:
        raise PermissionError(13, "Permission denied", str(self._root))

    monkeypatch.setattr(Disk, "_fresh", refused)
    return tmp_path


def test_a_store_that_can_only_be_read_tells_how_it_was_used(read_only: Path) -> None:
    (entry,) = Catalog(read_only)
    assert entry.uses > 0
    assert entry.used_s is not None


def test_what_would_write_there_says_that_it_cannot_be_written(read_only: Path) -> None:
    catalog = Catalog(read_only)
    for verb in (catalog.gc, partial(catalog.pin, NAMES[1]), partial(catalog.evict, NAMES[1])):
        with pytest.raises(UnwritableError, match="the store cannot be written"):
            verb()


# ------------------------------------------------------------------------- where the store is


def in_cache_dir(folder: Path) -> dml.Dataset:
    ds = dml.range(20).map(lambda row: {"z": row["id"]}).cache(tier="disk")
    ds = ds.with_options(cache_dir=str(folder))
    list(ds)
    return ds


def test_a_cache_dir_stands_for_the_store_in_it(tmp_path: Path) -> None:
    ds = in_cache_dir(tmp_path)
    catalog = Catalog(tmp_path)
    assert catalog.path == str(tmp_path / "store")
    assert catalog.lookup(ds).state == "hit"
    assert Catalog(tmp_path / "store").path == str(tmp_path / "store")
    assert Catalog(f"{tmp_path}/").path == str(tmp_path / "store")
    assert not (tmp_path / "v1").exists()


def test_what_is_kept_in_the_root_itself_comes_first(tmp_path: Path) -> None:
    in_cache_dir(tmp_path)
    kept(tmp_path, NAMES[1])
    (entry,) = Catalog(tmp_path)
    assert entry.fingerprint == NAMES[1]
    assert Catalog(tmp_path, "other").path == str(tmp_path)


def test_a_folder_without_a_store_is_what_it_is(tmp_path: Path) -> None:
    assert Catalog(tmp_path).path == str(tmp_path)


def test_a_private_namespace_of_a_cache_dir_is_in_its_store(tmp_path: Path) -> None:
    in_cache_dir(tmp_path)
    catalog = Catalog.private(tmp_path, "mine")
    assert catalog.path == str(tmp_path / "store")
    assert (tmp_path / "store" / "v1" / "mine").is_dir()


@pytest.mark.cluster
def test_a_url_stands_for_the_store_below_it(
    bucket_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket_options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket_options["secret"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket_options["endpoint_url"])
    url = f"s3://keeping/{uuid.uuid4().hex}"
    assert Catalog(url).path == url
    Bucket(f"{url}/store", layout.namespace("default")).put("uses/x", b"")
    before = set(Bucket(url, "store").names(""))
    assert Catalog(url).path == f"{url}/store"
    assert Catalog(f"{url}/store").path == f"{url}/store"
    assert list(Catalog(url)) == []
    assert set(Bucket(url, "store").names("")) == before
    Bucket(url, layout.namespace("default")).put("uses/x", b"")
    assert Catalog(url).path == url


@pytest.mark.parametrize("given", [3, "", b"/tmp", "a\0b", ["/tmp"]], ids=repr)
def test_what_is_no_place_is_an_error(given: Any) -> None:
    for verb in (Catalog, Catalog.private, dml.range(3).snapshot):
        with pytest.raises(PlanError, match="is not the name of a place") as caught:
            verb(given)
        assert caught.value.why
        assert caught.value.try_
        assert "test_looking.py" in caught.value.at
