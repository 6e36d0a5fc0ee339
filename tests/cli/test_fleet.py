"""Test ``dml fleet``: lists of runs, jobs and pipelines, one run, export and compaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dml.events import OperatorTotals, RunFinished, RunStarted
from dml.fleet.collector import publish

pytest.importorskip("duckdb")
NOON = 1_770_000_000.0
Dml = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "telemetry"
    for n, name in enumerate(["aaaa1111", "bbbb2222"]):
        at = NOON + n
        prints = {"fleet": "f" * 32}
        events = [
            RunStarted(run=name, at=at, job="j", fingerprints=prints, pipeline="Batch\nRange"),
            OperatorTotals(run=name, at=at, ordinal=0, operator="Range", rows_out=7, seconds=0.5),
            RunFinished(run=name, at=at, rows=7, bytes=7_000, seconds=1.0, cpu_s=0.5),
        ]
        publish(root, f"w-{n}", events, at)
    return root


def test_runs_are_listed_latest_first(dml: Dml, store: Path) -> None:
    told = dml("fleet", "runs", "--root", store)
    assert told.code == 0
    lines = told.out.splitlines()
    assert lines[0].split()[:3] == ["run", "started", "status"]
    assert [line.split()[0] for line in lines[1:3]] == ["bbbb2222", "aaaa1111"]
    assert "7.0 kB" in lines[1]
    assert lines[1].endswith("Range > Batch")
    assert lines[-1] == f"2 rows in {store}"
    few = dml("fleet", "runs", "--limit", 1, "--root", store)
    assert few.out.splitlines()[-1] == f"1 row of 2 in {store}"


@pytest.mark.parametrize(("command", "key"), [("jobs", "j"), ("pipelines", "f" * 12)])
def test_jobs_and_pipelines_have_a_line_each(dml: Dml, store: Path, command: str, key: str) -> None:
    told = dml("fleet", command, "--root", store)
    assert told.code == 0
    lines = told.out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith(key)
    whole = dml("fleet", command, "--root", store, "--json").json
    assert (whole["of"], whole["rows"][0]["runs"], whole["rows"][0]["cpu_s"]) == (1, 2, 1.0)


def test_one_run_has_its_operators(dml: Dml, store: Path) -> None:
    told = dml("fleet", "run", "bbbb", "--root", store)
    assert told.code == 0
    assert "Range" in told.out
    found = dml("fleet", "run", "bbbb", "--root", store, "--json").json
    assert (found["run"], found["operators"][0]["rows_out"]) == ("bbbb2222", 7)
    missing = dml("fleet", "run", "c", "--root", store)
    assert (missing.code, missing.out) == (1, "")
    assert "no run has a name that begins with 'c'" in missing.err


def test_gc_compacts_and_removes(dml: Dml, store: Path) -> None:
    told = dml("fleet", "gc", "--all", "--root", store)
    assert (told.code, told.out) == (0, f"2 runs of 2 event files compacted in {store}\n")
    again = dml("fleet", "gc", "--keep-days", 0, "--root", store, "--json").json
    assert (again["runs"], again["expired"]) == (0, 2)
    assert dml("fleet", "runs", "--root", store, "--json").json["rows"] == []


def test_export_writes_tables_to_a_new_folder(dml: Dml, store: Path, tmp_path: Path) -> None:
    told = dml("fleet", "export", tmp_path / "out", "--root", store)
    assert told.code == 0
    assert pq.read_table(tmp_path / "out" / "runs.parquet").num_rows == 2
    assert pq.read_table(tmp_path / "out" / "operators.parquet")["operator"].to_pylist() == [
        "Range",
        "Range",
    ]
    assert dml("fleet", "export", tmp_path / "out", "--root", store).code == 2


def test_damage_goes_to_standard_error(dml: Dml, store: Path) -> None:
    (path,) = store.glob("v1/day=*/w-0.jsonl")
    path.write_text("{")
    told = dml("fleet", "runs", "--root", store)
    assert told.code == 0
    assert "damaged: " in told.err
    assert len(told.out.splitlines()) == 3


def test_figures_and_shared_prefixes_print_tables(dml: Dml, store: Path) -> None:
    told = dml("fleet", "figures", "--root", store)
    assert told.code == 0
    assert told.out.splitlines()[0].split() == ["figure", "statement", "value", "paper"]
    assert any(line.endswith("75.0%") for line in told.out.splitlines())
    whole = dml("fleet", "figures", "--root", store, "--json").json
    assert whole["figure_12"][-1]["runs"] == 1.0
    shared = dml("fleet", "shared", "--root", store, "--json").json
    assert shared["rows"] == []


def test_two_runs_are_compared_by_operator(dml: Dml, store: Path) -> None:
    told = dml("fleet", "compare", "aaaa", "bbbb", "--root", store)
    assert told.code == 0
    lines = told.out.splitlines()
    assert lines[0].split()[:3] == ["operator", "a", "rows"]
    assert lines[1].split()[:3] == ["Range", "7", "7"]
    assert dml("fleet", "compare", "aaaa", "zzzz", "--root", store).code == 1
