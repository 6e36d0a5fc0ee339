"""Test what ``clear_cache()`` and ``materialize()`` report when they cannot succeed."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dml
from dml import col
from dml.api.catalog import Catalog
from dml.api.dataset import Dataset
from dml.base.user_line import warn
from dml.cache.store import open_stores
from dml.cache.store.disk import Disk
from dml.cache.store.health import StoreWarning
from dml.cache.store.primitives import UnwritableError
from dml.errors import CacheError
from tests.cache.rows.test_stored_rows import GROUPS, ROWS, calls, counting, data
from tests.cluster import dask_cases
from tests.verify.lying import kept

__all__ = ["data"]

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.law]


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no file can be made, as on a file system that is mounted so."""

    def refused(_: Disk) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Disk, "_fresh", refused)


def parts(ds: Dataset) -> list[int | None]:
    return [each.parts for each in ds.cache_status()]


def failed(ds: Dataset) -> CacheError:
    with pytest.raises(CacheError) as caught:
        ds.materialize()
    error = caught.value
    assert error.what.startswith("materialize ")
    assert "materialize, written in test_clearing.py" in error.at
    assert error.why
    assert error.try_
    return error


# --------------------------------------------------------------------------------------- clearing


def test_nothing_is_cleared_while_one_entry_is_pinned(data: Path, tmp_path: Path) -> None:
    low = kept(dml.read_parquet(data).map(dict).cache(tier="disk"), tmp_path)
    high = low.map(lambda row: {"y": row["x"] + 1}).cache(tier="disk")
    assert high.count() == ROWS
    catalog = Catalog(tmp_path / "kept" / "store")
    name, other = (each.name for each in high.cache_status())
    catalog.pin(other)
    with pytest.raises(CacheError, match=f"{other} is pinned") as caught:
        high.clear_cache()
    assert caught.value.at.startswith("clear_cache, written in test_clearing.py")
    assert "stay until they are unpinned" in caught.value.why
    assert parts(high) == [GROUPS, GROUPS]
    assert catalog.entry(other).pinned
    low.clear_cache()
    assert parts(high) == [0, GROUPS]
    assert not catalog.evict(name)
    command = caught.value.try_.removesuffix(" first")
    eval(command, {"dml": dml})
    high.clear_cache()
    assert parts(high) == [0, 0]


def test_a_pin_of_what_is_gone_holds_nothing(data: Path, tmp_path: Path) -> None:
    ds = kept(dml.read_parquet(data).map(dict).cache(tier="disk"), tmp_path)
    assert ds.count() == ROWS
    catalog, (status,) = Catalog(tmp_path / "kept" / "store"), ds.cache_status()
    ds.clear_cache()
    catalog.pin(status.name)
    ds.clear_cache()


def test_clearing_reads_the_record_of_each_part_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = kept(dml.read_parquet(data).map(dict).cache(tier="disk"), tmp_path)
    assert ds.count() == ROWS
    read, get = list[str](), Disk.get

    def noted(self: Disk, name: str) -> bytes | None:
        read.append(name)
        return get(self, name)

    monkeypatch.setattr(open_stores, "_OPEN", {})  # as another process begins
    monkeypatch.setattr(Disk, "get", noted)
    ds.clear_cache()
    assert sum("/part." in name for name in read) == GROUPS
    assert parts(ds) == [0]


def test_a_store_that_can_only_be_read_is_not_cleared_in_silence(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = kept(dml.read_parquet(data).map(dict).cache(tier="disk"), tmp_path)
    other = kept(dml.read_parquet(data).map(lambda row: row).cache(tier="disk"), tmp_path)
    assert ds.count() == ROWS
    above = ds.shuffle(7, seed=1).cache()
    assert above.count() == ROWS
    assert list(above)
    with monkeypatch.context() as patched:
        read_only(patched)
        for _ in range(2):
            with pytest.raises(UnwritableError, match="cannot be written"):
                above.clear_cache()
        assert parts(ds) == [GROUPS]
        assert above.cache_status()[-1].rows == 0, "what is in memory is let go of"
        other.clear_cache()  # there is nothing of it
    ds.clear_cache()
    assert parts(ds) == [0]


# ------------------------------------------------------------------------------------- on clusters


@pytest.mark.cluster
@dask_cases.UNCLOSED
def test_workers_with_disks_of_their_own_serve_nothing_of_what_was_cleared(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the cache is another one in each process, as on machines of their own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    log = tmp_path / "log"
    ds = dml.read_parquet(data).map(counting(log)).cache(tier="disk")
    ds = ds.with_options(cache_dir="/proc/self/cwd/cleared", driver="here")
    with dask_cases.cluster(1, processes=True) as cluster, Client(cluster) as client:
        (tmp_path / "worker").mkdir()
        client.run(os.chdir, str(tmp_path / "worker"))
        ds = ds.with_options(scheduler=client)
        for _ in range(2):
            assert ds.count() == ROWS
            assert sum(len(batch["y"]) for batch in ds.batch(64)) == ROWS
        assert calls(log) == ROWS, "the worker has them"
        assert parts(ds) == [0], "the client does not"
        ds.clear_cache()
        assert sum(len(batch["y"]) for batch in ds.batch(64)) == ROWS
        assert calls(log) == 2 * ROWS
        here = Catalog(tmp_path / "worker" / "cleared" / "store")
        here.pin(ds.cache_status()[0].name)
        with pytest.warns(UserWarning, match="could not clear what worker tcp.* is pinned"):
            ds.clear_cache()
        here.unpin(ds.cache_status()[0].name)
    with pytest.warns(UserWarning, match="could not clear what the cluster keeps"):
        ds.clear_cache()


# ---------------------------------------------------------------------------------- materializing


@pytest.mark.filterwarnings("ignore::dml.cache.store.health.StoreWarning")
def test_where_nothing_can_be_kept_nothing_is_computed(data: Path, tmp_path: Path) -> None:
    log, kept_dir = tmp_path / "log", tmp_path / "kept"
    kept_dir.mkdir()
    (kept_dir / "store").write_text("in the way")
    ds = kept(dml.read_parquet(data).map(counting(log)), tmp_path)
    for _ in range(2):
        error = failed(ds)
        assert "the store cannot be opened" in error.why
        assert str(kept_dir) in error.why
    assert calls(log) == 0
    lock = threading.Lock()
    unnamed = kept(dml.read_parquet(data).map(lambda row: {**row, "l": bool(lock)}), tmp_path)
    assert "no fingerprint" in failed(unnamed).why


@pytest.mark.parametrize("ordered", [False, True])
def test_a_quota_without_room_is_an_error(tmp_path: Path, *, ordered: bool) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"x": np.arange(80_000)}), path, row_group_size=10_000)
    ds = kept(dml.read_parquet(path).map_batches(dict, schema={"x": "int64"}), tmp_path)
    ds = ds.shuffle(100, seed=1) if ordered else ds
    for quota, some in (("1KiB", False), ("400KB", True)):
        error = failed(ds.with_options(cache_quota=quota))
        assert "cache_quota=" in error.why
        found = ds.cache(tier="disk").cache_status()[-1]
        assert not found.whole
        assert ordered or bool(found.parts) == some
        assert ordered or f"kept {found.parts} of 8 parts" in error.what
    made = ds.materialize()
    assert made.cache_status()[-1].whole
    assert made.count() == 80_000


def test_a_store_that_lacks_rows_and_can_only_be_read_is_an_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = kept(dml.read_parquet(data).map(dict), tmp_path)
    some = iter(ds.cache(tier="disk"))
    for _ in range(ROWS // 2):
        next(some)
    some.close()
    with monkeypatch.context() as patched:
        read_only(patched)
        with pytest.warns(StoreWarning):
            error = failed(ds)
        assert "the store cannot be written" in error.why
        assert "Read-only file system" in error.why
        (status,) = ds.cache(tier="disk").cache_status()
        assert f"kept {status.parts} of {GROUPS} parts" in error.what
        failed(ds)


def test_a_whole_entry_needs_no_writing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = kept(dml.read_parquet(data).map(dict), tmp_path)
    ds.materialize()
    read_only(monkeypatch)
    assert ds.materialize().count() == ROWS


def test_rows_that_errors_cost_are_an_error(data: Path, tmp_path: Path) -> None:
    down = tmp_path / "down"
    down.touch()

    def fetched(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] == 3 and down.exists():
            raise OSError("network is down")
        return row

    ds = dml.read_parquet(data).map(fetched, on_error="skip", fingerprint="fetched")
    error = failed(kept(ds, tmp_path))
    assert f"kept {GROUPS - 1} of {GROUPS} parts" in error.what
    assert "errors have cost 1 rows" in error.why
    down.unlink()
    assert kept(ds, tmp_path).materialize().count() == ROWS


def test_what_entries_of_others_have_is_kept(data: Path, tmp_path: Path) -> None:
    """Who finds all rows elsewhere writes nothing, and lacks nothing."""
    ds = kept(dml.read_parquet(data), tmp_path).with_columns(a=col("x") * 2, b=col("x") + 1)
    ds.materialize()
    ds.select("b", "a").materialize()
    ds.filter(col("x") > 30).materialize()
    ds.with_columns(c=col("a") * col("b")).materialize()
    ds.cache(tier="disk").materialize()
    assert sum(len(batch["x"]) for batch in ds.batch(64).materialize()) == ROWS


def test_what_was_made_of_the_same_rows_is_kept(data: Path, tmp_path: Path) -> None:
    def made(name: str) -> Dataset:
        types = {"x": "int64"}
        below = dml.read_parquet(data).map(dict, schema=types, fingerprint=name)
        above = below.cache(tier="disk").map(counting(tmp_path / "log"), schema={"y": "int64"})
        return kept(above, tmp_path)

    made("first").materialize()
    made("second").materialize()
    assert calls(tmp_path / "log") == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_whoever_made_the_rows_all_are_there_afterwards(
    data: Path, tmp_path: Path, executor: str
) -> None:
    for turn in range(5):
        ds = dml.read_parquet(data).map(dict, fingerprint=f"{executor}{turn}")
        ds = kept(ds, tmp_path, executor=executor, num_workers=2)
        assert parts(ds.materialize()) == [GROUPS]


# ------------------------------------------------------------------------------- where it is told


def test_warnings_are_of_the_line_that_asked(data: Path, tmp_path: Path) -> None:
    lock = threading.Lock()
    unnamed = dml.read_parquet(data).map(lambda row: {**row, "l": bool(lock)})
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "store").write_text("in the way")
    unusable = dml.read_parquet(data).map(dict)
    for ds, kind in ((unnamed, UserWarning), (unusable, StoreWarning)):
        with pytest.warns(kind) as told:
            assert len([*kept(ds.cache(tier="disk"), tmp_path)]) == ROWS
        assert {each.filename for each in told} == {__file__}


def test_a_thread_without_a_line_of_the_users_warns_all_the_same() -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.warns(StoreWarning, match="on its own") as told,
    ):
        pool.submit(warn, "on its own", StoreWarning).result()
    assert __file__ not in {each.filename for each in told}
