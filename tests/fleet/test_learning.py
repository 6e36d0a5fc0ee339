"""Test costs learned from events: the stored profile stays small, whole and harmless."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.api.cost_profile import expected
from dml.api.run_telemetry import names_of
from dml.api.session import optimized
from dml.events import Event, OperatorTotals, RunFinished, RunStarted
from dml.fleet.collector import Collector
from dml.fleet.learning import MOST_FIGURES, MOST_RUNS, QUIET_S, Learner, learned, of_text, to_text
from dml.fleet.reader import read
from dml.optimize.cost.beliefs import Z80, Belief, combined, total
from dml.profile import CostKey, Learned, Profile, counted
from dml.settings import Settings

NAMES = {"cost": "work", "fleet": "flow"}


def run(
    name: str = "r", status: str = "finished", seconds: float = 2.0, at: float = 5.0, hits: int = 0
) -> list[Event]:
    figures = {"rows_in": 400, "bytes_in": 3200, "blocks": 4, "at": at, "run": name}
    return [
        RunStarted(run=name, fingerprints={"fleet": "pipe"}),
        OperatorTotals(
            run=name, ordinal=0, rows_out=400, bytes_out=3200, seconds=1.0, blocks=4, at=at,
            fingerprints={"cost": "read", "fleet": "data"},
        ),
        *(
            OperatorTotals(
                ordinal=1, worker=worker, rows_out=100, bytes_out=400, seconds=seconds / 2,
                fingerprints=NAMES, cache_hits=hits, **figures,  # type: ignore[arg-type]
            )
            for worker in "ab"
        ),
        RunFinished(run=name, status=status),
    ]  # fmt: skip


def test_a_run_is_one_observation_of_each_operator() -> None:
    found = learned(run(), "here")
    key = CostKey.of("work", "here", 100, 8)
    assert found.costs[key].weight == 1
    assert found.costs[key].typical == pytest.approx(2.0 / 800)
    assert found.costs[CostKey.of("read", "here", 100, 8)].typical == pytest.approx(1 / 400)
    assert found.ratios["flow"].typical == pytest.approx(0.25)
    assert found.sizes["flow"].typical == pytest.approx(4.0)
    assert found.counts[counted("pipe", 1)].typical == pytest.approx(200)
    assert (found.blocks["data"].typical, found.blocks["flow"].typical) == pytest.approx((100, 100))
    assert "data" not in found.ratios


def test_what_is_learned_is_work_and_not_waiting_for_a_turn() -> None:
    events = [
        dataclasses.replace(each, cpu_s=each.seconds / 2)
        if isinstance(each, OperatorTotals)
        else each
        for each in run()
    ]
    found = learned(events, "here").costs[CostKey.of("work", "here", 100, 8)]
    assert found.typical == pytest.approx(1.0 / 800)


def test_only_whole_runs_count_rows_and_failed_ones_teach_nothing() -> None:
    assert learned(run(status="failed"), "here") == Profile()
    assert learned(run()[:-1], "here") == Profile()
    stopped = learned(run(status="stopped"), "here")
    assert stopped.costs
    assert not stopped.counts
    assert not learned(run(hits=1), "here").counts


def test_operators_without_names_or_figures_teach_nothing() -> None:
    events = [OperatorTotals(run="r", seconds=1.0, rows_in=5), OperatorTotals(run="r", ordinal=1)]
    assert not learned([*events, RunFinished(run="r")], "here").costs


profiles = st.builds(
    lambda figures: Profile(
        {CostKey("f", "h", n, n): Learned(*each) for n, each in enumerate(figures)},
        {f"n{n}": Learned(*each) for n, each in enumerate(figures)},
    ),
    st.lists(
        st.tuples(st.floats(0.1, 9), st.floats(-30, 30), st.floats(0, 9), st.floats(0, 1e9)),
        max_size=5,
    ),
)


@pytest.mark.law
@given(profiles)
def test_a_profile_is_read_as_it_was_written(profile: Profile) -> None:
    assert of_text(to_text(profile)) == profile


@pytest.mark.law
@given(st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_damage_is_nothing_learned(text: str) -> None:
    assert of_text(text) == Profile()
    assert of_text(f'{{"costs": {text}, "ratios": {text}}}').costs == {}


def test_a_bad_entry_costs_itself_alone() -> None:
    text = '{"ratios": [["a", 1, 2, 0, 3], ["b", 1], ["c", 0, 1, 1, 1], ["d", 1, NaN, 1, 1]]}'
    assert set(of_text(text).ratios) == {"a"}


NONSENSE = [0, -1, 1e308, -1e308, 10**400, -(10**400), 1e-320, math.nan, math.inf, -math.inf, None]


@pytest.mark.law
@given(st.data())
def test_nonsense_is_never_believed(data: st.DataObject) -> None:
    number = st.sampled_from(NONSENSE) | st.floats(-50, 50) | st.integers(-80, 80)
    rows = st.lists(st.tuples(*[number] * 4), max_size=4)
    shapes = st.tuples(number, number)
    parts: dict[str, list[object]] = {
        "costs": [["f", "h", *data.draw(shapes), *each] for each in data.draw(rows)],
        "ratios": [[f"n{n}", *each] for n, each in enumerate(data.draw(rows))],
    }
    found = of_text(json.dumps(parts))
    for each in (*found.costs.values(), *found.ratios.values()):
        assert 0 < each.typical < math.inf
        assert 0 < each.sigma < math.inf
        assert combined([Belief.learned(each), Belief.prior(1.0)]).at(Z80) > 0
        assert total([Belief.learned(each)]).typical > 0
    assert all(each[2] >= 0 and each[3] >= 0 for each in found.costs)
    assert of_text(to_text(found)) == found


def test_what_was_learned_by_a_clock_that_was_wrong_does_not_last(tmp_path: Path) -> None:
    wrong = Learner(tmp_path, "here", clock=lambda: 4e9)
    wrong.take(run(at=4e9, seconds=9.0), True)
    right = Learner(tmp_path, "here", clock=lambda: 2e9)
    right.take(run(at=2e9, seconds=2.0), True)
    found = Learner(tmp_path, "here", clock=lambda: 2e9).profile()
    assert found.costs[CostKey.of("work", "here", 100, 8)].typical == pytest.approx(2.0 / 800)


def test_learning_goes_with_publishing(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "here", clock=lambda: 5.0)
    collector = Collector(tmp_path, learn=learner.take)
    for event in run():
        collector.record(event)
    assert collector.close(10)
    assert learner.profile() == Learner(tmp_path, "here").profile() == learned(run(), "here")
    assert learned(list(read(tmp_path)), "here") == learned(run(), "here")
    assert Learner(tmp_path, "there").profile() == Profile()


def test_it_is_written_down_now_and_then(tmp_path: Path) -> None:
    now = [100.0]
    learner = Learner(tmp_path, "here", clock=lambda: now[0])
    learner.take(run("a"), False)
    first = Learner(tmp_path, "here").profile()
    assert first.ratios
    learner.take(run("b"), False)
    assert Learner(tmp_path, "here").profile() == first
    assert learner.profile().ratios["flow"].weight == 2
    now[0] += QUIET_S
    learner.take([], False)
    assert Learner(tmp_path, "here").profile().ratios["flow"].weight == 2


def test_what_others_write_is_seen_and_kept(tmp_path: Path) -> None:
    one, two = (Learner(tmp_path, "here", clock=lambda: 5.0) for _ in range(2))
    one.take(run("a", seconds=1.0), True)
    two.take(run("b", seconds=4.0), True)
    both = one.profile().costs[CostKey.of("work", "here", 100, 8)]
    assert both.weight == 2
    assert both.typical == pytest.approx(2.0 / 800)


def test_it_stays_small_and_forgets_what_is_oldest(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "here", clock=lambda: 1e6)
    figures = {f"n{n}": Learned.once(1.0, float(n)) for n in range(MOST_FIGURES + 50)}
    learner._fresh = Profile(ratios=figures)
    learner.take(run(at=2e6), True)
    kept = learner.profile().ratios
    assert len(kept) == MOST_FIGURES
    assert "flow" in kept
    assert "n0" not in kept
    assert learner.path.stat().st_size < 1_000_000


def test_runs_that_never_end_are_let_go(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "here")
    for n in range(MOST_RUNS + 9):
        learner.take([RunStarted(run=str(n))], False)
    assert len(learner._unfinished) <= MOST_RUNS


def test_a_store_that_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("a file where the folder should be")
    told: list[str] = []
    learner = Learner(tmp_path, "here")
    collector = Collector(tmp_path, warn=told.append, learn=learner.take)
    for event in run():
        collector.record(event)
    collector.close(10)
    assert len(told) == 1
    assert learner.profile().ratios


def test_planning_reads_one_file_and_reads_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many events there are: they are never looked at."""
    Learner(tmp_path, "here").take(run(), True)
    day = tmp_path / "v1" / "day=2026-03-04"
    day.mkdir()
    for n in range(50):
        (day / f"w-{n}.jsonl").write_text("not even JSON\n" * 2000)
    opened: list[Path] = []
    whole = Path.read_text

    def counted_read(path: Path, *args: str | None, **options: str | None) -> str:
        opened.append(path)
        return whole(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", counted_read)
    learner = Learner(tmp_path, "here")
    for _ in range(3):
        assert learner.profile().ratios
    assert opened == [learner.path]


def test_figures_of_one_class_of_machine_change_no_cost_of_others() -> None:
    ds = dml.range(9_000).with_columns(y=col("id") * 2).filter(col("y") > 5).batch(64)
    plan, settings = optimized(ds._node, Settings()).plan, Settings(telemetry_dir="off")
    costs = [
        CostKey.of(names["cost"], "there", 2.0**rows, 2.0**size)
        for names in names_of(plan)
        for rows in range(16)
        for size in range(8)
    ]
    other = Profile(costs={key: Learned.once(9.0, 1.0) for key in costs})

    def beliefs(profile: Profile, host_class: str) -> list[Belief]:
        there = dataclasses.replace(profile, host_class=host_class)
        return [each.per_row for each in expected(plan, there, settings)]

    before = beliefs(Profile(), "here")
    assert beliefs(other, "here") == before
    assert beliefs(other, "there") != before
