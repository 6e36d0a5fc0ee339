"""Test the iterator: each element once for any threads, resumable at any moment, no leaks."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import PlanError, SourceError, UDFError
from dml.events import RunFinished
from dml.exec.delivery.iterator import Elements

OFF: dict[str, Any] = {"telemetry_dir": "off"}


def ids(batches: Any) -> list[int]:
    return [int(v) for batch in batches for v in batch["id"]]


def workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("dml-")]


def gone(names: Callable[[], list[str]], before: list[str]) -> bool:
    """True once no threads beyond ``before`` are left; waits for them to notice."""
    deadline = time.monotonic() + 60
    while len(names()) > len(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(names()) <= len(before)


@pytest.mark.law
@pytest.mark.parametrize("prefetch", [0, 3])
def test_eight_threads_draw_every_batch_exactly_once(prefetch: int) -> None:
    ds = dml.range(10_000).batch(1).with_options(prefetch=prefetch, num_workers=2, **OFF)
    it = iter(ds)
    drawn: list[list[int]] = [[] for _ in range(8)]

    def draw(mine: list[int]) -> None:
        mine.extend(int(batch["id"][0]) for batch in it)

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(v for mine in drawn for v in mine) == list(range(10_000))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 5, 49, 50])
def test_a_state_at_any_moment_gives_the_rest(prefetch: int, taken: int, *, batched: bool) -> None:
    rows = dml.range(100, atom_rows=7).shuffle(16)
    ds = (rows.batch(2) if batched else rows).with_options(prefetch=prefetch, **OFF).epoch(0)
    whole = [str(each) for each in ds]
    it = iter(ds)
    first = [str(next(it)) for _ in range(taken)]
    state = json.loads(json.dumps(it.state_dict()))
    assert it.state_dict() == it.state_dict()
    it.close()
    assert it.state_dict()["position"] == state["position"]
    rest = iter(ds)
    rest.load_state_dict(state)
    assert first + [str(each) for each in rest] == whole


def failing(at: int) -> Dataset:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == at:
            raise ValueError(row["id"])
        return row

    return dml.range(100, atom_rows=10).map(check, fingerprint="check")


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("executor", ["threads", "sync"])
def test_an_error_ends_the_iterator_and_leaves_a_state(executor: str, prefetch: int) -> None:
    ds = failing(57).shuffle(8).batch(4).with_options(executor=executor, prefetch=prefetch, **OFF)
    it = iter(ds)
    got = [next(it) for _ in range(14)]
    with pytest.raises(UDFError):
        next(it)
    assert next(it, None) is None
    state = it.state_dict()
    again = iter(ds.epoch(0))
    again.load_state_dict(state)
    with pytest.raises(UDFError):
        next(again)
    assert len(ids(got)) == 56, "the rows of seven windows"


@pytest.mark.parametrize("prefetch", [0, 2])
def test_close_stops_all_threads_and_keeps_the_state(prefetch: int) -> None:
    before = workers()
    ds = dml.range(10**6, atom_rows=100).batch(10).with_options(prefetch=prefetch, **OFF)
    with iter(ds) as it:
        first = ids([next(it)])
    assert first == list(range(10))
    assert gone(workers, before)
    assert next(it, None) is None
    with pytest.raises(PlanError):
        it.load_state_dict(it.state_dict())


@pytest.mark.law
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_forgotten_iterator_stops_its_threads(prefetch: int) -> None:
    before = workers()
    ds = dml.range(10**6, atom_rows=100).batch(10).with_options(prefetch=prefetch, **OFF)
    it = iter(ds)
    next(it)
    del it
    gc.collect()
    assert gone(workers, before)
    assert "stopped" in str(ds.stats())


def last(it: Any) -> RunFinished:
    found = it.events()[-1]
    assert isinstance(found, RunFinished)
    return found


@pytest.mark.parametrize("prefetch", [0, 3])
def test_only_what_was_received_is_counted(prefetch: int) -> None:
    rows = iter(dml.range(5000).with_options(prefetch=prefetch, **OFF))
    for _ in range(1500):
        next(rows)
    assert last(rows).rows == 1500
    rows.close()
    assert last(rows).rows == 1500
    assert last(rows).status == "stopped"
    batches = iter(dml.range(5000).batch(64).with_options(prefetch=prefetch, **OFF))
    for _ in range(3):
        next(batches)
    assert (last(batches).rows, last(batches).batches) == (192, 3)
    assert last(batches).bytes == 192 * 8
    batches.close()


def test_arrays_belong_to_the_caller() -> None:
    data = {"x": np.arange(100.0), "n": np.arange(100)}
    ds = dml.from_numpy(data).with_columns(y=dml.col("x")).batch(10).with_options(**OFF)
    for batch in ds:
        for array in batch.values():
            array[:] = 0
    assert data["x"][99] == 99
    assert next(iter(ds))["y"][9] == 9


def test_floats_are_finished_whoever_makes_them() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype="u8").view("f8")
    rows = dml.from_dict({"x": [1.0, None], "z": odd.tolist()}).batch(2).with_options(**OFF)
    mapped = rows.map(dict, fingerprint="same")
    for ds in (rows, rows.shuffle(2), mapped):
        (batch,) = ds
        bits = {int(v) for v in batch["z"].view("u8")}
        assert bits == {0x7FF8000000000000}
        assert int(np.isnan(batch["x"]).sum()) == 1


class Watched(Elements):
    """Looks where it is after each change of itself, as another thread might."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if (taken := self.__dict__.get("taken")) is not None:
            taken.append(self.state_dict())


def test_a_state_within_next_counts_no_row_that_nobody_has() -> None:
    ds = dml.range(2500).with_options(executor="sync", **OFF).epoch(0)
    it = iter(ds)
    for i in range(1024):
        assert next(it)["id"] == i
    taken: list[dict[str, Any]] = []
    it.__dict__["taken"] = taken
    it.__class__ = Watched
    assert next(it)["id"] == 1024
    assert taken, "the second chunk came"
    for state in taken:
        rest = iter(ds)
        rest.load_state_dict(state)
        assert next(rest)["id"] == 1024


@pytest.mark.parametrize("executor", ["threads", "sync"])
def test_a_function_may_take_the_state_of_its_run(executor: str) -> None:
    taken = []

    def look(row: dict[str, Any]) -> dict[str, Any]:
        taken.append(it.state_dict()["over"])
        return row

    ds = dml.range(20).map(look, fingerprint="look").batch(4)
    it = iter(ds.with_options(executor=executor, **OFF))
    assert ids(it) == list(range(20))
    assert taken[:20] == [False] * 20


@pytest.mark.law
@pytest.mark.parametrize("executor", ["threads", "sync"])
def test_a_damaged_page_ends_the_rows_at_one_place_whatever_the_memory(
    tmp_path: Path, executor: str
) -> None:
    path = tmp_path / "x.parquet"
    values = np.random.default_rng(1).integers(0, 1 << 60, 200_000)
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    options |= {"data_page_size": 80_000, "write_page_checksum": True}
    pq.write_table(pa.table({"id": values}), path, row_group_size=200_000, **options)
    content = bytearray(path.read_bytes())
    content[int(len(content) * 0.8)] ^= 1
    path.write_bytes(content)
    rows = dml.read_parquet(str(path), atom_rows=10_000).batch(10_000)
    got = []
    for limit in ("4MiB", "4GiB"):
        it = iter(rows.with_options(executor=executor, memory_limit=limit, prefetch=0, **OFF))
        before: list[int] = []
        with pytest.raises(SourceError, match="damaged"):
            before.extend(int(v) for batch in it for v in batch["id"])
        got.append(before)
    assert got[0] == got[1] == values[: len(got[0])].tolist()
    assert 100_000 < len(got[0]) < 200_000
