"""Test the command line with real pipelines: rows, saved states, errors and events."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml as library
from dml.api.run_telemetry import collector_of
from dml.cli.target import Pipeline
from dml.events import OperatorTotals, RunFinished, RunStarted
from dml.fleet.reader import read

PIPELINES = """
import dml
from dml import col
source = dml.read_parquet({path!r}).with_options(telemetry_dir={store!r}, num_workers=2)
ds = source.filter(col("x") >= 0.5).with_columns(y=col("x") * 2.0).shuffle(64, seed=1).batch(32)
rows = source.take(50)
bad = source.map(lambda row: {{"z": 1 // (row["a"] - 700)}}, fingerprint="bad").batch(10)
"""


@pytest.fixture
def target(tmp_path: Path) -> Callable[[str], str]:
    """`target("ds")`: a pipeline over 1000 rows of Parquet, of which half pass its filter."""
    data, file, store = (tmp_path / name for name in ("data.parquet", "train.py", "store"))
    x = np.random.default_rng(0).permutation(np.arange(1000) / 1000)
    pq.write_table(pa.table({"a": np.arange(1000), "x": x}), data, row_group_size=100)
    file.write_text(PIPELINES.format(path=str(data), store=str(store)))
    return lambda name: f"{file}:{name}"


def test_a_dataset_is_what_the_command_line_takes() -> None:
    dataset: Pipeline = library.range(3)
    assert isinstance(dataset, Pipeline)


def test_a_run_counts_what_it_delivered(
    dml: Callable[..., Any], target: Callable[..., Any]
) -> None:
    value = dml("run", target("ds"), "--json").json
    assert (value["batches"], value["rows"], value["bytes"]) == (16, 500, 12_000)
    assert value["operators"][0]["rows_out"] == 1000
    assert dml("run", target("rows"), "--json").json["rows"] == 50


def test_stopped_and_resumed_is_the_whole(
    dml: Callable[..., Any], target: Callable[..., Any], tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    first = dml("run", target("ds"), "--take", 5, "--checkpoint", state, "--json").json
    assert state.stat().st_size < 4096
    rest = dml("run", target("ds"), "--resume", state, "--json").json
    assert (first["batches"], rest["batches"]) == (5, 11)
    assert first["rows"] + rest["rows"] == 500


def test_a_state_belongs_to_its_pipeline(
    dml: Callable[..., Any], target: Callable[..., Any], tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    dml("run", target("ds"), "--take", 1, "--checkpoint", state)
    told = dml("run", target("rows"), "--resume", state)
    assert told.code == 1
    assert told.err.startswith("ResumeMismatchError: ")
    assert json.loads(state.read_text())["version"]


def test_a_users_error_names_file_and_row(
    dml: Callable[..., Any], target: Callable[..., Any]
) -> None:
    told = dml("run", target("bad"), "--json")
    assert told.code == 1
    assert told.json["error"]["kind"] == "UDFError"
    assert "row 700" in told.json["error"]["at"]
    assert "train.py:7" in told.json["error"]["at"]


def test_events_of_the_run_are_in_the_store(
    dml: Callable[..., Any], target: Callable[..., Any], tmp_path: Path
) -> None:
    dml("run", target("ds"))
    # The collector lives as long as the process; its file is there once it was flushed.
    collector = collector_of(library.Settings(telemetry_dir=str(tmp_path / "store")))
    assert collector is not None
    assert collector.flush(10)
    events = list(read(tmp_path / "store"))
    assert [type(each) for each in events if isinstance(each, RunStarted | RunFinished)] == [
        RunStarted,
        RunFinished,
    ]
    assert sum(each.rows_out for each in events if isinstance(each, OperatorTotals)) >= 1500
    (end,) = [each for each in events if isinstance(each, RunFinished)]
    assert (end.status, end.rows) == ("finished", 500)


@pytest.mark.parametrize("stage", ["written", "physical", "rules"])
def test_plans_are_explained(
    dml: Callable[..., Any], target: Callable[..., Any], stage: str
) -> None:
    told = dml("explain", target("ds"), "--stage", stage)
    assert told.code == 0
    assert "x >= 0.5" in told.out


def test_fingerprints_are_equal_in_every_run(
    dml: Callable[..., Any], target: Callable[..., Any]
) -> None:
    for domain in ("result", "fleet", "shape", "cost"):
        one, two = (dml("fingerprint", target("ds"), "--domain", domain).out for _ in range(2))
        assert one == two
        assert int(one, 16) > 0
