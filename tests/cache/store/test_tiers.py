"""Test runs over rows in a remote store with local copies, by counting transferred bytes."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dml
from dml.api.autocache import _takes, times_of
from dml.api.dataset import Dataset
from dml.api.run_storage import cache_folder, store_of
from dml.cache.parts.parts import PartStore
from dml.cache.store import open_stores
from dml.cache.store.local_copies import folder_of
from dml.cache.store.open_stores import LocalPlace, Where
from dml.cache.store.store_speed import cold_name
from dml.settings import Settings
from tests.cache.conftest import bucket_options
from tests.cache.store.far import LOSES, PAYS, Far
from tests.cache.store.far import far as far_place
from tests.cache.store.far import opened as stored_far
from tests.cluster import dask_cases
from tests.expr.checks import numbers

__all__ = ["bucket_options"]

N, EPOCHS = 120, 6


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": row["x"] * 2, "w": np.full(300, row["x"])}


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders that stand for buckets."""
    monkeypatch.setattr(
        open_stores, "Bucket", lambda url, below: Far(_folder(tmp_path, url), below)
    )
    monkeypatch.setattr(open_stores, "_measured", lambda *_: PAYS)
    open_stores._OPEN.clear()
    yield _folder(tmp_path, "s3://far/kept/store")
    open_stores._OPEN.clear()


def _folder(tmp_path: Path, url: str) -> Path:
    return tmp_path / "buckets" / url.removeprefix("s3://")


def pipeline(tmp_path: Path, *, stream: bool = False, **options: Any) -> Dataset:
    ds = numbers(N).map(doubled, fingerprint="doubled")
    ds = (ds.shuffle(100, seed=1) if stream else ds).cache(tier="disk").batch(64)
    given: dict[str, Any] = {"cache_dir": "s3://far/kept", "executor": "threads", "num_workers": 2}
    given["cache_local_dir"] = str(tmp_path / "near")
    return ds.with_options(**(given | options))


def epoch(ds: Dataset) -> tuple[list[int], dict[str, int]]:
    """The rows of a run, and where the bytes of what was kept came from."""
    it = iter(ds)
    rows = [y for batch in it for y in batch["y"]]
    records = it.stats().records
    return rows, {name: sum(each[name] for each in records) for name in ("near_bytes", "far_bytes")}


def sent(far: Path) -> int:
    return Far.sent.get(far, 0)


@pytest.mark.law
@pytest.mark.parametrize("stream", [False, True], ids=["units", "stream"])
@pytest.mark.parametrize("made", ["here", "elsewhere"])
def test_later_epochs_read_nothing_of_the_store(
    tmp_path: Path, far: Path, stream: bool, made: str
) -> None:
    """Over six epochs at least 83 % fewer bytes of it, as the fan-out cache has it."""
    if made == "elsewhere":
        epoch(pipeline(tmp_path, stream=stream, cache_local_dir=str(tmp_path / "other")))
        open_stores._OPEN.clear()
    ds, told = pipeline(tmp_path, stream=stream), []
    wanted = [y for batch in numbers(N).map(doubled).batch(64) for y in batch["y"]]
    for _ in range(EPOCHS):
        before = sent(far)
        rows, counted = epoch(ds)
        assert (sorted(rows) if stream else rows) == wanted
        assert counted["far_bytes"] == sent(far) - before
        told.append(counted)
    first, *others = [each["far_bytes"] for each in told]
    assert (first > 0) == (made == "elsewhere")
    assert others == [0] * (EPOCHS - 1)
    assert all(each["near_bytes"] > N * 300 * 8 for each in told[1:])
    assert "copies here" in str(ds.cache_status())


@pytest.mark.law
@pytest.mark.parametrize("stream", [False, True], ids=["units", "stream"])
def test_without_copies_every_epoch_reads_the_store(
    tmp_path: Path, far: Path, stream: bool
) -> None:
    ds = pipeline(tmp_path, stream=stream, cache_local_dir="off")
    epoch(ds)
    for _ in range(2):
        before = sent(far)
        _, counted = epoch(ds)
        assert counted == {"near_bytes": 0, "far_bytes": sent(far) - before}
        assert counted["far_bytes"] > N * 300 * 8


@pytest.mark.law
def test_one_epoch_copies_nothing(tmp_path: Path, far: Path) -> None:
    epoch(pipeline(tmp_path, epochs=1))
    epoch(pipeline(tmp_path, epochs=1))
    assert not [*(tmp_path / "near").rglob("*.arrow")]
    epoch(pipeline(tmp_path, epochs=2))
    assert [*(tmp_path / "near").rglob("*.arrow")]


@pytest.mark.law
def test_what_was_cleared_is_made_again(tmp_path: Path, far: Path) -> None:
    ds = pipeline(tmp_path)
    epoch(ds)
    ds.clear_cache()
    assert not [*(tmp_path / "near").rglob("*.arrow")]
    _, counted = epoch(ds)
    assert counted == {"near_bytes": 0, "far_bytes": 0}


@pytest.mark.law
def test_analyze_says_where_bytes_came_from(tmp_path: Path, far: Path) -> None:
    ds = pipeline(tmp_path)
    epoch(ds)
    assert "from copies of it here" in ds.explain(analyze=True)


def test_where_copies_are_kept() -> None:
    """In the user's cache folder for what lies in an object store; for folders if asked."""

    def local(root: str = "", **given: Any) -> LocalPlace | None:
        return store_of(Settings(**given), root).local

    assert local() is None
    assert local(cache_dir="/mnt/kept") is None
    assert local(cache_dir="/mnt/kept", cache_local_dir="/nvme") == LocalPlace("/nvme", None)
    assert local(cache_dir="s3://bucket/kept") == LocalPlace(None, None)
    assert local("s3://bucket/kept", cache_local_quota="1GiB") == LocalPlace(None, 1 << 30)
    assert local("s3://bucket/kept", cache_local_dir="off") is None
    assert store_of(Settings(cache_dir="s3://bucket/kept/")).root == "s3://bucket/kept/store"


def test_a_disk_is_not_copied_to_itself(tmp_path: Path) -> None:
    where = Where(str(tmp_path / "kept"), local=LocalPlace(str(tmp_path / "near")))
    assert open_stores.store_at(where).tiers.copies is None


def test_kernels_of_a_store_far_away_lie_here() -> None:
    assert cache_folder(Settings(cache_dir="s3://bucket/kept")) == cache_folder(Settings())


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is not on the disk of the other ones."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one disk")
    folder = Path(tempfile.mkdtemp(dir=shared))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.cluster
@pytest.mark.slow
@dask_cases.UNCLOSED
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_workers_of_a_host_share_their_copies(
    tmp_path: Path, other_disk: Path, processes: bool
) -> None:
    """What either has made or fetched, both read from the disk of the machine."""
    pq.write_table(pa.table({"x": np.arange(N)}), tmp_path / "data.parquet", row_group_size=10)
    kept = tmp_path / "kept" / "store"
    measured_as(folder_of(str(other_disk)), kept)
    with dask_cases.cluster(processes=processes) as cluster, Client(cluster) as client:
        ds = dml.read_parquet(tmp_path / "data.parquet").map(doubled).cache(tier="disk").batch(16)
        ds = ds.with_options(
            scheduler=client, cache_dir=str(kept.parent), cache_local_dir=str(other_disk)
        )
        told = [epoch(ds) for _ in range(3)]
    assert [rows for rows, _ in told] == [[2 * x for x in range(N)]] * 3
    size = sum(path.stat().st_size for path in kept.rglob("*.arrow"))
    assert sum(path.stat().st_size for path in other_disk.rglob("*.arrow")) == size
    counted = {"near_bytes": size, "far_bytes": 0}
    assert [each for _, each in told] == [{"near_bytes": 0, "far_bytes": 0}, counted, counted]


def measured_as(near: Path, far: Path) -> None:
    """As if a disk had been found to be fast, and a folder to be slow."""

    def samples(seconds: float) -> dict[str, Any]:
        each = [[size, seconds * size] for size in (1 << 12, 1 << 20)]
        return {"at": time.time(), "read": each, "write": each}

    (near / "v1").mkdir()
    known = {cold_name(str(near)): samples(1e-12), cold_name(str(far)): samples(1e-3)}
    (near / "v1" / "calib.json").write_text(json.dumps(known))


def test_what_autocache_expects_of_a_store_far_away(tmp_path: Path) -> None:
    """Reading takes what the disk of this machine takes, as far as that has room for copies."""
    each, root = 1e6, "s3://bucket/kept/store"
    far_s, written_s = (times(each) for times in times_of(root))
    near_s = PAYS.near(each)
    assert near_s < far_s
    for most_bytes, wanted in ((1 << 40, near_s), (2_000_000, (near_s + far_s) / 2)):
        store = stored_far(tmp_path, most_bytes)
        assert _takes(root, store, each, 4e6) == pytest.approx((wanted, written_s))
    assert _takes(root, stored_far(tmp_path, times=LOSES), each, 4e6) == (far_s, written_s)
    assert _takes(root, PartStore(far_place(tmp_path)), each, 4e6) == (far_s, written_s)


@pytest.mark.cluster
def test_rows_kept_in_an_object_store(
    bucket_options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its address alone, in the folder of the user: as ``cache_dir``, and by ``snapshot``."""
    names = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY"}
    for key, value in bucket_options.items():
        monkeypatch.setenv(names.get(key, "AWS_ENDPOINT_URL"), value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    open_stores._OPEN.clear()
    url = f"s3://keeping/{uuid.uuid4().hex}"
    few = 24  # each part is some requests, and this server answers a hundred in a second
    ds = numbers(few).map(doubled, fingerprint="doubled")
    kept = ds.cache(tier="disk").with_options(cache_dir=url), ds.snapshot(f"{url}/snapshot")
    for each in kept:
        told = [epoch(each.batch(16)) for _ in range(3)]
        assert [rows for rows, _ in told] == [[2 * x for x in range(few)]] * 3
        assert [counted["far_bytes"] for _, counted in told] == [0, 0, 0]
        assert "in copies here" in str(each.cache_status())
        each.clear_cache()
        assert not [*(tmp_path / "home" / "dml").rglob("blobs/**/*.arrow")]
    open_stores._OPEN.clear()


def test_a_store_far_away_is_asked_by_workers_alone(
    tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all there is lies in copies: whether they count is what the store says."""
    del far
    ds, asked = pipeline(tmp_path), list[bool]()

    def told(self: Far, name: str, *, was: Callable[[Far, str], Any]) -> Any:
        asked.append(threading.current_thread() is threading.main_thread())
        return was(self, name)

    for method in ("stamp", "fetch"):
        monkeypatch.setattr(Far, method, partialmethod(told, was=getattr(Far, method)))
    wanted = [epoch(ds)[0] for _ in range(4)]
    assert wanted == [wanted[0]] * 4
    assert len(asked) > 0
    assert not any(asked)
