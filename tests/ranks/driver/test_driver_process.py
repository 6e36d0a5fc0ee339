"""Test driver processes: they deliver what a local run delivers, and leave nothing behind."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.base.host import cores
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError, ResumeMismatchError, UDFError
from dml.exec.slicing.slice_sizes import PER_WORKER
from dml.ranks.driver.driver_handle import EVERY, living
from tests.cluster.dask_cases import eventually
from tests.ranks.driver.driver_cases import HANG_S, ROWS, afar, nothing_stays, numbers, table, texts

pytestmark = pytest.mark.cluster

__all__ = ["nothing_stays", "numbers", "table"]

SHAPES: dict[str, Callable[[Dataset], Dataset]] = {
    "rows": lambda ds: ds.select("n"),
    "batches": lambda ds: ds.batch(7),
    "wide": lambda ds: ds.batch(1000),
    "texts": lambda ds: ds.map(texts).batch(64),
    "shuffled": lambda ds: ds.map(texts).shuffle(300, seed=3).batch(64),
    "whole shuffle": lambda ds: ds.shuffle(seed=3).batch(100).map(lambda b: {"m": b["n"] * 2}),
    "several": lambda ds: ds.zip(ds.select("n").rename({"n": "k"}).shuffle(seed=1)).batch(50),
    "part": lambda ds: ds.skip(70).take(801).repeat(2).batch(64),
    "kept": lambda ds: ds.map(texts).cache().shuffle(100).batch(32),
    "nothing": lambda ds: ds.filter(dml.col("n") < 0).batch(10),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_stream_is_the_one_made_here(numbers: Dataset, shape: str, executor: str) -> None:
    ds = SHAPES[shape](numbers).with_options(executor=executor)
    far = afar(ds)
    for epoch in range(2):
        assert stream_hash(far.epoch(epoch)) == stream_hash(ds.epoch(epoch))


@settings(max_examples=12)
@given(
    shape=st.sampled_from([name for name in SHAPES if name != "nothing"]),
    stop=st.integers(0, 60),
    there=st.booleans(),
    prefetch=st.sampled_from(["auto", 0, 1, 3]),
)
def test_a_state_goes_on_under_the_other_driver(
    table: Path, shape: str, stop: int, there: bool, prefetch: Any
) -> None:
    ds = SHAPES[shape](dml.read_parquet(table)).with_options(telemetry_dir="off", num_workers=2)
    far = afar(ds, prefetch=prefetch)
    one, other = (far, ds) if there else (ds, far)
    whole = list(ds.epoch(1))
    with iter(one.epoch(1)) as first:
        begun = list(islice(first, stop))
        state = json.loads(json.dumps(first.state_dict()))
    assert first.state_dict() == state
    rest = iter(other.epoch(0))
    rest.load_state_dict(state)
    assert rest.epoch == 1
    assert stream_hash([*begun, *rest]) == stream_hash(whole)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_rows_in_any_order_come_once_and_go_on(numbers: Dataset, executor: str) -> None:
    whole = [str(row) for row in numbers.map(texts)]
    far = afar(numbers.map(texts), executor=executor, deterministic=False)
    with iter(far.epoch(0)) as first:
        begun = list(islice(first, ROWS // 3))
        state = json.loads(json.dumps(first.state_dict()))
    rest = iter(far.epoch(0))
    rest.load_state_dict(state)
    assert sorted(map(str, [*begun, *rest])) == sorted(whole)


def test_the_work_is_done_in_one_process_that_is_used_again(numbers: Dataset) -> None:
    ds = afar(numbers.map(lambda row: {"pid": row["n"] * 0 + os.getpid()}))
    pids = {row["pid"] for _ in range(2) for row in ds}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_arrays_belong_to_the_caller(numbers: Dataset) -> None:
    far = iter(afar(numbers.batch(1500)))
    first, second = list(far)
    before = second["n"].copy()
    first["n"][:] = -1
    assert (second["n"] == before).all()
    assert first["n"].base is not None  # they lie where the driver has put them
    del far
    gc.collect()
    first["n"][:] = 7
    assert first["n"].sum() == 7 * 1500


def test_many_batches_may_be_held_without_descriptors(numbers: Dataset) -> None:
    held = list(iter(afar(numbers.batch(5))))
    before = len(os.listdir("/proc/self/fd"))
    large = list(iter(afar(dml.range(1 << 20).batch(1 << 13))))
    assert len(large) == 128
    assert len(held) == ROWS // 5
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def broken(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 1234:
        raise OddError(f"no room for {row['n']}")
    return row


class OddError(Exception):
    pass


def test_an_error_says_the_same(numbers: Dataset) -> None:
    found = []
    for ds in (numbers.map(broken).batch(10), afar(numbers.map(broken).batch(10))):
        came = 0
        with pytest.raises(UDFError) as caught:  # noqa: PT012 - what came before it counts
            for _ in ds.epoch(0):
                came += 1
        cause = caught.value.__cause__
        found.append((str(caught.value), caught.value.row, type(cause), str(cause), came))
    assert found[0] == found[1]
    assert found[0][2] is OddError


@pytest.mark.parametrize("on_stream", [False, True])
def test_an_error_of_a_function_over_the_stream_too(numbers: Dataset, on_stream: bool) -> None:
    ds = numbers.shuffle(50) if on_stream else numbers
    ds = ds.batch(10).map(lambda batch: {"n": batch["m"]})
    errors = []
    for each in (ds, afar(ds)):
        with pytest.raises(UDFError) as caught:
            list(each.epoch(0))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_what_cannot_be_sent_is_told_by_name(numbers: Dataset) -> None:
    lock = threading.Lock()
    ds = afar(numbers.map(lambda row: {"n": row["n"], "free": not lock.locked()}))
    with pytest.raises(PlanError, match="cannot be sent to another process"):
        next(iter(ds))


def test_no_driver_for_one_thread_or_a_scaled_cluster(numbers: Dataset) -> None:
    with pytest.raises(PlanError, match="is for driver='here'"):
        afar(numbers, executor="sync")
    with pytest.raises(PlanError, match="is for driver='here'"):
        afar(numbers, autoscale=(1, 2), executor="distributed")
    with pytest.raises(PlanError, match="driver must be one of here, process"):
        numbers.with_options(driver="proces")


def test_statistics_and_memory_are_those_of_the_run(numbers: Dataset) -> None:
    ds = afar(numbers.map(texts).batch(100))
    it = iter(ds)
    next(it)
    assert it.stats()["rows"] if isinstance(it.stats(), dict) else "running" in str(it.stats())
    list(it)
    told = str(ds.stats())
    assert f"finished  {ROWS:,} rows" in told
    assert "MapRows" in told
    report = ds.memory_report()
    assert sum(stage.slices for stage in report.stages) > 0
    finished: list[Any] = [event for event in it.events() if type(event).__name__ == "RunFinished"]
    assert [(each.rows, each.batches) for each in finished] == [(ROWS, ROWS // 100)]


def test_a_loop_that_is_left_tells_what_it_took(numbers: Dataset) -> None:
    ds = afar(numbers.batch(10))
    for _ in islice(ds, 3):
        pass
    gc.collect()
    assert "stopped  30 rows" in str(ds.stats())


def test_warnings_and_log_lines_arrive(numbers: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    def odd(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 5:
            warnings.warn("five", stacklevel=1)
            time.sleep(2.5)
        return {"n": row["n"]}

    ds = numbers.map(odd).map(broken, on_error="skip").batch(10)
    ds = afar(ds, watchdog_s=0.5, executor="threads")
    it = iter(ds)
    with caplog.at_level(logging.WARNING, "dml"), pytest.warns(UserWarning, match="five"):
        assert sum(len(batch["n"]) for batch in it) == ROWS - 1
    assert "no progress for" in caplog.text
    assert "no room for 1234" in str(it.events())


def test_what_a_cache_keeps_is_found_again_and_let_go(numbers: Dataset, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    others = {name for driver in living() for name in driver.known}

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write(".")
        return {"n": row["n"]}

    def stay() -> bool:
        """A driver stays for a pipeline that none had before."""
        found = [dict(driver.known) for driver in living() if driver.stays]
        return any(
            ref() is not None
            for known in found
            for name, (ref, _) in known.items()
            if name not in others
        )

    ds = afar(numbers.take(50).map(counted).cache().batch(5))
    for _ in range(3):
        assert len(list(ds)) == 10
    assert len(calls.read_text()) == 50
    assert stay()
    ds.clear_cache()
    assert len(list(ds)) == 10
    assert len(calls.read_text()) == 100
    del ds
    assert eventually(lambda: not stay()), "what its last thread held is let go too"


def test_a_function_whose_global_changes_is_sent_again(numbers: Dataset) -> None:
    scope: dict[str, Any] = {"factor": 2}
    exec("def times(row):\n    return {'n': row['n'] * factor}", scope)
    ds = afar(numbers.map(scope["times"]).batch(ROWS))
    assert next(iter(ds))["n"][1] == 2
    scope["factor"] = 5
    assert next(iter(ds))["n"][1] == 5


def test_two_iterators_have_a_process_each(numbers: Dataset) -> None:
    ds = numbers.batch(10)
    one, other = iter(afar(ds).epoch(0)), iter(afar(ds.shuffle(100)).epoch(0))
    pairs = list(zip(one, other, strict=True))
    assert stream_hash(pair[0] for pair in pairs) == stream_hash(ds.epoch(0))
    assert stream_hash(pair[1] for pair in pairs) == stream_hash(ds.shuffle(100).epoch(0))


def test_no_more_is_made_ahead_than_was_agreed(numbers: Dataset, tmp_path: Path) -> None:
    log = tmp_path / "made"

    def noted(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with log.open("a") as file:
            file.write(".")
        return batch

    ds = numbers.shuffle(20).batch(10).map(noted)
    for depth in (0, 2, 5):
        log.write_text("")
        with iter(afar(ds, prefetch=depth).epoch(0)) as it:
            for given in range(1, 6):
                next(it)
                time.sleep(0.05)
                # and slices under way, with no more batches than were handed on
                under_way = PER_WORKER * cores() + given + depth
                assert len(log.read_text()) <= given + depth + under_way
    # by bytes alone: a tenth of the number, and what was made when it was reached
    whole = dml.range(1 << 19).shuffle(10).batch(1 << 12).map(noted)
    log.write_text("")
    with iter(afar(whole, memory_limit="4MiB", telemetry_dir="off")) as it:
        next(it)
        time.sleep(0.3)
        assert len(log.read_text()) < 128 // 2


def test_an_interrupted_wait_ends_the_run(numbers: Dataset) -> None:
    def slow(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.5)
        return row

    it = iter(afar(numbers.map(slow)))
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(1.5, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        list(it)
    assert "interrupted" in str(it.stats())


def test_tables_and_ranks_and_tensors_come_from_there_too(numbers: Dataset) -> None:
    ds = numbers.select("n")
    for form in ("arrow", "pandas"):
        here = list(ds.epoch(0).iter_batches(500, batch_format=form))
        there = list(afar(ds).epoch(0).iter_batches(500, batch_format=form))
        assert [one.equals(other) for one, other in zip(here, there, strict=True)] == [True] * 6
    ranks = afar(ds.batch(10)).streaming_split(2)
    threads = [threading.Thread(target=lambda r=r: got.append(list(r))) for r in ranks]
    got: list[Any] = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    rows = sorted(int(n) for part in got for batch in part for n in batch["n"])
    assert rows == list(range(ROWS))
    assert afar(ds).count() == ROWS
    assert afar(ds).to_arrow().num_rows == ROWS
    assert len(afar(ds).take_rows(5)) == 5


def test_a_state_of_another_pipeline_is_refused(numbers: Dataset) -> None:
    state = iter(numbers.batch(5)).state_dict()
    with pytest.raises(ResumeMismatchError):
        iter(afar(numbers.batch(6))).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_forked_child_has_drivers_of_its_own(numbers: Dataset) -> None:
    ds = afar(numbers.batch(100))
    list(ds)
    before = {each.process.pid for each in living()}
    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(len(list(EVERY)) != 0)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(ds)) == ROWS // 100
    assert {each.process.pid for each in living()} == before
