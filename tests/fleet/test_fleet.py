"""Test queries over the runs of a telemetry folder, in event files and in Parquet."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.api import run_telemetry
from dml.errors import PlanError
from dml.events import Event, OperatorTotals, RunFinished, RunStarted
from dml.fleet import compaction
from dml.fleet import fleet as fleet_module
from dml.fleet.collector import publish
from dml.fleet.compaction import compact
from dml.fleet.snapshot import event_files
from dml.fleet.table_text import cell_text

pytest.importorskip("duckdb")
NOON = 1_770_000_000.0


def run(
    name: str, job: str, pipeline: str, host_class: str = "m", **finished: object
) -> list[Event]:
    prints = {"fleet": pipeline}
    return [
        RunStarted(run=name, at=NOON, job=job, fingerprints=prints, host_class=host_class),
        RunFinished(run=name, at=NOON + 1, **finished),  # type: ignore[arg-type]
    ]


def compacted(root: Path) -> None:
    assert compact(root, settled_s=-1e12).runs


def real_run(root: Path) -> dml.Dataset:
    ds = dml.range(1_000).filter(col("id") > 9).map(lambda row: {"x": [row["id"], "a"][0]}).batch(8)
    return recorded(ds.with_options(plain_text=True), root)


def recorded(ds: dml.Dataset, root: Path) -> dml.Dataset:
    ds = ds.with_options(telemetry_dir=str(root))
    list(ds)
    collector = run_telemetry.collector_of(ds._settings)
    assert collector is not None
    assert collector.flush()
    return ds


def test_a_run_has_the_figures_that_it_had_a_week_later(tmp_path: Path) -> None:
    ds = real_run(tmp_path)
    stats = str(ds.stats())
    name = dml.fleet.open(tmp_path).runs()["run"][0].as_py()
    in_events = dml.fleet.open(tmp_path)
    assert [str(in_events.run(name)), str(in_events.run(name[:7]))] == [stats, stats]
    compacted(tmp_path)
    in_parquet = dml.fleet.open(tmp_path)
    assert in_parquet.runs().equals(in_events.runs())
    assert in_parquet.run(name).summary == in_events.run(name).summary
    rows = in_parquet.operators(name).to_pylist()
    assert [approx(row) for row in in_events.operators().to_pylist()] == rows


def approx(row: dict[str, object]) -> dict[str, object]:
    """A row whose seconds are equal to six digits."""
    floats = {name: each for name, each in row.items() if isinstance(each, float)}
    return {**row, **{name: pytest.approx(each, rel=1e-6) for name, each in floats.items()}}


def test_jobs_and_pipelines_add_up_runs_of_one_class_of_machine(tmp_path: Path) -> None:
    events = [
        *run("a", "j", "p", cpu_s=1.0, rows=5),
        *run("b", "j", "q", cpu_s=2.0, rows=7, status="failed"),
        *run("c", "k", "p", cpu_s=4.0, rows=5),
        *run("d", "k", "p", "gpu", cpu_s=8.0),
        *run("e", "l", "r"),
    ]
    publish(tmp_path, "w-0", events, NOON)
    for _ in range(2):
        fleet = dml.fleet.open(tmp_path)
        jobs = {(r["job"], r["host_class"]): r for r in fleet.jobs().to_pylist()}
        assert (jobs["j", "m"]["runs"], jobs["j", "m"]["failed"]) == (2, 1)
        assert (jobs["j", "m"]["rows"], jobs["j", "m"]["cpu_s"]) == (12, 3.0)
        assert (jobs["k", "m"]["cpu_s"], jobs["k", "gpu"]["cpu_s"]) == (4.0, 8.0)
        pipelines = fleet.pipelines().to_pylist()
        keys = [(r["fleet_fingerprint"], r["host_class"]) for r in pipelines]
        assert keys == [("p", "gpu"), ("p", "m"), ("q", "m"), ("r", "m")]
        assert (pipelines[1]["jobs"], pipelines[1]["runs"], pipelines[1]["cpu_s"]) == (2, 2, 5.0)
        assert pipelines[3]["cpu_s"] is None  # not recorded is not zero
        if fleet.query("SELECT count(*) AS n FROM runs")["n"][0].as_py() == 5:
            compact(tmp_path, settled_s=-1e12)


def test_queries_are_sql_and_results_feed_pipelines(tmp_path: Path) -> None:
    publish(tmp_path, "w-0", [*run("a", "j", "p"), *run("b", "j", "p", status="failed")], NOON)
    fleet = dml.fleet.open(str(tmp_path))
    assert repr(fleet) == f"Fleet({str(tmp_path)!r}, 2 runs)"
    failed = fleet.query("SELECT run FROM runs WHERE status = $status", {"status": "failed"})
    assert failed.to_pylist() == [{"run": "b"}]
    ds = dml.from_arrow(fleet.runs()).filter(col("status") == "failed").select("run")
    assert ds.take_rows(5) == [{"run": "b"}]


def test_a_run_that_is_not_there_and_a_name_of_several_are_errors(tmp_path: Path) -> None:
    publish(tmp_path, "w-0", [*run("ab", "j", "p"), *run("ac", "j", "p")], NOON)
    fleet = dml.fleet.open(tmp_path)
    with pytest.raises(PlanError, match="no run has a name that begins with 'z'"):
        fleet.run("z")
    with pytest.raises(PlanError, match="more than one run has a name that begins with 'a'"):
        fleet.run("a")
    assert fleet.run("ab").summary["run"] == "ab"


def test_two_runs_or_pipelines_are_compared_by_operator(tmp_path: Path) -> None:
    def totals(name: str, *operators: tuple[str, float]) -> list[Event]:
        return [
            OperatorTotals(run=name, at=NOON, ordinal=n, operator=kind, cpu_s=cost, rows_out=10,
                           worker=worker)
            for n, (kind, cost) in enumerate(operators)
            for worker in ("", "b")
        ]  # fmt: skip

    publish(
        tmp_path, "w-0",
        [
            *run("a1", "j", "p"), *totals("a1", ("Range", 1.0), ("Map", 2.0), ("Map", 3.0)),
            *run("b1", "j", "q"), *totals("b1", ("Range", 1.0), ("Filter", 0.5), ("Map", 1.0)),
            *run("b2", "j", "q"), *totals("b2", ("Range", 3.0), ("Filter", 1.5), ("Map", 3.0)),
        ],
        NOON,
    )  # fmt: skip
    rows = dml.fleet.open(tmp_path).compare("a", "q").to_pylist()
    found = [(row["operator"], row["a_cpu_s"], row["b_cpu_s"], row["cpu_ratio"]) for row in rows]
    assert found == [
        ("Range", 2.0, 4.0, 2.0), ("Filter", None, 2.0, None),
        ("Map", 4.0, 4.0, 1.0), ("Map", 6.0, None, None),
    ]  # fmt: skip
    assert [row["b_rows"] for row in rows] == [20, 20, 20, None]
    with pytest.raises(PlanError, match="more than one run, pipeline or week has a name"):
        dml.fleet.open(tmp_path).compare("a", "b")


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_without_telemetry_is_an_error(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "there's none"
    if made:
        folder.mkdir()
    with pytest.raises(PlanError, match="there is no telemetry in this folder") as error:
        dml.fleet.open(folder)
    assert str(folder) in str(error.value)


def test_many_events_are_compacted_when_the_folder_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        path = publish(tmp_path, f"w-{n}", run(f"r{n}", "j", "p"), NOON)
        os.utime(path, (NOON, NOON))
    assert dml.fleet.open(tmp_path).runs().num_rows == 4
    assert len(event_files(tmp_path)) == 4
    monkeypatch.setattr(compaction, "SLICE_BYTES", 1)
    monkeypatch.setattr(fleet_module, "SLICE_BYTES", 1)
    assert dml.fleet.open(tmp_path).runs().num_rows == 4
    assert event_files(tmp_path) == []


def test_paths_with_quotes_are_read(tmp_path: Path) -> None:
    root = tmp_path / 'it\'s a "folder" [1]*'
    publish(root, "w-0", run("a", "j", "p"), NOON)
    compacted(root)
    assert dml.fleet.open(root).runs()["run"].to_pylist() == ["a"]


def test_without_duckdb_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, "w-0", run("a", "j", "p"), NOON)
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(PlanError, match="dml\\[fleet\\]"):
        dml.fleet.open(tmp_path)


PLANS = {"p": ["s", "f", "m"], "q": ["s", "f", "n"], "r": ["s", "g"], "t": ["u"]}
"""Pipelines, and the names of their prefixes; the operator of each has its ordinal."""


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(PLANS)),
            st.sampled_from(["j", "k"]),
            st.sampled_from(["m", "gpu"]),
            st.integers(0, 9),
        ),
        max_size=8,
    )
)
def test_shared_prefixes_are_those_that_several_runs_have(
    runs: list[tuple[str, str, str, int]],
) -> None:
    events: list[Event] = [RunStarted(run="none", at=NOON)]
    for number, (plan, job, host_class, cost) in enumerate(runs):
        name, names = f"run{number}", PLANS[plan]
        prefixes = {prefix: f"{n} {prefix.upper()}" for n, prefix in enumerate(names)}
        start = run(name, job, plan, host_class)[0]
        assert isinstance(start, RunStarted)
        events.append(dataclasses.replace(start, prefixes=prefixes))
        events += [
            OperatorTotals(
                run=name, at=NOON, ordinal=n, operator=prefix, worker=worker, cpu_s=float(cost),
                rows_out=min(cost, 4), fingerprints={"fleet": f"{plan}{n}"},
            )
            for n, prefix in enumerate(names)
            for worker in ("", "b")
        ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        publish(Path(folder), "w-0", events, NOON)
        found = dml.fleet.open(folder).shared().to_pylist()
    got = {(row["prefix"], row["host_class"]): row for row in found}
    for key, row in got.items():
        assert row == {**row, **expected(runs, *key)}
    users = Counter((prefix, run[2]) for run in runs for prefix in PLANS[run[0]])
    longer = {"s": "fg", "f": "mn"}
    assert set(got) == {
        (prefix, machine)
        for (prefix, machine), count in users.items()
        if count > 1 and all(users[each, machine] < count for each in longer.get(prefix, ""))
    }
    repeated = [row["repeated_cpu_s"] for row in found]
    assert repeated == sorted(repeated, reverse=True)


def expected(
    runs: list[tuple[str, str, str, int]], prefix: str, machine: str
) -> dict[str, float | int | str]:
    """What ``shared()`` says of a prefix, one run after the other."""
    mine = [each for each in runs if each[2] == machine and prefix in PLANS[each[0]]]
    cpu_s = sum(2.0 * each[3] * (PLANS[each[0]].index(prefix) + 1) for each in mine)
    computed = sum(each[3] > 0 for each in mine)  # the others have no rows
    return {
        "operator": prefix.upper(),
        "runs": len(mine),
        "computed": computed,
        "jobs": len({each[1] for each in mine}),
        "pipelines": len({each[0] for each in mine}),
        "cpu_s": cpu_s,
        "repeated_cpu_s": cpu_s * (1 - 1 / max(computed, 1)),
    }


def test_rows_from_a_cache_are_not_computed(tmp_path: Path) -> None:
    data = pa.table({"a": range(1_000)})
    pq.write_table(data, tmp_path / "t.parquet")
    ds = dml.read_parquet(str(tmp_path / "t.parquet")).map(lambda row: {"x": [row["a"]][0]})
    ds = ds.cache(tier="disk").with_options(cache_dir=str(tmp_path / "cache"))
    for size in (7, 8, 9):
        recorded(ds.batch(size), tmp_path / "fleet")
    (row,) = (
        each
        for each in dml.fleet.open(tmp_path / "fleet").shared().to_pylist()
        if each["runs"] == 3
    )
    assert (row["operator"], row["computed"], row["rows"]) == ("LiftedMap", 1, 1_000)
    assert row["repeated_cpu_s"] == 0


def test_real_pipelines_share_what_they_compute_alike(tmp_path: Path) -> None:
    data = pa.table({name: range(2_000) for name in "abc"})
    pq.write_table(data, tmp_path / "t.parquet", row_group_size=500)
    common = dml.read_parquet(str(tmp_path / "t.parquet")).filter(col("a") >= 1_000)
    tails = [
        common.with_columns(d=col("b") + 1).batch(7),
        common.map(lambda row: {"x": str(row["a"])}).shuffle(9).batch(5),
        dml.read_parquet(str(tmp_path / "t.parquet")).filter(col("a") >= 1_000).select("c"),
    ]
    for ds in tails:
        recorded(ds, tmp_path / "fleet")
    fleet = dml.fleet.open(tmp_path / "fleet")
    (first,) = (row for row in fleet.shared().to_pylist() if row["runs"] == 3)
    assert (first["operator"], first["pipelines"], first["rows"]) == ("Segment", 3, 1_000)
    whole = [row["runs"] for row in fleet.pipelines().to_pylist()]
    assert whole == [1, 1, 1]  # as whole graphs they have nothing in common


def test_a_pipeline_has_a_history_of_its_runs(tmp_path: Path) -> None:
    ds, *_ = [real_run(tmp_path) for _ in range(3)]
    recorded(dml.range(5).batch(2), tmp_path)
    found = ds.history(2)
    assert (found.of, found.runs.num_rows) == (3, 2)
    assert {*found.runs["rows"].to_pylist()} == {990}
    assert str(found).startswith("3 recorded runs; median of finished runs ")
    picture = found._repr_html_()
    assert picture.count("<title>") == 2
    pipeline = dml.fleet.open(tmp_path).pipelines()["fleet_fingerprint"][0].as_py()
    assert dml.fleet.open(tmp_path).history(pipeline[:9]).of == 3
    never = dml.range(6).batch(2).with_options(telemetry_dir=str(tmp_path))
    assert str(never.history()) == "no recorded run of this pipeline"
    with pytest.raises(PlanError, match="count"):
        never.history(0)
    with pytest.raises(PlanError, match="off"):
        never.with_options(telemetry_dir="off").history()


def test_a_history_shows_hostile_names_as_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    events = run(hostile, "j", "f" * 32, hostile, rows=3, seconds=2.0)
    publish(tmp_path, "w-0", events, NOON)
    page = dml.fleet.open(tmp_path).history("f" * 32)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_cells_are_texts_by_the_names_of_their_columns() -> None:
    texts = {
        "rows_per_s": (12_517.3, "12,517"), "waited_share": (0.203, "20.3%"),
        "cpu_s": (0.0347, "34.7 ms"), "stored_bytes": (5_221_434, "5.2 MB"),
        "bytes_read": (1_500, "1.5 kB"), "cpu_ratio": (1.5, "1.50"),
        "money": (1_266.45, "1,266.45"),
        "seconds": (2.0, "2.00 s"), "rows": (3_000, "3,000"), "operator": ("a\nb", "b > a"),
        "run": ("8f47fb767b8c1234", "8f47fb767b8c"), "epoch": (None, "-"),
    }  # fmt: skip
    for column, (value, text) in texts.items():
        assert cell_text(column, value) == text, column


def test_two_weeks_are_compared(tmp_path: Path) -> None:
    week_s = 7 * 86_400
    for number, cost in enumerate((1.0, 3.0, 8.0)):
        name, at = f"r{number}", NOON + week_s * (number // 2)
        start = RunStarted(run=name, at=at, job="j", fingerprints={"fleet": f"f{number}"})
        did = OperatorTotals(run=name, at=at, ordinal=0, operator="Range", cpu_s=cost)
        publish(tmp_path, f"w-{number}", [start, did, RunFinished(run=name, at=at + 1)], at)
    fleet = dml.fleet.open(tmp_path)  # NOON is on a Monday, the first day of a week
    (row,) = fleet.compare("2026-W06", "2026-W07").to_pylist()
    assert (row["operator"], row["a_cpu_s"], row["b_cpu_s"], row["cpu_ratio"]) == (
        "Range", 2.0, 8.0, 4.0,
    )  # fmt: skip
    with pytest.raises(PlanError, match="no run, pipeline or week"):
        fleet.compare("2026-W06", "2026-W08")
