"""Test how plans are arranged: the choices, the chosen one, and the explanation."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dml
from dml import col
from dml.exec.drivers.promotion import WORTH
from dml.optimize.cost.beliefs import MARGIN
from dml.optimize.cost.estimate import estimates
from dml.optimize.engine import RuleTrace, no_clock
from dml.optimize.explain.arrangement_text import decision_text, note
from dml.optimize.search.arrangement import ArrangementDecision, decide
from dml.optimize.search.arrangement_space import (
    MOVING_TASKS,
    MachineLimits,
    allowed,
    cut,
    stages_by_cost,
)
from dml.optimize.work_names import work_names
from dml.physical.plan import Plan
from dml.profile import CostKey, Learned, Profile
from dml.testing.plans import plan_of
from tests.optimize.tables import parquet
from tests.sampling import amount

SIZE = 1 << 20
BOTH = ("threads", "processes")


def pure(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "t": f"{row['x']} {row['id']}"}


SEEN: list[int] = []


def impure(row: dict[str, Any]) -> dict[str, Any]:
    SEEN.append(row["id"])
    return {"id": row["id"]}


def machine(**changes: Any) -> MachineLimits:
    known: dict[str, Any] = {"workers": 4, "drivers": BOTH, "size_of": lambda _: SIZE}
    return MachineLimits(**(known | changes))


def knowing(plan: Plan, *per_row_s: float, row_bytes: float = 1e5) -> Profile:
    """What runs have shown of a plan: seconds of a row, source first, and how wide rows are."""
    names = work_names(plan)
    spent = dict(zip((each["cost"] for each in names), per_row_s, strict=False))
    costs = {
        CostKey.of(name, "", 8, row_bytes): Learned.once(each, 0.0, weight=9.0)
        for name, each in spent.items()
    }
    sizes = {each["fleet"]: Learned.once(row_bytes, 0.0) for each in names}
    return Profile(costs, sizes=sizes)


def decided(
    plan: Plan, profile: Profile | None = None, at: MachineLimits | None = None, *off: str
) -> ArrangementDecision:
    profile, at = profile or Profile(), at or machine()
    found = estimates(plan, work_names(plan), profile)
    made = decide(plan, found, at, allowed(plan, at, frozenset(off)), no_clock)
    assert made is not None
    return made


def test_python_that_is_known_to_be_slow_moves_to_processes_in_stages(tmp_path: Path) -> None:
    plan = plan_of(parquet(tmp_path, group=40).map(pure))
    found = decided(plan, knowing(plan, 1e-3, 1.0), machine(size_of=lambda _: 4 * SIZE))
    assert found.chosen.way.driver.name == "processes"
    assert found.chosen.way.cuts == (1,), "one unit is read by one worker, its rows go to all"
    assert found.chosen.way.size < 4 * SIZE, "so that there is a part for everybody"
    assert found.chosen.seconds < found.usual.seconds / 2
    assert found.next is not None
    assert found.next.seconds >= found.chosen.seconds


def test_what_shares_no_lock_stays_in_threads(tmp_path: Path) -> None:
    plan = plan_of(parquet(tmp_path, group=40).with_columns(y=col("name").str.len_chars()))
    found = decided(plan, knowing(plan, 1e-3, 1.0))
    assert (found.chosen.way.driver.name, found.chosen.way.cuts) == ("threads", (1,))


def test_enough_units_or_light_work_are_left_as_they_are(tmp_path: Path) -> None:
    many = plan_of(parquet(tmp_path, rows=200, group=8).map(pure))
    assert not stages_by_cost.ways(many, machine())
    light = plan_of(parquet(tmp_path, group=40).map(pure))
    found = decided(light, knowing(light, 1e-6, 1e-7, row_bytes=40))
    assert found.chosen == found.usual


def test_where_no_stage_may_begin(tmp_path: Path) -> None:
    one = parquet(tmp_path, group=40)
    assert stages_by_cost.ways(plan_of(one.map(pure).map(pure)), machine()) == {1, 2}
    assert not stages_by_cost.ways(plan_of(one.map(impure, fingerprint="i")), machine())
    assert not stages_by_cost.ways(plan_of(one.map(pure)), machine(workers=1))
    assert not stages_by_cost.ways(
        plan_of(one.shuffle(window="atoms", size=2).map(pure)), machine()
    )
    rows = dml.from_generator(lambda: iter([{"id": 1, "x": 2}]), fingerprint="g")
    assert not stages_by_cost.ways(plan_of(rows.map(pure)), machine())


def test_stages_that_may_move_to_processes_on_the_way_are_not_cut(tmp_path: Path) -> None:
    assert MOVING_TASKS <= WORTH
    ds = parquet(tmp_path, rows=90, group=9)
    assert not stages_by_cost.ways(plan_of(ds.map(pure)), machine())
    assert stages_by_cost.ways(plan_of(ds.with_columns(y=col("x") * 2)), machine())
    few = parquet(tmp_path, rows=63, group=9)
    assert stages_by_cost.ways(plan_of(few.map(pure)), machine())


def test_stages_begin_where_they_must(tmp_path: Path) -> None:
    ds = parquet(tmp_path, group=40).map(pure).map_batches(dict, batch_size=3, num_cpus=2.0)
    plan = plan_of(ds)
    found = decided(plan, knowing(plan, 1e-3, 1.0, 1.0), machine(drivers=("threads",)))
    assert found.usual.way.cuts == (2,)
    assert all(2 in each.way.cuts for each in found.ranked)
    made = cut(plan, (1, 2))
    assert [link.needs.num_cpus for link in made.links] == [1.0, 2.0]


def test_a_guess_does_not_leave_the_usual(tmp_path: Path) -> None:
    # processes save a fifth in the middle: more if rows are dear, nothing if they are cheap
    plan = plan_of(parquet(tmp_path, rows=40_000, group=400).map(pure))
    at = machine(workers=2)
    guessed = decided(plan, None, at)
    assert guessed.chosen == guessed.usual
    sure = decided(plan, knowing(plan, 1e-5, 1e-3, row_bytes=60), at)
    assert sure.chosen.way.driver.name == "processes"


@pytest.mark.law
@settings(
    max_examples=amount(30, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 1 << 30))
def test_what_is_chosen_is_clear_and_keeps_what_is_fixed(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    folder = tmp_path / str(seed)
    folder.mkdir(exist_ok=True)
    ds = parquet(folder, rows=draw.choice([40, 400]), group=draw.choice([8, 40, 400]))
    for _ in range(draw.randint(1, 3)):
        ds = ds.map(pure).with_columns(x=col("t").str.len_chars())
    plan = plan_of(ds.batch(4))
    spent = (10 ** draw.uniform(-9, 0) for _ in plan.operators)
    known = knowing(plan, *spent, row_bytes=10 ** draw.uniform(1, 5))
    drivers = draw.choice([BOTH, ("threads",), ("processes",)])
    at = machine(
        workers=draw.randint(1, 8),
        drivers=drivers,
        sized=draw.random() < 0.5,
        size_of=lambda made: SIZE >> len(made.links),
    )
    found = decided(plan, draw.choice([known, Profile()]), at)
    assert found == decided(plan, known, at) or found.off.source == "p"
    for each in found.ranked:
        assert each.way.driver.name in drivers
        usual = at.size_of(cut(plan, each.way.cuts))
        assert each.way.size == usual if at.sized else each.way.size <= usual
    if found.chosen.way != found.usual.way:
        assert found.chosen.seconds < found.usual.seconds * (1 - MARGIN)


def test_switches_leave_nothing_to_choose(tmp_path: Path) -> None:
    plan = plan_of(parquet(tmp_path, group=40).map(pure))
    known = knowing(plan, 1e-3, 1.0)
    found = decided(plan, known, None, "executor_by_cost")
    assert {each.way.driver.name for each in found.ranked} == {"threads"}
    found = decided(plan, known, None, "stages_by_cost")
    assert {each.way.cuts for each in found.ranked} == {()}
    found = decided(plan, known, None, "partitions_by_cost")
    assert {each.way.size for each in found.ranked} == {SIZE}
    off = frozenset({"executor_by_cost", "stages_by_cost", "partitions_by_cost"})
    assert not allowed(plan, machine(), off).any


def cached(ds: dml.Dataset, *spent: float, **changes: Any) -> str:
    """Where a cache is proposed."""
    plan = plan_of(ds)
    at = machine(**({"kept_bytes": 1e9} | changes))
    found = decided(plan, knowing(plan, *spent), at).cache
    return "" if found is None else f"{found.above} on {found.passes}"


def test_a_cache_is_told_where_it_would_pay(tmp_path: Path) -> None:
    ds = parquet(tmp_path, group=8).map(pure)
    assert cached(ds.repeat(5).batch(4), 0.1, 1.0) == "MapRows(pure) on repeat(5)"
    assert cached(ds.repeat(), 0.1, 1.0) == "MapRows(pure) on 10 passes"
    assert cached(ds.batch(4).repeat(), 0.1, 1.0) == "Batch(4) on 10 passes"
    plan = plan_of(ds.repeat(5))
    found = decided(plan, knowing(plan, 0.1, 1.0), machine(kept_bytes=1e9))
    assert found.cache is not None
    assert found.cache.priced.seconds < found.chosen.seconds / 3
    assert found.cache.nbytes == pytest.approx(40 * 1e5)
    assert all(each.way.kept is None for each in found.ranked), "told, and not done"


def test_no_cache_is_told_where_it_could_be_seen_or_would_not_pay(tmp_path: Path) -> None:
    ds = parquet(tmp_path, group=8)
    slow = (0.1, 1.0)
    assert not cached(ds.map(pure), *slow)
    assert not cached(ds.map(pure).repeat(1), *slow)
    assert not cached(ds.map(pure).cache().repeat(5), *slow)
    assert not cached(ds.map(pure).repeat(5).take(7), *slow)
    assert not cached(ds.map(pure).repeat(5), *slow, kept_bytes=0.0)
    assert not cached(ds.map(pure).repeat(5), 1e-9, 1e-9)
    impurely = ds.map(impure, fingerprint="i").repeat(5)
    assert "impure" not in cached(impurely, *slow)
    drawn = ds.shuffle(4).map(pure).repeat(5)
    assert "pure" not in cached(drawn, 0.1, 0.1, 1.0)


def test_it_is_told(tmp_path: Path) -> None:
    plan = plan_of(parquet(tmp_path, group=40).map(pure).repeat(3))
    at = machine(kept_bytes=1e9, size_of=lambda _: 4 * SIZE)
    found = decided(plan, knowing(plan, 1e-3, 1.0), at)
    lines = decision_text(found, "").split("\n")
    assert [line.split()[0] for line in lines] == ["chosen", "next", "why", "cache"]
    assert "processes, 2 stages, partitions of " in lines[0]
    assert " h +-" in lines[0]
    assert "less than as usual (threads, one stage, partitions of 4.2 MB: " in lines[2]
    assert ".cache() above MapRows(pure) would save" in lines[3]
    trace = RuleTrace()
    note(trace, found, 0.0)
    assert set(trace.names()) == {"stages_by_cost", "partitions_by_cost", "executor_by_cost"}


def numbered(row: dict[str, Any]) -> dict[str, Any]:
    return {"t": f"{row['id']} {row['id']}"}


def test_a_doubt_is_told() -> None:
    # half the time, and what it takes to start: that is less only if Python is as slow as believed
    found = decided(plan_of(dml.range(1_000_000).map(numbered)), None, machine(workers=2))
    assert found.chosen == found.usual
    assert found.doubtful is not None
    assert found.doubtful.way.driver.name == "processes"
    assert "is not surely less" in decision_text(found, "")
    trace = RuleTrace()
    note(trace, found, 0.0)
    assert not trace.applied
    assert trace.refused[0].what.startswith("not processes")
    sure = decided(plan_of(dml.range(9_000_000).map(numbered)), None, machine(workers=2))
    assert sure.chosen.way.driver.name == "processes"


def test_what_has_no_last_row_is_run_as_usual() -> None:
    plan = plan_of(dml.range(9).map(numbered))
    found = estimates(plan, work_names(plan), Profile())
    endless = [dataclasses.replace(each, rows_in=math.inf, rows_out=math.inf) for each in found]
    assert decide(plan, endless, machine(), allowed(plan, machine()), no_clock) is None
    assert "no last row" in decision_text(None, "")
