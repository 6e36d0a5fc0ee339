"""Test that rules with worse measured costs are not applied, without any effect on results."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api import cost_profile, explanation, plan_search, run_telemetry, session
from dml.fleet.learning import Learner
from dml.fleet.reader import read
from dml.fleet.tables import TelemetryTables, tables
from dml.optimize.cost.beliefs import Belief
from dml.optimize.cost.estimate import Estimate
from dml.profile import CostKey, Learned, Profile
from dml.testing import stream_hash

ROWS = 300_000


@pytest.fixture(autouse=True)
def _planning_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_search, "CLOCK", lambda: 0.0)


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": row["id"] * 2 + 1}


def pipeline(folder: Path, *off: str, **options: Any) -> dml.Dataset:
    ds = dml.range(ROWS).map(doubled).batch(1000)
    return ds.with_options(telemetry_dir=str(folder), executor="sync", disable_rules=off, **options)


def titles(ds: dml.Dataset) -> list[str]:
    plan = session.optimized(ds._node, ds._settings).plan
    return [type(node).__name__ for node in plan.operators]


def record(folder: Path, runs: int, **seconds: float) -> None:
    """Write down that runs took so long in the operator behind the source."""
    known = Profile()
    for name, took in seconds.items():
        ds = pipeline(folder, *([] if name == "used" else [name]))
        each: Estimate = explanation.estimated(ds._node, ds._settings)[1]
        key = CostKey.of(each.work, run_telemetry.profile_of(ds._settings).host_class, 65_536, 8)
        for _ in range(runs):
            known = known.merge(Profile({key: Learned.once(took / ROWS, 1e9)}))
    learner = Learner(folder, run_telemetry.profile_of(pipeline(folder)._settings).host_class)
    learner._fresh = known
    learner.keep()


def test_a_rule_that_measured_worse_is_off_next_time(tmp_path: Path) -> None:
    assert titles(pipeline(tmp_path))[1] == "LiftedMap"
    record(tmp_path, 3, used=0.4, lift_map=0.2)
    assert titles(pipeline(tmp_path))[1] == "MapRows"
    for text in (pipeline(tmp_path).explain(), pipeline(tmp_path).explain("rules")):
        assert "lift_map off" in text
        assert "measured 1.9x slower, n=3" in " ".join(text.split())
    assert titles(pipeline(tmp_path).with_options(telemetry_dir="off"))[1] == "LiftedMap"


@pytest.mark.parametrize(("runs", "used"), [(1, 0.9), (3, 0.21), (3, 0.1)])
def test_one_sample_and_noise_switch_nothing_off(tmp_path: Path, runs: int, used: float) -> None:
    record(tmp_path, runs, used=used, lift_map=0.2)
    assert titles(pipeline(tmp_path))[1] == "LiftedMap"


@pytest.mark.law
def test_bytes_names_and_saved_positions_do_not_show_it(tmp_path: Path) -> None:
    before = pipeline(tmp_path / "elsewhere")
    whole, started = stream_hash(before), iter(before)
    for _ in range(100):
        next(started)
    state = started.state_dict()
    started.close()
    rest = stream_hash(_resumed(before, state))
    record(tmp_path, 3, used=0.4, lift_map=0.2)
    after = pipeline(tmp_path)
    assert titles(after)[1] == "MapRows"
    assert stream_hash(after) == whole
    assert after.fingerprint() == before.fingerprint()
    assert stream_hash(_resumed(pipeline(tmp_path), state)) == rest


def _resumed(ds: dml.Dataset, state: dict[str, Any]) -> Any:
    elements = iter(ds)
    elements.load_state_dict(state)
    return elements


def test_a_rule_that_saved_positions_show_is_never_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that moved below a shuffle: without the rule other rows pass the stream."""

    def sorted_() -> dml.Dataset:
        ds = dml.range(ROWS).sort("id").filter(dml.col("id") > 7)
        return ds.with_options(telemetry_dir=str(tmp_path))

    def dear(plan: Any, settings: Any, profile: Any, gives: Any = None) -> tuple[Estimate, ...]:
        """Known from many runs; the first operator of the plan that would be used is dear."""
        usual = type(plan.operators[1]).__name__ == "Segment"
        belief = Belief.learned(Learned.once(1e-5 if usual else 1e-7, 0.0, 9.0))
        return tuple(
            Estimate(n, node.title(), ROWS, ROWS, 8.0, belief, "", n == 0, f"{n}{usual}", 9.0)
            for n, node in enumerate(plan.operators)
        )

    record(tmp_path, 3, used=0.4, lift_map=0.2)
    usual = titles(sorted_())
    assert usual[1] == "Segment"
    monkeypatch.setattr(cost_profile, "expected", dear)
    assert titles(sorted_()) == usual


def test_nothing_is_looked_for_where_nothing_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        pytest.fail("the machine was measured, or another plan made, for nothing")

    monkeypatch.setattr(cost_profile, "profile_of", refuse)
    assert titles(pipeline(tmp_path))[1] == "LiftedMap"
    assert titles(pipeline(tmp_path).with_options(telemetry_dir="off"))[1] == "LiftedMap"


def test_a_gain_is_told_before_anything_ran() -> None:
    ds = dml.range(ROWS).map(doubled).with_options(telemetry_dir="off")
    text = ds.explain()
    assert "lift_map" in text
    assert "the same work" not in text[text.index("lift_map") :].split("\n", 2)[1]


def test_short_pipelines_are_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, 3, used=0.4, lift_map=0.2)
    monkeypatch.setattr(cost_profile, "LEAST_S", 60.0)
    monkeypatch.setattr(cost_profile, "_other", lambda *_: pytest.fail("another plan was made"))
    assert titles(pipeline(tmp_path))[1] == "LiftedMap"


def test_planning_again_takes_a_small_part_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, 3, used=0.4, lift_map=0.2)
    readings = iter(range(100))
    monkeypatch.setattr(plan_search, "CLOCK", lambda: 0.05 * next(readings))
    monkeypatch.setattr(cost_profile, "_other", lambda *_: pytest.fail("another plan was made"))
    assert titles(pipeline(tmp_path))[1] == "LiftedMap"


def told(root: Path, ds: dml.Dataset) -> TelemetryTables:
    """What telemetry has of a run of ``ds``, read back."""
    ds = ds.with_options(telemetry_dir=str(root))
    list(ds)
    collector = run_telemetry.collector_of(ds._settings)
    assert collector is not None
    assert collector.flush()
    return tables(read(root))


def test_telemetry_names_results_and_tells_how_fast_the_machine_is(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet")
    ds = dml.read_parquet(str(tmp_path / "a.parquet")).filter(col("x") > 3).batch(10)
    found = told(tmp_path / "told", ds)
    run = found.runs.to_pylist()[0]
    assert run["result_fingerprint"] == ds.fingerprint()
    assert run["host_class"]
    assert run["capability"] > 0
    names = found.plans["result_fingerprint"].to_pylist()
    assert len({*names}) == len(names) == 3
    other = told(tmp_path / "others", dml.read_parquet(str(tmp_path / "a.parquet")))
    assert other.plans["result_fingerprint"].to_pylist()[0] is not None


@pytest.mark.parametrize("other", [{"x": [1, 3]}, {"x": [1, 2], "y": [3, 4]}])
def test_results_of_other_data_have_other_names(tmp_path: Path, other: dict[str, object]) -> None:
    names = []
    for number, data in enumerate(({"x": [1, 2]}, other)):
        pq.write_table(pa.table(data), tmp_path / "a.parquet")
        found = told(tmp_path / str(number), dml.read_parquet(str(tmp_path / "a.parquet")))
        names.append(found.plans["result_fingerprint"][0].as_py())
    assert names[0] != names[1]


def test_no_name_is_told_of_what_has_none_or_costs_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    nameless = dml.range(3).map(lambda row: {"x": (row["id"], lock)[0]})
    assert told(tmp_path / "a", nameless).runs["result_fingerprint"].to_pylist() == [None]
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet")
    large = dml.read_parquet(str(tmp_path / "a.parquet"))
    monkeypatch.setattr(run_telemetry, "NAMED_BYTES", 10)
    found = told(tmp_path / "b", large)
    assert found.runs["result_fingerprint"].to_pylist() == [None]
    assert found.plans["result_fingerprint"].to_pylist() == [None] * found.plans.num_rows
    assert found.runs["capability"][0].as_py() > 0
