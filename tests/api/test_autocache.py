"""Test the decisions of ``autocache()`` in runs, by counting calls of functions."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api import autocache, cost_profile
from dml.api.autocache import Choosing
from dml.api.dataset import Dataset
from dml.base.read_times import ReadTimes
from dml.cache.parts.parts import PartStore
from dml.cache.store.disk import Disk
from dml.cache.store.health import StoreWarning
from dml.exec.delivery.observed_costs import SEEN
from dml.expr.node import Node
from dml.ops.cache.autocache import AutoStored
from dml.ops.cache.cache import AUTO, Cache
from dml.optimize.search.autocache_choice import CacheDecision
from tests.cache.rows.test_stored_rows import counting

pytestmark = pytest.mark.usefixtures("unchecked")

ROWS, GROUPS = 400, 8
WANTED = [2 * x for x in range(ROWS)]
QUICK, SLOW = ReadTimes(((1.0, 1e-9),)), ReadTimes(((1.0, 1e9),))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store that takes no time, so that nothing depends on what a disk does just now."""
    SEEN.clear()
    monkeypatch.setattr(autocache, "times_of", lambda _root: (QUICK, QUICK))
    yield
    SEEN.clear()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": np.arange(ROWS)}), path, row_group_size=ROWS // GROUPS)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def calls(log: Path) -> int:
    """Calls since this was asked last."""
    count = log.stat().st_size if log.exists() else 0
    log.write_text("")
    return count


def kept(ds: Dataset, tmp_path: Path, **options: Any) -> Dataset:
    usual = {"telemetry_dir": "off", "num_workers": 2, "executor": "threads"}
    return ds.with_options(**{**usual, "cache_dir": str(tmp_path / "kept"), **options})


def states(ds: Dataset) -> list[str]:
    """What the next run does at each place."""
    return [each.decision.split()[0] for each in ds.cache_status()]


def values(ds: Dataset) -> list[int]:
    return [row["y"] for row in ds]


@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_epochs_profile_put_and_get(data: Path, log: Path, tmp_path: Path, executor: str) -> None:
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path, executor=executor)
    wanted = [("PROFILE", ROWS), ("PUT", ROWS), ("GET", 0), ("GET", 0)]
    for state, count in wanted:
        assert states(ds) == [state]
        assert values(ds) == WANTED
        assert calls(log) == count
    (status,) = ds.cache_status()
    assert status.whole
    assert f"GET {status.decision.split(maxsplit=1)[1]}" in ds.explain()


@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_passes_of_one_run_profile_put_and_get(
    data: Path, log: Path, tmp_path: Path, executor: str
) -> None:
    ds = dml.read_parquet(data).map(counting(log)).autocache().repeat(4)
    assert values(kept(ds, tmp_path, executor=executor)) == WANTED * 4
    assert calls(log) == 2 * ROWS


def test_passes_without_end_do_so_too(data: Path, log: Path, tmp_path: Path) -> None:
    ds = dml.read_parquet(data).map(counting(log)).autocache().repeat()
    found = list(islice(iter(kept(ds, tmp_path)), 5 * ROWS))
    assert [row["y"] for row in found] == WANTED * 5
    assert calls(log) == 2 * ROWS


def test_a_pass_in_which_the_store_fails_is_counted_once(
    data: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path, executor="sync")
    assert values(ds) == WANTED
    assert states(ds) == ["PUT"]
    begun, begin = list[str](), Choosing.begin

    def noted(self: Choosing, node: Node, epoch: int) -> CacheDecision:
        made = begin(self, node, epoch)
        begun.append(made.state.name)
        return made

    def refused(_: Disk) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Choosing, "begin", noted)
    monkeypatch.setattr(Disk, "_fresh", refused)
    with pytest.warns(StoreWarning):
        assert values(ds) == WANTED
    assert begun == ["PUT"]
    assert "nothing is kept" in ds.cache_status()[0].changed


def test_one_epoch_writes_nothing(data: Path, log: Path, tmp_path: Path) -> None:
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path, epochs=1)
    assert values(ds) == WANTED
    again = ds.epoch(0)  # the only one, asked for again
    assert states(again) == ["COMPUTE"]
    assert values(again) == WANTED
    assert not [*(tmp_path / "kept" / "store").rglob("*.arrow")]


def test_what_others_have_learned_needs_no_profile(data: Path, log: Path, tmp_path: Path) -> None:
    told = {"telemetry_dir": str(tmp_path / "telemetry")}
    first = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path, **told)
    assert values(first) == WANTED
    first.explain("costs")  # waits until it is learned
    SEEN.clear()  # as another process begins
    ds = dml.read_parquet(data).map(counting(log)).autocache().repeat(3)
    ds = kept(ds, tmp_path, **told)
    assert states(ds) == ["PUT"]
    calls(log)
    assert values(ds) == WANTED * 3
    assert calls(log) == ROWS


@pytest.mark.parametrize("telemetry", [False, True])
def test_passes_over_other_files_of_that_name_are_not_expected_again(
    log: Path, tmp_path: Path, telemetry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each day the same job, once, over a folder of that day: nobody will read what it keeps."""
    monkeypatch.setattr(
        cost_profile, "FLUSH_S", 60.0
    )  # until telemetry is written, if it takes a while
    told = {"telemetry_dir": str(tmp_path / "telemetry")} if telemetry else {}
    paths = [tmp_path / f"day {day}" / "data.parquet" for day in range(4)]
    for day, path in enumerate(paths):
        path.parent.mkdir()
        pq.write_table(pa.table({"x": np.arange(ROWS) + 1000 * day}), path, row_group_size=50)
        ds = kept(dml.read_parquet(path).map(counting(log)).autocache(), tmp_path, **told)
        assert states(ds) == (["COMPUTE"] if day else ["PROFILE"])
        list(ds)
        if telemetry:
            ds.explain("costs")  # waits until it is learned
            SEEN.clear()  # as another process begins
    ds = kept(dml.read_parquet(paths[-1]).map(counting(log)).autocache(), tmp_path, **told)
    assert states(ds) == ["PUT"], "a second pass over the last one"


def test_a_second_job_gets_all_and_computes_nothing(data: Path, log: Path, tmp_path: Path) -> None:
    """Figure 11 of Cachew: the second job reads what the first one kept, in all its epochs."""
    first = dml.read_parquet(data).autocache().map(counting(log)).autocache().batch(16)
    first = kept(first, tmp_path)
    for _ in range(3):
        list(first)
    assert calls(log) == 2 * ROWS
    SEEN.clear()  # another process, which has seen nothing
    second = dml.read_parquet(data).autocache().map(counting(log)).autocache().batch(10)
    second = kept(second, tmp_path)
    for _ in range(3):
        assert states(second) == ["COMPUTE", "GET"]
        found = np.concatenate([batch["y"] for batch in second])
        assert found.tolist() == WANTED
        rows = {each["operator"]: each["rows_out"] for each in second.stats().records}
        assert not [n for name, n in rows.items() if n and name.startswith(("Parquet", "Map"))]
    assert calls(log) == 0


JOB = """
import sys
import dml
from dml.api import autocache
from tests.api.test_autocache import QUICK
from tests.cache.rows.test_stored_rows import counting
from pathlib import Path
autocache.times_of = lambda _root: (QUICK, QUICK)
data, log, kept = map(Path, sys.argv[1:])
ds = dml.read_parquet(data).map(counting(log)).autocache()
ds = ds.with_options(cache_dir=str(kept), telemetry_dir="off", verify="off")
assert sum(row["y"] for row in ds) == sum(range(400)) * 2
print(ds.cache_status())
"""


def test_another_process_gets_all(data: Path, log: Path, tmp_path: Path) -> None:
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path)
    for _ in range(2):
        list(ds)
    calls(log)
    given = [sys.executable, "-c", JOB, str(data), str(log), str(tmp_path / "kept")]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    assert "all 8 parts" in done.stdout
    assert calls(log) == 0


def test_rows_are_kept_for_what_others_will_ask(data: Path, log: Path, tmp_path: Path) -> None:
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path, epochs=1)
    assert values(ds) == WANTED
    again = ds.epoch(0)
    assert states(again) == ["COMPUTE"]
    (status,) = again.cache_status()
    other = PartStore(Disk(status.where, "v1/default"))  # as another process has it
    other.uses.announce(status.name, 4)
    assert states(again) == ["PUT"]
    assert "5 epochs to come" in again.cache_status()[0].decision
    other.close()
    assert states(again) == ["COMPUTE"]


def test_jobs_say_what_they_will_ask_for(data: Path, log: Path, tmp_path: Path) -> None:
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path, epochs=3)
    for left in (2, 1, 0):
        assert values(ds) == WANTED
        (status,) = ds.cache_status()
        other = PartStore(Disk(status.where, "v1/default"))
        assert other.uses.elsewhere(status.name) == left


def test_where_reading_takes_longer_rows_are_computed(
    data: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autocache, "times_of", lambda _root: (SLOW, QUICK))
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path, epochs=100)
    for state in ("PROFILE", "COMPUTE", "COMPUTE"):
        assert states(ds) == [state]
        assert values(ds) == WANTED
        assert calls(log) == ROWS


def test_rows_are_written_when_computing_them_again_has_cost_as_much(
    data: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_s = 2.5 / GROUPS  # a pass takes a second, and to write its rows two and a half
    dear = ReadTimes(((1.0, each_s), (1e12, each_s)))
    monkeypatch.setattr(autocache, "times_of", lambda _root: (QUICK, dear))
    monkeypatch.setattr(Choosing, "_seconds", lambda *_: 1.0)
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(), tmp_path)
    found = []
    for _ in range(7):
        found += states(ds)
        assert values(ds) == WANTED
    assert found == ["COMPUTE"] * 3 + ["PUT"] + ["GET"] * 3
    assert calls(log) == 4 * ROWS


def test_a_declared_reuse_draws_once_for_so_many_epochs(
    data: Path, log: Path, tmp_path: Path
) -> None:
    name = str(log)

    def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
        with open(name, "a") as file:
            file.write(".")
        return {"y": row["x"] + rng.random()}

    ds = kept(dml.read_parquet(data).random_map(drawn).autocache(reuse=3), tmp_path)
    plain = kept(dml.read_parquet(data).random_map(drawn), tmp_path)
    epochs, counted = [], []
    for _ in range(7):
        epochs.append(values(ds))
        counted.append(calls(log))
    assert epochs[0] == epochs[1] == epochs[2]
    assert epochs[3] == epochs[4] == epochs[5]
    assert [epochs[n] for n in (0, 3, 6)] == [values(plain.epoch(n)) for n in range(3)]
    # the first is profiled, of each draw that lasts one pass is made
    assert counted == [ROWS, ROWS, 0, ROWS, 0, 0, ROWS]


def test_draws_are_not_taken_from_what_a_cache_has_frozen(data: Path, tmp_path: Path) -> None:
    """It has the rows of the first epoch for ever, and columns of them are shared otherwise."""

    def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"y": row["x"] + rng.random()}

    drawing = dml.read_parquet(data).random_map(drawn, schema={"y": "float64"})
    plain = [values(kept(drawing, tmp_path).epoch(epoch)) for epoch in range(3)]
    frozen = kept(drawing.with_columns(z=col("y") + 1).cache(tier="disk"), tmp_path)
    assert values(frozen) == plain[0]
    ds = kept(drawing.autocache(reuse=2), tmp_path)
    assert [values(ds) for _ in range(6)] == [plain[n // 2] for n in range(6)]
    taking = kept(drawing.with_columns(z=col("y") + 1).select("y").cache(tier="disk"), tmp_path)
    assert "takes y from" in str(taking.cache_status()), "else this test could not fail"


@pytest.mark.parametrize("reuse", [None, 3])
def test_what_it_keeps_is_cleared(data: Path, log: Path, tmp_path: Path, reuse: int | None) -> None:
    ds = kept(dml.read_parquet(data).map(counting(log)).autocache(reuse=reuse), tmp_path)
    for _ in range(2):
        values(ds.epoch(0))
    assert [each.parts for each in ds.cache_status()] == [GROUPS]
    ds.clear_cache()
    assert [each.parts for each in ds.cache_status()] == [0]


def test_of_several_places_the_one_that_saves_most_is_kept(
    data: Path, log: Path, tmp_path: Path
) -> None:
    ds = dml.read_parquet(data).autocache().map(counting(log)).autocache()
    ds = kept(ds.with_columns(z=col("y") + 1), tmp_path)
    for state in (["PROFILE", "PROFILE"], ["COMPUTE", "PUT"], ["COMPUTE", "GET"]):
        assert states(ds) == state
        assert values(ds) == WANTED


def test_elements_in_order_are_kept_where_they_are_delivered(
    data: Path, log: Path, tmp_path: Path
) -> None:
    ds = dml.read_parquet(data).map(counting(log)).batch(16).autocache()
    assert isinstance(ds._node, Cache)
    assert ds._node.tier == AUTO
    ds = kept(ds, tmp_path)
    for state, count in [("PROFILE", ROWS), ("PUT", ROWS), ("GET", 0), (None, 0), ("GET", 0)]:
        if state is None:  # another process, which has seen nothing
            SEEN.clear()
        assert states(ds) == [state or "GET"]
        assert np.concatenate([batch["y"] for batch in ds]).tolist() == WANTED
        assert calls(log) == count
    assert isinstance(dml.read_parquet(data).cache(tier="auto")._node, AutoStored)


@pytest.mark.parametrize("batched", [False, True])
def test_a_state_fits_whatever_is_decided(
    data: Path, log: Path, tmp_path: Path, *, batched: bool
) -> None:
    def made() -> Dataset:
        ds = dml.read_parquet(data).map(counting(log))
        ds = ds.batch(7).autocache() if batched else ds.autocache().batch(7)
        return kept(ds.map(lambda batch: {"z": batch["y"] + 1}), tmp_path)

    ds = made()
    wanted = [each["z"].tolist() for each in ds]
    saved = []
    for place in (5, 30, 50):  # in a run that puts, and in some that get
        run = iter(ds)
        before = [each["z"].tolist() for each in islice(run, place)]
        assert before == wanted[:place]
        saved.append((place, json.dumps(run.state_dict())))
        run.close()
    for other in (made(), kept(made(), tmp_path, cache_dir=str(tmp_path / "empty"))):
        for place, text in saved:
            run = iter(other)
            run.load_state_dict(json.loads(text))
            assert [each["z"].tolist() for each in run] == wanted[place:]


def test_without_hints_pure_functions_are_candidates(data: Path, log: Path, tmp_path: Path) -> None:
    def slow(row: dict[str, Any]) -> dict[str, Any]:
        total = 0
        for each in range(row["x"] % 3, 200):
            total += each * each
        return {"y": row["x"] * 2, "t": total}

    plain = dml.read_parquet(data).map(slow)
    ds = kept(plain, tmp_path, autocache=True)
    assert ds.fingerprint() == kept(plain, tmp_path).fingerprint()
    for state in ("PROFILE", "PUT", "GET"):
        assert states(ds) == [state]
        assert values(ds) == WANTED
    run = iter(kept(plain, tmp_path, cache_dir=str(tmp_path / "other")).batch(7))
    wanted = [batch["t"].tolist() for batch in run]
    run = iter(kept(plain.batch(7), tmp_path, autocache=True))
    assert [batch["t"].tolist() for batch in islice(run, 9)] == wanted[:9]
    rest = iter(kept(plain.batch(7), tmp_path))
    rest.load_state_dict(run.state_dict())
    assert [batch["t"].tolist() for batch in rest] == wanted[9:]
    ds = dml.read_parquet(data)
    others = [
        ds.map(lambda row: {"y": row["x"] + time.time()}),
        ds.map(lambda row: {"y": row["x"] + random.random()}),
        ds.map(counting(log), fingerprint="whatever it does"),
        ds.with_columns(r=dml.random()).map(slow),
        ds.with_columns(z=col("x") + 1),
        ds.map(lambda row: {"y": row["x"] + 1}),  # computed as an expression
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in others:
            assert not states(kept(each, tmp_path, autocache=True))


def test_what_has_no_name_is_computed(data: Path, tmp_path: Path) -> None:
    import threading

    lock = threading.Lock()

    def locked(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return {"y": row["x"] * 2}

    ds = kept(dml.read_parquet(data).map(locked).autocache(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert values(ds) == WANTED
            (status,) = ds.cache_status()
            assert status.decision == "COMPUTE a function below has no fingerprint"


def test_each_of_several_inputs_is_decided(data: Path, log: Path, tmp_path: Path) -> None:
    sides = [
        dml.read_parquet(data).filter(part).map(counting(log)).autocache()
        for part in (col("x") < ROWS // 2, col("x") >= ROWS // 2)
    ]
    ds = kept(sides[0].concat(sides[1]), tmp_path)
    for state, count in [("PROFILE", ROWS), ("PUT", ROWS), ("GET", 0)]:
        assert states(ds) == [state] * 2
        assert values(ds) == WANTED
        assert calls(log) == count
