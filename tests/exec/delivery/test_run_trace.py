"""Test the timelines of runs: their format, that each slice is there once, and what goes wrong."""

from __future__ import annotations

import json
import stat
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import dml
from dml import col
from dml.errors import DmlError, PlanError
from dml.events import RunFinished
from dml.exec.delivery.run_trace import LOOP, RunTrace


def slow(row: dict[str, Any]) -> dict[str, Any]:
    total = 0
    for n in range(300):
        total += row["id"] * n % 7
    return {"id": row["id"], "x": [total][0]}


def pipeline(folder: Path, **options: Any) -> dml.Dataset:
    ds = dml.range(4_000).map(slow).filter(col("id") > 9).batch(50)
    return ds.with_options(trace_dir=str(folder), telemetry_dir="off", **options)


def traces(folder: Path) -> list[list[dict[str, Any]]]:
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_slices_and_waits_are_on_lines_of_their_own(tmp_path: Path, executor: str) -> None:
    folder = tmp_path / "traces"
    ds = pipeline(folder, executor=executor)
    plain = [batch["x"].tolist() for batch in ds.with_options(trace_dir=None)]
    assert [batch["x"].tolist() for batch in ds] == plain
    (events,) = traces(folder)
    slices = [each for each in events if each["ph"] == "X" and each["tid"] != LOOP]
    made = [each["args"]["rows"] for each in slices if "MapRows(slow)" in each["name"]]
    assert 3_990 <= sum(made) <= 4_200  # the first rows are made twice where they settle the types
    named = {each["tid"] for each in events if each["name"] == "thread_name"}
    assert {each["tid"] for each in slices} < named
    for line in named:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == line)
        assert all(one[1] <= next_[0] + 1 for one, next_ in pairwise(mine))
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_each_run_has_a_file_and_a_failed_one_names_no_value(tmp_path: Path) -> None:
    ds = dml.range(90).map(lambda row: {"x": 1 // (row["id"] - 70)}).batch(8)
    ds = ds.with_options(trace_dir=str(tmp_path), telemetry_dir="off")
    for _ in range(2):
        with pytest.raises(DmlError):
            list(ds)
    assert len(traces(tmp_path)) == 2
    assert "ZeroDivision" not in "".join(path.read_text() for path in tmp_path.iterdir())


def test_a_run_that_is_left_early_has_a_whole_file(tmp_path: Path) -> None:
    rows = iter(pipeline(tmp_path))
    next(rows)
    del rows
    (events,) = traces(tmp_path)
    assert events[0]["name"] == "process_name"


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="trace"):
        next(iter(pipeline(tmp_path / "file")))


def test_a_disk_that_is_full_ends_the_trace_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    ds = pipeline(tmp_path)
    monkeypatch.setattr("dml.exec.delivery.run_trace.json.dumps", full)
    with pytest.raises(OSError, match="space"):
        json.dumps({})
    assert len(list(ds)) == 80
    assert [each.split(":")[0] for each in ds.stats().warnings] == ["TraceStopped"]


def test_a_driver_process_writes_the_trace_of_its_run(tmp_path: Path) -> None:
    assert len(list(pipeline(tmp_path, driver="process"))) == 80
    (events,) = traces(tmp_path)
    assert any("MapRows(slow)" in each["name"] for each in events)


def test_a_run_that_is_collected_while_its_trace_is_written_ends(tmp_path: Path) -> None:
    told: list[str] = []
    trace = RunTrace(tmp_path, "r" * 32, lambda name, _: told.append(name))
    ended = threading.Event()

    def collected() -> None:
        with trace._lock:  # a garbage collection may begin here, and end the run
            trace.hear(RunFinished(run="r"))
        ended.set()

    threading.Thread(target=collected, daemon=True).start()
    assert ended.wait(60)
    assert told == []
