"""Test rows stored for later runs: counted calls, other processes, kills, failing disks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
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
from dml.errors import UDFError
from dml.ops.batch.map_batch import MapBatch
from dml.ops.cache.cache import Cache
from dml.ops.cache.stored import Stored
from dml.ops.row.map_batches import MapBatches
from tests.cluster import dask_cases

pytestmark = pytest.mark.usefixtures("unchecked")

ROWS, GROUPS = 400, 8
EACH = ROWS // GROUPS


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": np.arange(ROWS)}), path, row_group_size=EACH)
    return path


def counting(log: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    name = str(log)

    def doubled(row: dict[str, Any]) -> dict[str, Any]:
        with open(name, "a") as file:
            file.write(".")
        return {"y": row["x"] * 2}

    return doubled


def calls(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def values(ds: Dataset) -> list[int]:
    return [row["y"] for row in ds]


WANTED = [2 * x for x in range(ROWS)]


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_what_one_epoch_made_the_next_one_finds(data: Path, tmp_path: Path, executor: str) -> None:
    log = tmp_path / "log"
    ds = dml.read_parquet(data).map(counting(log)).cache(tier="disk")
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor=executor, num_workers=2)
    for _ in range(3):
        assert values(ds) == WANTED
        assert calls(log) == ROWS
    other = ds.with_columns(z=col("y") + 1).batch(7)
    assert [z for batch in other for z in batch["z"]] == [y + 1 for y in WANTED]
    assert calls(log) == ROWS, "another tail finds it, too"
    again = dml.read_parquet(data).map(counting(log)).cache(tier="disk")
    assert values(again.with_options(cache_dir=str(tmp_path / "kept"))) == WANTED
    assert calls(log) == ROWS, "and the same pipeline, written again"


def test_the_place_of_a_cache_decides_what_holds_it(data: Path) -> None:
    ds = dml.read_parquet(data)
    assert isinstance(ds.cache(tier="disk")._node, Stored)
    assert isinstance(ds.map(dict).filter(col("x") > 1).cache(tier="disk")._node, Stored)
    assert isinstance(ds.cache()._node, Cache)


@pytest.mark.law
def test_two_caches_one_above_the_other(data: Path, tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    first = dml.read_parquet(data).map(counting(low)).cache(tier="disk")

    def further(row: dict[str, Any]) -> dict[str, Any]:
        with open(str(high), "a") as file:
            file.write(".")
        return {"y": row["y"] + 1}

    kept = {"cache_dir": str(tmp_path / "kept")}
    wanted = [y + 1 for y in WANTED]
    assert values(first.map(further).cache(tier="disk").with_options(**kept)) == wanted
    assert (calls(low), calls(high)) == (ROWS, ROWS)
    assert values(first.map(further).cache(tier="disk").with_options(**kept)) == wanted
    assert (calls(low), calls(high)) == (ROWS, ROWS)
    assert values(first.map(lambda row: {"y": row["y"] - 1}).with_options(**kept)) == [
        y - 1 for y in WANTED
    ]
    assert calls(low) == ROWS, "the lower one is there for others"


@pytest.mark.law
def test_epochs_below_are_the_first_and_those_above_go_on(data: Path, tmp_path: Path) -> None:
    ds = dml.read_parquet(data).with_columns(r=dml.random(seed=1)).cache(tier="disk")
    ds = ds.with_columns(s=dml.random(seed=2)).with_options(cache_dir=str(tmp_path / "kept"))
    first, second = (pa.Table.from_pylist(list(ds)) for _ in range(2))
    assert first["r"] == second["r"]
    assert first["s"] != second["s"]
    plain = dml.read_parquet(data).with_columns(r=dml.random(seed=1))
    assert plain.to_arrow()["r"].to_pylist() == first["r"].to_pylist()


@pytest.mark.law
def test_an_error_stores_what_came_before_it(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    count = counting(log)
    limit = tmp_path / "limit"
    limit.write_text("230")

    def failing(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] >= int(limit.read_text()):
            raise ValueError("too large")
        return count(row)

    ds = dml.read_parquet(data).map(failing, fingerprint="failing").cache(tier="disk")
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor="sync")
    with pytest.raises(UDFError, match="too large"):
        values(ds)
    assert calls(log) == 230
    limit.write_text("1000")
    assert values(ds) == WANTED
    assert calls(log) == 230 + (ROWS - 200), "four whole row groups were stored"


@pytest.mark.law
def test_other_data_is_another_entry(data: Path, tmp_path: Path) -> None:
    ds = dml.read_parquet(data).map(counting(tmp_path / "log")).cache(tier="disk")
    assert values(ds.with_options(cache_dir=str(tmp_path / "kept"))) == WANTED
    stamp = data.stat()
    pq.write_table(pa.table({"x": np.arange(ROWS) + 1}), data, row_group_size=EACH)
    os.utime(data, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    ds = dml.read_parquet(data).map(counting(tmp_path / "log")).cache(tier="disk")
    assert values(ds.with_options(cache_dir=str(tmp_path / "kept"))) == [y + 2 for y in WANTED]


@pytest.mark.law
def test_a_function_without_a_name_is_told_and_stores_nothing(data: Path, tmp_path: Path) -> None:
    lock = __import__("threading").Lock()

    def locked(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return {"y": row["x"] * 2}

    ds = dml.read_parquet(data).map(locked).cache(tier="disk")
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor="threads")
    with pytest.warns(UserWarning, match="has no fingerprint"):
        assert values(ds) == WANTED
    assert not list((tmp_path / "kept").rglob("*.arrow"))


@pytest.mark.law
def test_a_store_that_cannot_be_written_costs_a_warning(data: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "store").write_text("in the way")
    ds = dml.read_parquet(data).map(counting(tmp_path / "log")).cache(tier="disk")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert values(ds.with_options(cache_dir=str(tmp_path / "kept"))) == WANTED
    assert len([each for each in told if "store" in str(each.message)]) == 1


KILLED = """
import sys, time
import dml
from pathlib import Path
data, log, kept = sys.argv[1:]

def slow(row):
    with open(log, "a") as file:
        file.write(".")
    time.sleep(0.002)
    return {"y": row["x"] * 2}

if __name__ == "__main__":
    ds = dml.read_parquet(data).map(slow).cache(tier="disk")
    ds = ds.with_options(cache_dir=kept, num_workers=2, verify="off")
    print(sum(row["y"] for row in ds), flush=True)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_leaves_what_it_made(data: Path, tmp_path: Path) -> None:
    script, log = tmp_path / "job.py", tmp_path / "log"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(data), str(log), str(tmp_path / "kept")]

    def parts() -> int:
        store = tmp_path / "kept" / "store"
        return sum(entry.parts for entry in Catalog(store)) if store.exists() else 0

    with subprocess.Popen(command) as run:
        until = time.monotonic() + 60
        while parts() < 2:
            assert time.monotonic() < until
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
    made, left = calls(log), parts()
    assert left < GROUPS
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == sum(WANTED)
    assert calls(log) - made == (GROUPS - left) * EACH, "what was not stored whole, once"


@pytest.mark.law
def test_what_caches_hold_is_told_and_can_be_cleared(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ds = dml.read_parquet(data).map(counting(log)).cache(tier="disk")
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor="sync")
    (status,) = ds.cache_status()
    assert (status.parts, status.of, status.rows, status.whole) == (0, GROUPS, 0, False)
    assert calls(log) == 0, "asking runs nothing"
    it = iter(ds)
    for _ in range(2 * EACH + 5):
        next(it)
    it.close()
    (status,) = ds.cache_status()
    assert status.parts in {2, 3}
    assert (status.rows, status.whole) == (status.parts * EACH, False)
    told = f"keeps {status.parts} of 8 parts, {status.rows} rows"
    assert told in str(ds.cache_status())
    assert told in ds.explain("physical")
    assert values(ds) == WANTED
    (status,) = ds.cache_status()
    assert (status.parts, status.rows, status.whole) == (GROUPS, ROWS, True)
    assert status.nbytes >= ROWS * 8
    made = calls(log)
    ds.clear_cache()
    assert ds.cache_status()[0].rows == 0
    assert values(ds) == WANTED
    assert calls(log) == made + ROWS
    assert not dml.range(3).cache_status()


@pytest.mark.law
def test_materialize_computes_now_and_once(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ds = dml.read_parquet(data).map(counting(log))
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"))
    made = ds.materialize()
    assert calls(log) == ROWS
    assert values(made) == values(ds.materialize()) == WANTED
    assert calls(log) == ROWS


@pytest.mark.law
def test_a_snapshot_is_where_it_was_written(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        ds = dml.read_parquet(data).map(counting(log)).snapshot(tmp_path / "snap")
        assert values(ds.with_options(cache_dir=str(tmp_path / "kept"))) == WANTED
    assert calls(log) == ROWS
    assert list((tmp_path / "snap").rglob("*.arrow"))
    assert not list((tmp_path / "kept").rglob("*.arrow"))
    assert "Snapshot" in dml.range(3).snapshot("x").explain("physical")


def tails(ds: Dataset) -> tuple[Dataset, Dataset]:
    return ds.with_columns(z=col("y") + 1), ds.filter(col("y") % 4 == 0).with_columns(z=col("y"))


TAILED = [y + 1 for y in WANTED], [y for y in WANTED if not y % 4]


def together(pipelines: Sequence[Dataset]) -> list[list[int]]:
    """What each gives, all of them run at the same time."""
    with ThreadPoolExecutor(len(pipelines)) as pool:
        return list(pool.map(lambda ds: [row["z"] for row in ds], pipelines))


@pytest.mark.law
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_two_jobs_at_the_same_time_compute_the_common_part_once(
    data: Path, tmp_path: Path, executor: str
) -> None:
    log = tmp_path / "log"
    ds = dml.read_parquet(data).map(counting(log)).cache(tier="disk")
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor=executor, num_workers=2)
    assert together(tails(ds)) == list(TAILED)
    assert calls(log) == ROWS


@pytest.mark.cluster
@dask_cases.UNCLOSED
@pytest.mark.parametrize("at_once", [False, True])
def test_two_clients_of_one_scheduler_compute_the_common_part_once(
    data: Path, tmp_path: Path, at_once: bool
) -> None:
    log = tmp_path / "log"
    ds = dml.read_parquet(data).map(counting(log)).cache(tier="disk")
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"))
    with dask_cases.cluster() as cluster, Client(cluster) as one, Client(cluster) as two:
        first, second = tails(ds)
        first, second = first.with_options(scheduler=one), second.with_options(scheduler=two)
        if at_once:
            assert together([first, second]) == list(TAILED)
        else:
            assert together([first]) == [TAILED[0]]
            assert together([second]) == [TAILED[1]]
    assert calls(log) == ROWS


def test_what_replaces_a_file_while_it_is_read_is_not_kept_under_its_name(tmp_path: Path) -> None:
    """Of equal size and time of writing: neither says that the rows are other ones."""
    path, other, before = (tmp_path / name for name in ("x.parquet", "other", "before"))
    for each, start in ((path, 0), (other, 1000)):
        table = pa.table({"x": np.arange(start, start + ROWS)})
        pq.write_table(table, each, row_group_size=EACH, compression="none", use_dictionary=False)
    before.write_bytes(path.read_bytes())
    seen = path.stat()
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert other.stat().st_size == seen.st_size

    def replacing(row: dict[str, Any]) -> dict[str, Any]:
        if other.exists():
            other.replace(path)
        return {"y": row["x"] * 2}

    def asked() -> list[int]:
        ds = dml.read_parquet(path).map(replacing, fingerprint="doubled").cache(tier="disk")
        return values(ds.with_options(cache_dir=str(tmp_path / "kept"), executor="sync"))

    assert asked() != WANTED, "else this test could not fail"
    before.replace(path)
    assert asked() == WANTED


# --------------------------------------------------------------------- what keeps nothing says why


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_rows_that_a_changing_function_makes_say_why_none_are_found(
    data: Path, tmp_path: Path, executor: str
) -> None:
    seen: list[int] = []

    def noted(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["x"])
        return {"y": row["x"]}

    ds = dml.read_parquet(data).map(noted).cache(tier="disk").batch(50)
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor=executor, num_workers=2)
    list(ds)
    said = "noted reads the variable 'seen', which has changed meanwhile"
    assert said in str(ds.cache_status())
    assert said in ds.explain()
    with pytest.warns(UserWarning, match=said):
        list(ds)
    list(ds)  # and not again
    assert len(seen) == 3 * ROWS


def test_a_quota_without_room_for_any_part_says_so(data: Path, tmp_path: Path) -> None:
    ds = dml.read_parquet(data).map(dict).cache(tier="disk").batch(50)
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor="threads", cache_quota=10)
    list(ds)
    said = "nothing is kept: cache_quota=10 is for all of the namespace, and has no room"
    assert said in str(ds.cache_status())
    with pytest.warns(UserWarning, match=said):
        list(ds)
    more = ds.with_options(cache_quota="1MiB")
    list(more)
    assert "nothing is kept" not in str(more.cache_status())


@pytest.mark.cluster
@dask_cases.UNCLOSED
def test_a_store_that_only_workers_cannot_use_is_told_where_the_run_is(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ds = dml.read_parquet(data).map(dict).cache(tier="disk").batch(50)
    ds = ds.with_options(cache_dir="/proc/self/cwd/unusable", driver="here")
    with dask_cases.cluster(1, processes=True) as cluster, Client(cluster) as client:
        (tmp_path / "unusable").touch()
        client.run(os.chdir, str(tmp_path))
        ds = ds.with_options(scheduler=client)
        list(ds)
        said = "nothing is kept: the store cannot be opened"
        assert said in str(ds.cache_status())
        assert said in ds.explain()
        with pytest.warns(UserWarning, match=said):
            list(ds)
        list(ds)


# -------------------------------------------------------------------------- versions of operators


def twice(log: Path, *, batched: bool) -> Dataset:
    """What a function of two batches makes, kept on disk."""
    name = str(log)

    def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with open(name, "a") as file:
            file.write(".")
        return {"y": batch["x"] * 2}

    ds = dml.from_items([{"x": 1.0}] * 4)
    made = ds.batch(2).map(doubled) if batched else ds.map_batches(doubled, batch_size=2)
    kept: Dataset = made.cache(tier="disk")
    return kept.with_options(cache_dir=str(log.parent / "kept"), executor="sync")


@pytest.mark.parametrize("kind", [MapBatch, MapBatches])
def test_what_an_older_version_of_an_operator_made_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[MapBatch | MapBatches]
) -> None:
    log, batched = tmp_path / "log", kind is MapBatch
    with monkeypatch.context() as older:
        older.setattr(kind, "version", kind.version - 1)
        for _ in range(2):
            list(twice(log, batched=batched))
        assert calls(log) == 2, "kept under that version"
        (before,) = twice(log, batched=batched).cache_status()
    for _ in range(2):
        list(twice(log, batched=batched))
    assert calls(log) == 4, "made again, once"
    (after,) = twice(log, batched=batched).cache_status()
    assert before.name != after.name
