"""``recommend`` names settings by the forecast from a given run; no clock decides these tests."""

from __future__ import annotations

from typing import Any

import pytest

import dml
from dml import Dataset
from dml.api import recommendation, run_telemetry, what_if
from dml.api.recommendation import Recommendations
from dml.events import Event, OperatorTotals, RunFinished, RunStarted, Tuned, Waits
from dml.exec.delivery.prefetch_depth import Variation
from dml.optimize.phases import optimize
from dml.profile import Speed
from tests.exec.delivery.shelves import drawn, even, lognormal, simulated

ROWS = 640
OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}


@pytest.fixture(autouse=True)
def _usual_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores of the usual speed: a busy machine would measure another one."""
    monkeypatch.setattr(what_if, "cores", lambda: 2)
    monkeypatch.setitem(run_telemetry._SPEEDS, "None", Speed())


def f(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": len(str(row))}


def events(ds: Dataset, seconds: float, cpu_s: float, *tuned: Tuned) -> list[Event]:
    """What a run of ``ds`` would have told in which the function took so long."""
    plan = optimize(ds._node, 0).plan
    totals = [
        OperatorTotals(
            ordinal=ordinal,
            rows_in=ROWS,
            rows_out=ROWS,
            bytes_out=8 * ROWS,
            seconds=seconds if node.calls else 1e-3,
            cpu_s=cpu_s if node.calls else 1e-3,
        )
        for ordinal, node in enumerate(plan.operators)
    ]
    started = RunStarted(fingerprints={"fleet": plan.fingerprint})
    ended = Waits(consumer_s=seconds), RunFinished(rows=ROWS, batches=40, seconds=seconds)
    return [started, *totals, *tuned, *ended]


def found(ds: Dataset, told: list[Event], **options: Any) -> Recommendations:
    ds = ds.with_options(**{**OFF, **options})
    return recommendation.recommend(ds._node, ds._settings, told)


PIPELINE = dml.range(ROWS).map(f).batch(16)
WAITS = events(PIPELINE, 16.0, 0.1)
COMPUTES = events(PIPELINE, 16.0, 16.0)


def test_more_workers_where_functions_wait() -> None:
    (best, *_) = found(PIPELINE, WAITS, executor="processes")
    assert best.code == ".with_options(num_workers=32)"
    assert best.times < 0.25
    assert "wait" in best.why
    codes = [each.code for each in found(PIPELINE, COMPUTES, executor="processes")]
    assert not any("num_workers" in code for code in codes), "cores are the limit"


def test_processes_where_functions_hold_the_lock() -> None:
    codes = [each.code for each in found(PIPELINE, COMPUTES, executor="threads")]
    assert ".with_options(executor='processes')" in codes
    codes = [each.code for each in found(PIPELINE, WAITS, executor="threads")]
    assert ".with_options(executor='processes')" not in codes


def test_what_a_run_has_found_is_worth_fixing() -> None:
    stage = "MapRows(f)"
    found_by_run = Tuned(name="00", stage=stage, before=2, after=40, rows=100, reason="it waits")
    (each,) = found(
        PIPELINE, events(PIPELINE, 16.0, 0.1, found_by_run), executor="threads", num_workers="auto"
    )
    assert (each.code, each.times) == (".with_options(num_workers=40)", 1.0)
    assert each.why == f"found by the last run, for {stage}"
    few = Tuned(name="00", stage=stage, before=2, after=3, rows=100, reason="it waits")
    told = events(PIPELINE, 16.0, 0.1, few)
    codes = [each.code for each in found(PIPELINE, told, executor="threads", num_workers="auto")]
    assert ".with_options(num_workers=3)" not in codes, "noise"


def test_batches_ahead_of_a_loop() -> None:
    in_order = dml.range(ROWS).scan(0, lambda total, row: (total + 1, row)).batch(16)
    told = events(in_order, 4.0, 4.0)
    told[-1] = RunFinished(rows=ROWS, batches=40, seconds=8.0)  # of which 4 in the loop
    codes = [each.code for each in found(in_order, told, executor="threads", prefetch=0)]
    assert ".with_options(prefetch='auto')" in codes


SEEN = dml.range(ROWS).scan(0, lambda total, row: (total + 1, row)).batch(1)


def run_with(variation: float, make_s: float, loop_s: float) -> list[Event]:
    """What a run told whose batches took ``make_s``, with that variation, and its loop."""
    *told, _, _ = events(SEEN, ROWS * make_s, ROWS * make_s)
    waits = Waits(consumer_s=ROWS * make_s, variation=variation)
    return [*told, waits, RunFinished(rows=ROWS, batches=ROWS, seconds=ROWS * (make_s + loop_s))]


@pytest.mark.parametrize("depth", [1, 2, 4, 16])
@pytest.mark.parametrize("loop_s", [0.006, 0.009, 0.010, 0.014])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_batches_ahead_are_foreseen_as_a_simulated_loop_gets_them(
    depth: int, loop_s: float, sigma: float
) -> None:
    chunks = drawn(lognormal(0.010, sigma), even(loop_s), 5_000, seed=1)
    makes = Variation()
    for chunk in chunks:
        makes.add(chunk.make_s)
    make_s = makes.total / makes.count
    told = run_with(makes.squared, make_s, loop_s)
    node, settings = SEEN._node, SEEN.with_options(**OFF, executor="threads")._settings
    asked = (None,) * 7
    found = what_if.what_if(node, settings, (*asked, depth), told)
    wanted = simulated(chunks, depth).seconds / len(chunks)
    assert found.seconds / ROWS == pytest.approx(wanted, rel=0.15)
    without = what_if.what_if(node, settings, (*asked, 0), told)
    assert without.seconds / ROWS == pytest.approx(make_s + loop_s, rel=0.05)
    auto = what_if.what_if(node, settings, (*asked, "auto"), told)
    assert auto.seconds <= found.seconds <= without.seconds


def test_more_batches_ahead_where_their_seconds_vary() -> None:
    told = run_with(8.0, 0.010, 0.010)
    codes = [each.code for each in found(SEEN, told, executor="threads", prefetch=1)]
    assert ".with_options(prefetch='auto')" in codes
    told = run_with(0.01, 0.010, 0.010)
    codes = [each.code for each in found(SEEN, told, executor="threads", prefetch=1)]
    assert ".with_options(prefetch='auto')" not in codes


@pytest.mark.parametrize("wrong", [-1, 1.5, "many", True])
def test_what_is_no_number_of_batches_is_refused(wrong: Any) -> None:
    with pytest.raises(dml.errors.PlanError, match="prefetch"):
        SEEN.what_if(prefetch=wrong)


def test_nothing_to_recommend_says_what_it_rests_on() -> None:
    text = str(found(dml.range(ROWS).batch(16), []))
    assert text.startswith("no setting is expected to save 5%\nrests on  a table of guesses")
    assert "run it once" in text
    assert dml.range(3).batch(2).with_options(**OFF).recommend() == ()


@pytest.mark.parametrize("executor", ["sync", "threads", "processes", "auto"])
def test_every_recommendation_can_be_set(executor: str) -> None:
    for told in (WAITS, COMPUTES):
        for each in found(PIPELINE, told, executor=executor):
            ds = eval(f"PIPELINE{each.code}")
            assert isinstance(ds, Dataset)
            assert each.times <= 1.0


def test_expressions_need_no_workers_beyond_cores() -> None:
    ds = dml.range(ROWS).with_columns(y=dml.col("id") * 2).batch(16)
    told = events(ds, 0.0, 0.0)
    told[2] = OperatorTotals(ordinal=1, rows_in=ROWS, rows_out=ROWS, seconds=16.0, cpu_s=0.1)
    assert not [each for each in found(ds, told, executor="threads") if "workers" in each.code]


def test_a_cluster_of_unknown_size_gets_none() -> None:
    options = {"scheduler": "tcp://127.0.0.1:9", "num_workers": "auto", "executor": "distributed"}
    assert found(PIPELINE, WAITS, **options) == ()
