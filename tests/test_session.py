"""This file tests what a run tells about itself, and how it divides what it may use."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import session
from dml.errors import MemoryContractError
from dml.events import OperatorTotals, RunFinished, RunStarted, Waits, Warned
from dml.exec.budget import LEAST_TARGET, MOST_TARGET, divided
from dml.settings import Settings

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
        return {**row, "z": len(str(row["x"]))}

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


def test_a_stall_is_a_warning_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def slow(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.15)
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


def test_a_row_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"text": ["x" * (8 << 20)]}), path, compression="none")
    with pytest.raises(MemoryContractError, match="fit into the memory number") as raised:
        next(iter(dml.read_parquet(str(path)).with_options(memory_limit="4MiB", **OFF)))
    assert "row group 0" in raised.value.at
