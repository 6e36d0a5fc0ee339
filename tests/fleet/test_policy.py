"""Test the policy file: what is cached by it, that rows stay the same, and whom dml obeys."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api import run_telemetry
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
