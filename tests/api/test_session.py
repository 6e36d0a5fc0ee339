"""Test the events of a run, and how a run divides its memory and processors."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api import session
from dml.errors import MemoryContractError, PlanError
from dml.events import OperatorTotals, RunFinished, RunStarted, Waits, Warned
from dml.exec.memory.memory_shares import LEAST_TARGET, MOST_TARGET, demands_of, divided
from dml.exec.streams.plan_run import DEEPEST
from dml.exec.tasks.skipped_rows import Loss
from dml.settings import Settings
from tests.hangs import eventually

MIB = 1 << 20
OFF: dict[str, Any] = {"telemetry_dir": "off"}


@pytest.fixture
def files(tmp_path: Path) -> str:
    for number in range(2):
        table = pa.table({"x": list(range(1000)), "y": [float(i) for i in range(1000)]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=250)
    return f"{tmp_path}/*.parquet"


def told(ds: Any) -> list[Any]:
    it = iter(ds)
    for _ in it:
        pass
    found: list[Any] = it.events()
    return found


def test_later_runs_do_not_change_what_a_run_says_of_itself() -> None:
    """Also where its events, which nobody records, are made long after its end."""
    ds = dml.range(1000).cache().with_columns(x=dml.col("id") + 1).batch(10).with_options(**OFF)
    began, cpu_s = time.perf_counter(), time.process_time()
    it = iter(ds)
    assert sum(1 for _ in it) == 100
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    for _ in range(5):
        assert sum(1 for _ in ds) == 100  # served by the cache
    events: list[Any] = it.events()
    (cache,) = (each for each in events if getattr(each, "operator", "") == "Cache")
    finished = events[-1]
    assert (cache.cache_hits, cache.cache_misses, cache.kept_elements) == (0, 1, 1000)
    assert isinstance(finished, RunFinished)
    assert finished.status == "finished"
    assert finished.seconds <= seconds
    assert (finished.process_cpu_s or 0.0) <= cpu_s


def test_work_after_the_end_of_a_run_is_not_told_as_its_own() -> None:
    """A worker's last slice, and a thread that makes batches ahead, may end after the run."""
    ds = dml.range(40).filter(dml.col("id") >= 0).batch(10).with_options(**OFF)
    it = iter(ds)
    assert sum(1 for _ in it) == 4
    run = it.running
    run.tallies.mine().block(1, 7, 7, 56, 56, 1e6)
    run.meter.cells[-1].rows += 7
    run.losses.sum(Loss(1, 7, 1, "late", "row 7"))
    totals = [each for each in it.events() if isinstance(each, OperatorTotals)]
    assert [(each.rows_out, each.skipped) for each in totals] == [(40, 0)] * 3
    assert max(each.seconds for each in totals) < 1e6


def thirds(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": row["x"] / 3}


def test_a_later_run_does_not_change_whether_a_function_ran_as_expressions() -> None:
    """The first rows lie outside the proof, since floats do not hold them."""
    x = np.concatenate([np.full(70_000, 2**60 + 1), np.arange(70_000)])
    ds = dml.from_numpy({"x": x}).map(thirds).with_options(executor="sync", **OFF)
    it = iter(ds)
    next(it)
    it.close()
    assert sum(1 for _ in ds) == len(x)
    (mapped,) = [each for each in it.events() if getattr(each, "lifted", "")]
    assert mapped.lifted == "no: every block had a row outside the proof"  # type: ignore[attr-defined]


def test_a_run_says_what_it_ran_where(files: str) -> None:
    ds = dml.read_parquet(files).filter(dml.col("x") > 10).shuffle(100).batch(64)
    events = told(ds.with_options(num_workers=2, memory_limit="128MiB", **OFF))
    started, finished = events[0], events[-1]
    assert isinstance(started, RunStarted)
    assert set(started.versions) == {"dml", "numpy", "pyarrow", "python"}
    assert all(started.versions.values())
    assert started.host
    assert started.cores
    assert started.datasets == 1
    assert set(started.fingerprints) == {"fleet", "shape"}
    assert started.options["memory_limit"] == str(128 * MIB)
    assert isinstance(finished, RunFinished)
    assert (finished.status, finished.rows) == ("finished", 2 * 989)
    assert finished.batches == -(-2 * 989 // 64)
    assert finished.bytes_read
    assert finished.first_batch_s is not None
    assert finished.cpu_s is not None
    assert finished.process_cpu_s is not None
    assert finished.peak_bytes
    waits = [each for each in events if isinstance(each, Waits)]
    assert 0 < waits[0].consumer_s <= finished.seconds


def test_every_operator_is_accounted_for(files: str) -> None:
    def opaque(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "z": len(repr(row["x"]))}

    ds = dml.read_parquet(files).with_columns(w=dml.col("y") + 1).map(opaque).shuffle(100).batch(64)
    totals = [each for each in told(ds.with_options(**OFF)) if isinstance(each, OperatorTotals)]
    assert [each.operator for each in totals] == [
        "ParquetSource", "Segment", "MapRows", "ShuffleWindow", "Batch",
    ]  # fmt: skip
    assert [each.ordinal for each in totals] == list(range(5))
    source, segment, mapped, window, batch = totals
    assert source.medium == "local"
    assert source.bytes_in > 0
    assert segment.tier
    assert mapped.lifted.startswith("no: ")
    assert mapped.python_calls == 2000
    assert window.rows_in == window.rows_out == batch.rows_out == 2000
    assert window.seconds > 0
    assert window.bytes_out > 0


def test_a_resumed_run_says_so() -> None:
    ds = dml.range(1000).batch(10).with_options(**OFF).epoch(0)
    it = iter(ds)
    next(it)
    again = iter(ds)
    again.load_state_dict(it.state_dict())
    next(again)
    started = again.events()[0]
    assert isinstance(started, RunStarted)
    assert started.resumed
    assert not it.events()[0].resumed  # type: ignore[attr-defined]


@pytest.mark.law
def test_a_stall_is_a_warning_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def slow(row: dict[str, Any]) -> dict[str, Any]:
        assert eventually(lambda: "no progress for" in caplog.text)
        return dict(row)

    ds = dml.range(1).map(slow, fingerprint="slow").with_options(watchdog_s=0.03, **OFF)
    with caplog.at_level(logging.WARNING, logger="dml"):
        events = told(ds)
    warned = [each for each in events if isinstance(each, Warned)]
    assert {each.name for each in warned} == {"Stalled"}
    assert "no progress for" in caplog.text


@pytest.mark.parametrize("limit", [MIB, 64 * MIB, 4096 * MIB])
@pytest.mark.parametrize("workers", [1, 16])
def test_shares_never_add_up_to_more_than_the_number(limit: int, workers: int) -> None:
    for ds in (dml.range(100), dml.range(100).batch(4), dml.range(100).shuffle(9).batch(4)):
        plan = session.optimized(ds._node, Settings()).plan
        budget = divided(plan, limit, workers, None)
        held = budget.held_bytes * len(plan.stream)
        assert budget.stage_bytes + held + budget.ahead_bytes <= limit
        assert LEAST_TARGET <= budget.target_bytes <= MOST_TARGET


def halved(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "half": row["id"] / 2}


@pytest.mark.parametrize("limit", [MIB, 64 * MIB, 4096 * MIB])
def test_a_chain_divides_the_stages_share(limit: int) -> None:
    ds = dml.range(1000, atom_rows=100).map(halved, num_cpus=2).map(halved)
    plan = session.optimized(ds._node, Settings()).plan
    budget = divided(plan, limit, 4, None)
    demands = demands_of(plan, budget)
    assert [demand.resources for demand in demands] == [
        (("cpu", 1.0),), (("cpu", 2.0),), (("cpu", 1.0),),
    ]  # fmt: skip
    assert demands[0].name == "read"
    assert "halved" in demands[1].name
    assert all(demand.output_bytes <= budget.stage_bytes for demand in demands)
    alone = session.optimized(dml.range(1000, atom_rows=100)._node, Settings()).plan
    assert budget.target_bytes <= divided(alone, limit, 4, None).target_bytes


def test_only_files_and_functions_may_wait(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    twice = {"x": dml.col("id") * 2}

    def waits(ds: dml.Dataset) -> bool:
        plan = session.optimized(ds._node, Settings()).plan
        return demands_of(plan, divided(plan, 64 * MIB, 2, None))[0].may_wait

    assert not waits(dml.range(9).with_columns(**twice))
    assert not waits(dml.from_dict({"id": [1, 2]}).with_columns(**twice))
    assert waits(dml.read_parquet(path).with_columns(**twice))


def test_a_stage_reserves_what_it_asks_for() -> None:
    asked = dml.range(9).map(
        halved, num_cpus=0, num_gpus=0.5, memory="3MiB", resources={"tpu": 2}, concurrency=3
    )
    plan = session.optimized(asked._node, Settings()).plan
    demand = demands_of(plan, divided(plan, 64 * MIB, 2, None))[1]
    assert demand.resources == (("gpu", 0.5), ("tpu", 2.0))
    assert demand.open_bytes == 3 * MIB
    assert demand.max_parallel == 3


@pytest.mark.parametrize(
    ("needs", "said", "executor"),
    [
        ({"num_gpus": 1}, "needs gpu=1", "sync"),
        ({"num_gpus": 1}, "needs gpu=1", "threads"),
        ({"num_cpus": 3}, "needs cpu=3", "threads"),
        ({"resources": {"tpu": 1}}, "needs tpu=1", "sync"),
        ({"resources": {"tpu": 1}}, "needs tpu=1", "threads"),
        ({"memory": "1GiB"}, "needs memory=1073741824", "sync"),
    ],
)
def test_what_no_worker_has_is_refused_before_any_work(
    needs: dict[str, Any], said: str, executor: str
) -> None:
    calls = []

    def seen(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row)
        return row

    ds = dml.range(9).map(seen, fingerprint="seen").map(halved, **needs)
    options = {"executor": executor, "num_workers": 2, "memory_limit": "64MiB", **OFF}
    with pytest.raises(PlanError, match=said) as raised:
        iter(ds.with_options(**options))
    assert "test_session.py" in raised.value.at
    assert "cpu=" in raised.value.why or "memory_limit" in raised.value.why
    assert raised.value.try_
    assert not calls


@pytest.mark.parametrize("cpus", [0.25, 3])
def test_the_callers_thread_has_all_processors_in_turn(cpus: float) -> None:
    calls = []

    def seen(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["id"])
        return row

    declared = {"id": "int64"}
    ds = dml.range(90, atom_rows=1).map(seen, num_cpus=cpus, fingerprint="seen", schema=declared)
    options = {"target_partition_bytes": 1, "num_workers": 1, **OFF, "executor": "sync"}
    it = iter(ds.with_options(**options))
    assert [row["id"] for row, _ in zip(it, range(3), strict=False)] == [0, 1, 2]
    # zip asks for a fourth: its slice has at most two rows more than were delivered
    assert len(calls) <= 3 + 5, "a consumer of few rows has few made"


@pytest.mark.parametrize("before", ["shuffle", "batch", "take"])
def test_resources_over_the_stream_are_those_of_the_run(before: str) -> None:
    source = dml.range(9)
    made = {"shuffle": source.shuffle(3), "batch": source.batch(3), "take": source.take(3)}
    wanted = list(made[before].with_options(**OFF))
    with pytest.raises(PlanError, match="needs gpu=1, which no slot offers"):
        iter(made[before].map(dict, num_gpus=1).with_options(**OFF))
    for needs in ({"num_gpus": 1}, {"concurrency": 1}, {"num_cpus": 0.5}):
        ds = made[before].map(dict, **needs).with_options(resources={"gpu": 1}, **OFF)
        assert len(list(ds)) == len(wanted)


def test_the_account_of_a_chain_has_every_operator_once() -> None:
    ds = dml.range(100, atom_rows=10).map(halved, concurrency=1).filter(bool, num_cpus=0.5)
    it = iter(ds.map(halved).batch(10).with_options(**OFF))
    assert len(list(it)) == 10
    totals = [each for each in it.events() if isinstance(each, OperatorTotals)]
    assert [each.ordinal for each in totals] == [0, 1, 2, 3, 4]
    assert [each.operator for each in totals] == [
        "Range", "MapRows", "FilterRows", "LiftedMap", "Batch",
    ]  # fmt: skip
    assert [each.rows_out for each in totals] == [100] * 5
    assert [each.python_calls for each in totals] == [0, 100, 100, 0, 0]
    assert totals[1].lifted == "no: it runs where it was given resources"


def test_a_window_that_cannot_fit_is_refused_before_the_first_row() -> None:
    ds = dml.range(10**7).shuffle(10**6).batch(10)
    with pytest.raises(MemoryContractError, match="do not fit") as raised:
        next(iter(ds.with_options(memory_limit="4MiB", **OFF)))
    assert "ShuffleWindow" in raised.value.at
    assert "test_session.py" in raised.value.at
    assert "memory_limit" in raised.value.why
    assert "rows" in raised.value.try_


def test_a_batch_that_cannot_fit_is_refused() -> None:
    with pytest.raises(MemoryContractError, match="Batch"):
        next(iter(dml.range(10**7).batch(10**6).with_options(memory_limit="4MiB", **OFF)))


@pytest.mark.law
def test_a_row_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"text": ["x" * (8 << 20)]}), path, compression="none")
    with pytest.raises(MemoryContractError, match="fit into the memory number") as raised:
        next(iter(dml.read_parquet(str(path)).with_options(memory_limit="4MiB", **OFF)))
    assert "row group 0" in raised.value.at


@pytest.mark.law
def test_operators_nested_as_deep_as_allowed_run_and_deeper_ones_are_refused() -> None:
    one, ds = dml.from_dict({"x": [1]}), dml.from_dict({"x": [0, 1, 2]})
    for _ in range(DEEPEST):
        ds = one.mix(ds)
    assert len(list(ds.with_options(**OFF))) == DEEPEST + 3
    with pytest.raises(PlanError, match="operators see the stream one above the other"):
        iter(one.mix(ds))
