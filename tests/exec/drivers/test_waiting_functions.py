"""Count the concurrent calls of functions that wait, where the run chooses that number."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from dml.base.host import cores
from dml.errors import WorkerLostError
from dml.exec.drivers import threads
from dml.exec.drivers.driver_choice import Opening
from dml.exec.scheduler.concurrency import MOST

ROWS, WAIT_S = 2000, 0.01

pytestmark = pytest.mark.skipif(cores() * 8 > MOST, reason="as many cores as threads that may wait")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run begins with what another one learned."""
    monkeypatch.setattr(Opening, "known", {})


class Calls:
    """Counts calls, and the most at once."""

    def __init__(self) -> None:
        self.lock, self.now, self.most, self.all = threading.Lock(), 0, 0, 0

    @contextmanager
    def one(self) -> Iterator[None]:
        with self.lock:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self.lock:
                self.now -= 1


def waiting(calls: Calls) -> Any:
    def work(row: dict[str, Any]) -> dict[str, Any]:
        with calls.one():
            time.sleep(WAIT_S)
        return {"y": 2 * row["item"]}

    return work


def items(**options: Any) -> Dataset:
    ds = dml.from_items(list(range(ROWS)))
    return ds.with_options(telemetry_dir="off", **options)


WANTED = [{"y": 2 * item} for item in range(ROWS)]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "threads"])
def test_more_calls_run_at_once_than_there_are_cores(executor: str) -> None:
    calls = Calls()
    ds = items(executor=executor).map(waiting(calls))
    iterator = iter(ds)
    assert list(iterator) == WANTED
    assert cores() < calls.most <= MOST
    assert calls.all == ROWS
    tuned = iterator.stats().summary["tuned"]
    assert tuned[0].before == cores()
    assert "slices at once" in str(iterator.stats())
    # the next epoch begins with the number that this one ended with
    again = iter(ds)
    next(again)
    if tuned[-1].after > cores():
        change = again.stats().summary["tuned"][0]
        assert (change.before, change.after, change.rows) == (cores(), tuned[-1].after, 0)
        assert change.reason == "as in the run before"
    again.close()


@pytest.mark.parametrize(
    ("options", "asked", "most"),
    [
        ({"num_workers": 2}, {}, 2),
        ({"tune": "off"}, {}, cores()),
        ({}, {"concurrency": 1}, 1),
        ({"num_workers": 3}, {"num_cpus": 1.5}, 2),
    ],
)
def test_numbers_that_somebody_gave_are_kept(
    options: dict[str, Any], asked: dict[str, Any], most: int
) -> None:
    calls = Calls()
    iterator = iter(items(**options).map(waiting(calls), **asked).take(100))
    assert list(iterator) == WANTED[:100]
    assert calls.most <= most
    assert "tuned" not in iterator.stats().summary


INSTANCES: list[int] = []


class Waiting:
    def __init__(self) -> None:
        INSTANCES.append(1)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(WAIT_S)
        return {"y": 2 * row["item"]}


def test_a_class_gets_no_more_instances() -> None:
    INSTANCES.clear()
    assert list(items().map(Waiting).take(300)) == WANTED[:300]
    assert 1 <= len(INSTANCES) <= cores()


@pytest.mark.slow
def test_a_class_gets_as_many_instances_as_it_asks_for() -> None:
    INSTANCES.clear()
    assert list(items().map(Waiting, concurrency=6).take(600)) == WANTED[:600]
    assert min(cores(), 6) <= len(INSTANCES) <= 6


@pytest.mark.slow
def test_a_class_below_a_cache_gets_no_more_instances(tmp_path: Path) -> None:
    INSTANCES.clear()
    table = pa.table({"item": np.arange(400)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    ds = dml.read_parquet(tmp_path / "a.parquet").map(
        Waiting, schema={"y": "int64"}, fingerprint="class"
    )
    ds = ds.cache(tier="disk").with_options(cache_dir=str(tmp_path), telemetry_dir="off")
    assert list(ds) == WANTED[:400]
    assert 1 <= len(INSTANCES) <= cores()


@pytest.mark.slow
def test_units_of_a_cache_are_made_by_as_many_threads(tmp_path: Path) -> None:
    """There a function runs in the task that reads the unit."""
    table = pa.table({"item": np.arange(ROWS)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    calls = Calls()
    ds = dml.read_parquet(tmp_path / "a.parquet").map(
        waiting(calls), schema={"y": "int64"}, fingerprint="waiting"
    )
    ds = ds.cache(tier="disk").with_options(
        cache_dir=str(tmp_path), telemetry_dir="off", verify="off"
    )
    assert list(ds) == WANTED
    assert calls.most > cores()
    assert calls.all == ROWS
    assert list(ds) == WANTED
    assert calls.all == ROWS


@pytest.mark.slow
def test_pipelines_that_a_function_opens_are_read_by_as_many_threads() -> None:
    calls = Calls()
    work = waiting(calls)
    ds = dml.range(32).interleave(
        lambda _row: dml.from_items(list(range(50))).map(work), cycle_length=16, block_length=1
    )
    got = [row["y"] for row in ds.with_options(telemetry_dir="off")]
    assert got == [2 * item for _ in range(2) for item in range(50) for _ in range(16)]
    assert cores() < calls.most <= 16


@pytest.mark.slow
@pytest.mark.parametrize("place", [1, 700, 1900])
def test_a_state_saved_among_many_calls_goes_on_there(place: int) -> None:
    ds = items().map(waiting(Calls()))
    iterator = iter(ds)
    head = [next(iterator) for _ in range(place)]
    state = iterator.state_dict()
    iterator.close()
    again = iter(ds)
    again.load_state_dict(state)
    assert head + list(again) == WANTED


@pytest.mark.slow
def test_rows_that_grow_stay_within_the_memory() -> None:
    """Tiny rows first, so that many calls run at once, and then rows of a megabyte."""

    def work(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(WAIT_S)
        return {"y": np.full(1 << 17 if row["item"] >= ROWS - 300 else 1, row["item"], "f8")}

    ds = items(memory_limit="256MiB").map(work, schema={"y": "f8[?]"})
    iterator = iter(ds)
    assert [int(row["y"][0]) for row in iterator] == list(range(ROWS))
    report = iterator.memory_report() if hasattr(iterator, "memory_report") else ds.memory_report()
    assert report.accounted_bytes <= 256 << 20


def test_few_threads_do_the_work_where_no_more_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[threading.Thread] = []

    def started(thread: threading.Thread) -> None:
        if len(begun) >= cores() + 1:
            raise WorkerLostError("a thread could not be started")
        begun.append(thread)
        thread.start()

    monkeypatch.setattr(threads, "started", started)
    calls = Calls()
    assert list(items().map(waiting(calls)).take(500)) == WANTED[:500]
    assert calls.most <= cores() + 1


@pytest.mark.slow
def test_calls_that_keep_few_rows_are_counted_by_what_they_read() -> None:
    calls = Calls()

    def last(row: dict[str, Any]) -> bool:
        with calls.one():
            time.sleep(WAIT_S)
        return bool(row["item"] % 1000 == 999)

    assert [row["item"] for row in items().filter(last)] == [999, 1999]
    assert calls.most > cores()


@pytest.mark.slow
def test_large_inputs_of_small_results_stay_within_the_memory() -> None:
    """Rows of a megabyte that wait for their turn are held, whatever their results take."""
    lock, held, most = threading.Lock(), 0, 0

    def made(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        return {"x": np.full(1 << 17, row["item"], "f8")}

    def labelled(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal held
        time.sleep(WAIT_S)
        with lock:
            held -= 1
        return {"y": int(row["x"][0])}

    ds = items(memory_limit="256MiB").map(made, schema={"x": "f8[131072]"}).shuffle(2, seed=0)
    ds = ds.map(labelled, schema={"y": "int64"})
    assert sorted(row["y"] for row in ds) == list(range(ROWS))
    assert most < 120  # megabytes


SCRIPT = """
import sys, time, dml

def work(row):
    time.sleep(0.01)
    return {"y": row["item"]}

ds = dml.from_items(list(range(1000))).map(work).with_options(telemetry_dir=sys.argv[1])
iterator = iter(ds)
assert sum(row["y"] for row in iterator) == sum(range(1000))
print(iterator.stats().summary["tuned"][0].reason)
"""


@pytest.mark.slow
def test_another_process_begins_where_this_one_ended(tmp_path: Path) -> None:
    """What was learned lies in the folder of telemetry; without one, nothing is kept."""
    script = tmp_path / "waits.py"
    script.write_text(SCRIPT)

    def first_change(folder: str) -> str:
        command = [sys.executable, str(script), folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout

    folder = str(tmp_path / "telemetry")
    assert "functions wait" in first_change(folder)
    assert "as in the run before" in first_change(folder)
    assert "functions wait" in first_change("off")
