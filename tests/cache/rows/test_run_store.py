"""Test epochs that a local store serves without a driver: equal rows and positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.cache.rows import run_store
from dml.data.stream_hash import stream_hash
from dml.exec.drivers.driver_choice import Opening
from tests.cache.rows.test_stored_rows import calls, counting
from tests.sampling import amount

pytestmark = pytest.mark.usefixtures("unchecked")

ROWS = 240
BATCHED = st.sampled_from(
    [
        lambda ds: ds.batch(16),
        lambda ds: ds.batch(37, drop_last=True),
        lambda ds: ds.shuffle(50).batch(9),
        lambda ds: ds.take(100),
        lambda ds: ds.repeat(2).batch(64),
    ]
)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One number for each driver that is begun: its tasks."""
    found, begin = list[int](), Opening.__call__

    def told(self: Opening, tasks: Any, *args: Any, **options: Any) -> Any:
        found.append(len(tasks))
        return begin(self, tasks, *args, **options)

    monkeypatch.setattr(Opening, "__call__", told)
    monkeypatch.setattr(run_store, "LEISURE_S", math.inf)
    return found


def written(folder: Path, rows: int, group: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{rows}-{group}.parquet"
    wide = np.arange(rows * 300, dtype=np.float32).reshape(rows, 300)
    values = pa.FixedShapeTensorArray.from_numpy_ndarray(wide)
    table = pa.table({"x": np.arange(rows), "text": [f"row {n}" for n in range(rows)], "w": values})
    pq.write_table(table, path, row_group_size=group)
    return path


def kept(path: Path, folder: Path, **options: Any) -> Dataset:
    ds = dml.read_parquet(path, atom_rows=20).filter(col("x") % 7 != 3).with_columns(y=col("x") + 1)
    options = {"num_workers": 2, "executor": "threads"} | options
    return ds.cache(tier="disk").with_options(cache_dir=str(folder), **options)


@pytest.mark.law
@given(BATCHED, st.integers(1, 120), st.sampled_from(["sync", "threads"]), st.data())
@settings(deadline=None, max_examples=amount(5, 12), suppress_health_check=list(HealthCheck))
def test_a_served_epoch_is_any_other(
    tmp_path_factory: pytest.TempPathFactory, batched: Any, group: int, executor: str, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("served")
    path = written(folder, ROWS, group)
    ds = batched(kept(path, folder / "kept", executor=executor))
    fresh = batched(kept(path, folder / "other", executor="sync"))
    epoch = data.draw(st.integers(0, 2), label="epoch")
    wanted = stream_hash(fresh.epoch(epoch))
    leisure = [data.draw(st.sampled_from([-1.0, math.inf]), label="leisure") for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        for each in leisure:
            patch.setattr(run_store, "LEISURE_S", each)
            assert stream_hash(ds.epoch(epoch)) == wanted

    every = list(fresh.epoch(epoch))
    at = data.draw(st.integers(0, len(every)), label="at")
    ways = [("served", ds), ("computed", fresh.with_options(cache_dir=str(folder / "third")))]
    for name, begun in ways:
        it = iter(begun.epoch(epoch))
        list(islice(it, at))
        state = it.state_dict()
        for rest, _ in ((ds, ""), (fresh.with_options(cache_dir=str(folder / name)), "")):
            again = iter(rest.epoch(epoch))
            again.load_state_dict(state)
            assert stream_hash(again) == stream_hash(every[at:])


def test_what_was_had_before_takes_no_driver(tmp_path: Path, opened: list[int]) -> None:
    ds = kept(written(tmp_path, ROWS, 30), tmp_path / "kept").batch(16)
    for epoch in range(4):
        list(ds.epoch(epoch))
    assert opened == [8, 8], "one that makes the rows, and one that checks them"


def test_who_takes_his_time_has_the_rest_made_ahead(
    tmp_path: Path, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = kept(written(tmp_path, ROWS, 30), tmp_path / "kept").batch(16)
    wanted = [stream_hash(ds) for _ in range(3)]
    monkeypatch.setattr(run_store, "LEISURE_S", -1.0)  # whatever it takes is long
    assert [stream_hash(ds), *wanted] == [wanted[0]] * 4
    assert opened == [8, 8, 8 - run_store.FIRST]


def test_a_driver_makes_what_is_gone_and_goes_on(tmp_path: Path, opened: list[int]) -> None:
    log, path = tmp_path / "log", written(tmp_path, ROWS, 30)
    ds = dml.read_parquet(path, columns=["x"]).map(counting(log)).cache(tier="disk").batch(16)
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor="threads")
    wanted = [stream_hash(ds) for _ in range(2)][1]
    it = iter(ds)
    first = [next(it) for _ in range(3)]  # of two units
    blobs = sorted((tmp_path / "kept").rglob("*.arrow"), key=lambda each: each.stat().st_mtime_ns)
    assert len(blobs) == 8
    for blob in blobs[4:6]:
        blob.unlink()
    assert stream_hash([*first, *it]) == wanted
    assert calls(log) == ROWS + 60
    assert len(opened) == 3
    assert 0 < opened[-1] < 8, "what was there before it needs none"
    assert [stream_hash(ds) for _ in range(2)] == [wanted] * 2
    assert calls(log) == ROWS + 60


def test_what_was_never_checked_here_is_not_served(tmp_path: Path, opened: list[int]) -> None:
    ds = kept(written(tmp_path, ROWS, 30), tmp_path / "kept").batch(16)
    for _ in range(3):
        list(ds)
    ds.clear_cache()
    opened.clear()
    for _ in range(3):
        list(ds)
    assert opened == [8, 8], "as if nothing had been there before"


@pytest.mark.parametrize("nulls", [True, False])
def test_a_large_unit_of_which_some_must_be_copied_is_not_served(
    tmp_path: Path, opened: list[int], nulls: bool
) -> None:
    values = np.arange(200_000, dtype=np.float64)
    values[::100] = np.nan if nulls else 0.0
    path = tmp_path / "values.parquet"
    pq.write_table(pa.table({"x": values}), path, row_group_size=100_000)
    ds = dml.read_parquet(path, atom_rows=1000).with_columns(y=col("x") * 2).cache(tier="disk")
    options: dict[str, Any] = {"target_partition_bytes": 1 << 16, "executor": "threads"}
    ds = ds.batch(50).with_options(cache_dir=str(tmp_path / "kept"), **options)
    wanted = [stream_hash(ds) for _ in range(3)]
    assert len(set(wanted)) == 1
    assert len(opened) == (3 if nulls else 2)


def groups_of_seven(ds: Dataset) -> Dataset:
    return ds.map_batches(lambda rows: {"x": rows["x"], "y": rows["x"] * 2}, batch_size=7)


BELOW: dict[str, Callable[[Dataset], Dataset]] = {
    "all": lambda ds: ds,
    "filtered": lambda ds: ds.filter(col("x") % 60 < 10),
    "groups": groups_of_seven,
    "more": lambda ds: ds.flat_map(lambda row: [{"x": row["x"]} for _ in range(row["x"] % 4)]),
}


@pytest.mark.law
@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("batched", [lambda ds: ds.batch(16), lambda ds: ds], ids=["batch", "rows"])
def test_states_are_those_of_an_epoch_that_a_driver_made(
    tmp_path: Path, opened: list[int], below: str, batched: Any
) -> None:
    data = dml.read_parquet(written(tmp_path, ROWS, 30), columns=["x"], atom_rows=20)
    ds = batched(BELOW[below](data).cache(tier="disk"))
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor="threads")
    told = [[it.state_dict() for it in [iter(ds.epoch(0))] for _ in it] for _ in range(3)]
    assert len(opened) == 2
    assert told[1] == told[2]
    assert len(told[0]) > 2


def test_rows_that_a_consumer_writes_to_are_those_of_the_next_epoch(tmp_path: Path) -> None:
    ds = kept(written(tmp_path, ROWS, 60), tmp_path / "kept").batch(20)
    wanted = stream_hash(ds)
    for _ in range(3):
        for batch in ds:
            batch["w"][:] = -1.0
            batch["x"][:] = -1
    assert stream_hash(ds) == wanted


def test_stats_tell_of_rows_that_were_mapped(tmp_path: Path) -> None:
    ds, told = kept(written(tmp_path, ROWS, 30), tmp_path / "kept").batch(16), list[Any]()
    for _ in range(3):
        it = iter(ds)
        list(it)
        told += [each for each in it.events() if getattr(each, "operator", "") == "Stored"]
    found, again = told[1:]
    assert (found.rows_out, found.bytes_out) == (again.rows_out, again.bytes_out)
    assert found.rows_out == ROWS - len(range(3, ROWS, 7))
    assert again.cache_hits > 0 == again.cache_misses
    assert again.seconds > 0
