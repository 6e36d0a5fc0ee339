"""Test the policy file: what is cached by it, that rows stay the same, and whom dml obeys."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api import autocache, run_telemetry
from dml.api.run_telemetry import prefixes_of
from dml.api.session import optimized
from dml.base.read_times import ReadTimes
from dml.fleet import advice
from dml.fleet.policy import FILE, read_policy, write_policy

pytest.importorskip("duckdb")


def slow(row: dict[str, int]) -> dict[str, int]:
    total = 0
    for n in range(400):
        total += (row["a"] * n) % 7
    return {"a": row["a"], "t": [total][0]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"a": range(4_000)}), tmp_path / "t.parquet", row_group_size=1_000)
    return tmp_path / "t.parquet"


def tails(source: Path, root: Path, **options: object) -> list[dml.Dataset]:
    base = dml.read_parquet(source).filter(col("a") > 9).map(slow)
    settings = {
        "telemetry_dir": str(root), "cache_dir": str(root / "cache"), "executor": "sync",
    }  # fmt: skip
    ways = [base.batch(64), base.filter(col("t") > 5).batch(32), base.select("t").batch(128)]
    return [each.with_options(**settings, **options) for each in ways]


def rows(pipelines: list[dml.Dataset]) -> list[list[dict[str, object]]]:
    made = [[{k: v.tolist() for k, v in batch.items()} for batch in ds] for ds in pipelines]
    collector = run_telemetry.collector_of(pipelines[0]._settings)
    assert collector is not None
    assert collector.flush()
    return made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes no time, as it was measured, and advice on savings however small."""
    monkeypatch.setattr(advice, "LEAST_S", 0.0)
    times = ReadTimes.measured([(1.0, 1e-7), (1e9, 1e-6)])
    monkeypatch.setattr(autocache, "times_of", lambda _: (times, times))


@pytest.mark.usefixtures("quick")
def test_the_second_round_reads_what_the_policy_caches(tmp_path: Path, source: Path) -> None:
    root = tmp_path / "t"
    first = rows(tails(source, root) + tails(source, root))
    fleet = dml.fleet.open(root)
    assert "cache-epochs" in fleet.advise()["kind"].to_pylist()
    path = fleet.apply()
    assert path == root / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert rows(tails(source, root, autocache=True) * 2) == first
    (entry, *_) = dml.fleet.open(root).applied().to_pylist()
    assert entry["runs"] == 6
    assert entry["cached"] >= 5
    assert entry["saved_cpu_s"] > 0
    plain, again = (dml.fleet.open(root).pipelines()["runs"].to_pylist() for _ in range(2))
    assert sorted(plain) == sorted(again) == [4, 4, 4]


@pytest.mark.usefixtures("quick")
def test_a_pipeline_that_allows_no_cache_has_none(tmp_path: Path, source: Path) -> None:
    root = tmp_path / "t"
    rows(tails(source, root) * 2)
    dml.fleet.open(root).apply()
    rows(tails(source, root))
    assert not (root / "cache" / "store").exists()
    assert {row["cached"] for row in dml.fleet.open(root).applied().to_pylist()} == {0}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 9, "written": 1, "caches": []}', '{"version": 1, "caches": 3}',
     '{"version": 1, "written": 1, "caches": [{"prefix": 3, "reads": 2}]}',
     '{"version": 1, "written": 1, "caches": [{"prefix": "p", "reads": -2}]}',
     '{"version": 1, "written": 1, "caches": [{"prefix": "p", "reads": Infinity}]}'],
)  # fmt: skip
def test_a_damaged_policy_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    (tmp_path / FILE).chmod(0o600)
    assert read_policy(tmp_path).reads == {}


def test_a_policy_that_others_may_write_is_not_obeyed(tmp_path: Path) -> None:
    entry = {"kind": "cache-prefix", "prefix": "p", "operator": "MapRows", "runs": 8, "cpu_s": 1.0}
    path = write_policy(tmp_path, [{**entry, "stored_bytes": 3.0}], 2.0)
    mine = read_policy(tmp_path)
    assert mine.reads == {"p": 4.0}
    assert read_policy(tmp_path) is mine
    path.chmod(0o666)
    assert read_policy(tmp_path).reads == {}
    path.chmod(0o600)
    assert json.loads(path.read_text())["caches"][0]["stored_bytes"] == 3.0
    assert read_policy(tmp_path).reads == {"p": 4.0}
    assert read_policy(tmp_path / "missing").reads == {}
    assert read_policy(None).reads == {}


@pytest.mark.usefixtures("quick")
def test_positions_are_valid_with_a_policy_and_without(tmp_path: Path, source: Path) -> None:
    root = tmp_path / "t"
    settings = {
        "telemetry_dir": str(root), "cache_dir": str(root / "cache"), "executor": "sync",
        "autocache": True,
    }  # fmt: skip

    def ways() -> list[dml.Dataset]:
        read = dml.read_parquet(source).with_columns(b=col("a") * 2)
        made = [read.skip(70), read.take(900), read, read.map(slow).skip(70), read.map(slow)]
        return [each.batch(32).with_options(**settings) for each in made]

    def half(ds: dml.Dataset) -> tuple[dict[str, Any], list[list[int]]]:
        it = iter(ds)
        for _ in range(9):
            next(it)
        return it.state_dict(), [batch["a"].tolist() for batch in it]

    rows(ways() * 2)
    before = [half(ds) for ds in ways()]
    entry = {"kind": "cache-prefix", "operator": "MapRows", "runs": 9, "cpu_s": 1.0}
    names = [each for ds in ways() for each in prefixes_of(optimized(ds._node, ds._settings))]
    write_policy(root, [{**entry, "prefix": name} for name in names], 1.0)
    assert len(read_policy(root).reads) > 3
    after = [half(ds) for ds in ways()]
    for ds, (state, rest), (_, again) in zip(ways(), before, after, strict=True):
        it = iter(ds)
        it.load_state_dict(state)
        assert [batch["a"].tolist() for batch in it] == rest == again
    (root / FILE).unlink()
    for ds, (state, rest) in zip(ways(), after, strict=True):
        it = iter(ds)
        it.load_state_dict(state)
        assert [batch["a"].tolist() for batch in it] == rest


def test_a_policy_that_changes_while_runs_begin_fails_none(tmp_path: Path, source: Path) -> None:
    root, stop = tmp_path / "t", threading.Event()
    (ds, *_) = tails(source, root, autocache=True)
    rows([ds])
    names = prefixes_of(optimized(ds._node, ds._settings))
    entry = {"kind": "cache-prefix", "operator": "MapRows", "runs": 9, "cpu_s": 1.0}

    def change() -> None:
        while not stop.is_set():
            write_policy(root, [{**entry, "prefix": name} for name in names], 1.0)
            write_policy(root, [], 1.0)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(40):
            assert len(list(ds.take(3))) == 3
    finally:
        stop.set()
        thread.join()
