"""Test the estimated gain of each rewrite, and when measurements reject the rewrite."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.expr.node import Node
from dml.optimize.cost.estimate import Estimate, estimates
from dml.optimize.cost.rule_gains import LEAST_RUNS, LEAST_S, RuleGain, gain, gains, regretted
from dml.optimize.explain.cost_table import rewrites_text
from dml.optimize.phases import Optimized, optimize
from dml.optimize.rule import NamedRule
from dml.optimize.rules.function_lifting import lift_map
from dml.optimize.work_names import work_names
from dml.profile import CostKey, Learned, Profile

ROWS = 1_000_000


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": row["id"] * 2}


def lifted() -> Node:
    return dml.range(ROWS).map(doubled)._node


def made(node: Node, *off: str) -> Optimized:
    return optimize(node, 0, without=frozenset(off))


def expected(stations: Optimized, profile: Profile) -> tuple[Estimate, ...]:
    return estimates(stations.plan, work_names(stations.plan), profile)


def seen(seconds: dict[str, list[float]]) -> Profile:
    """A profile in which the operator after the source, by rules off, took so long in each run."""
    found = Profile()
    for off, runs in seconds.items():
        (_, each) = expected(made(lifted(), *off.split()), Profile())
        key = CostKey.of(each.work, "", 65_536, 8)
        for took in runs:
            found = found.merge(Profile({key: Learned.once(took / ROWS, 0.0)}))
    return found


def of_lifting(profile: Profile) -> RuleGain:
    with_, without = made(lifted()), made(lifted(), "lift_map")
    return gain(lift_map, expected(with_, profile), expected(without, profile))


def test_what_a_rule_saves_is_what_it_spares_less_what_it_brings() -> None:
    found = of_lifting(seen({"": [0.1], "lift_map": [0.3]}))
    assert [each.title.partition("(")[0] for each in found.brings] == ["LiftedMap"]
    assert [each.title.partition("(")[0] for each in found.spares] == ["MapRows"]
    assert found.describe().startswith("saves 2")
    assert ", h " in found.describe()
    assert found.describe({1: 0.25}).split("measured: ")[1].startswith("saves ")
    assert found.describe({1: 0.5}).split("measured: ")[1].startswith("costs ")


def test_a_guess_says_so() -> None:
    assert ", p x/" in of_lifting(Profile()).describe()
    assert ", p " in of_lifting(seen({"": [0.1]})).describe()


def test_equal_plans_are_the_same_work_and_endless_ones_have_no_sum() -> None:
    used = expected(made(lifted()), Profile())
    assert gain(lift_map, used, used).describe() == "the same work"
    endless = dml.range(ROWS).repeat().map(doubled)._node
    both = (expected(made(endless, *off), Profile()) for off in ((), ("lift_map",)))
    assert gain(lift_map, *both).describe() == "endless"


def test_a_rule_that_measured_worse_is_regretted() -> None:
    found = of_lifting(seen({"": [0.42] * 3, "lift_map": [0.3] * 3}))
    assert found.lost_s == pytest.approx(0.12, rel=0.25)
    assert regretted([found]) is found
    told = found.off()
    assert told.what == "lift_map off"
    assert told.why.startswith("measured 1.3x slower, n=3: LiftedMap(")


@pytest.mark.parametrize(
    "seconds",
    [
        {"": [0.9], "lift_map": [0.3] * 3},  # one sample
        {"": [0.9] * 3, "lift_map": [0.3]},  # one of the other side
        {"": [0.9] * 3},  # nothing known of the other side
        {"": [0.31] * 3, "lift_map": [0.3] * 3},  # within the noise
        {"": [0.1, 2.0, 0.6], "lift_map": [0.3] * 3},  # too noisy to say
        {"": [0.3] * 3, "lift_map": [0.9] * 3},  # it is better
        {"": [LEAST_S * 0.9] * 3, "lift_map": [LEAST_S * 0.1] * 3},  # too little to matter
    ],
)
def test_nothing_is_regretted_without_proof(seconds: dict[str, list[float]]) -> None:
    assert of_lifting(seen(seconds)).lost_s == 0.0
    assert regretted([of_lifting(seen(seconds))]) is None


times = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


@pytest.mark.law
@given(times, times)
def test_regret_needs_runs_on_both_sides_and_a_better_one_there(
    now: list[float], instead: list[float]
) -> None:
    lost = of_lifting(seen({"": now, "lift_map": instead})).lost_s
    assert lost >= 0
    if lost:
        assert min(len(now), len(instead)) >= LEAST_RUNS
        assert min(instead) < max(now)


def test_guessed_rows_are_no_proof() -> None:
    def filtered(*off: str) -> tuple[Estimate, ...]:
        ds = dml.range(ROWS).filter(col("id") % 3 == 0).map(doubled)
        return expected(made(ds._node, *off), seen({"": [9.0] * 3, "lift_map": [0.3] * 3}))

    assert gain(lift_map, filtered(), filtered("lift_map")).runs == 0.0


def test_every_rule_that_fired_is_told_once_with_its_gain() -> None:
    node = dml.range(ROWS).filter(col("id") > 3).filter(col("id") < 9).batch(4)._node
    stations = made(node)

    def without(rule: NamedRule) -> tuple[Estimate, ...]:
        return expected(made(node, rule.name), Profile())

    used = expected(stations, Profile())
    found = gains(stations.trace, used, without, 100)
    assert [each.rule.name for each in found] == list(dict.fromkeys(stations.trace.names()))
    text = rewrites_text(stations.trace, found)
    assert all(f"    {each.describe()}" in text.split("\n") for each in found)
    assert gains(stations.trace, used, without, 1) == ()
    assert gains(stations.trace, used, lambda _: None, 100) == ()


def test_rows_that_are_guessed_lead_to_the_rows_of_the_plan() -> None:
    node = dml.range(ROWS).filter(col("id") > 3).shuffle(9).filter(col("id") < 9)._node
    plan = made(node).plan
    found = estimates(plan, work_names(plan), Profile(), gives=5000.0)
    assert found[-1].rows_out == pytest.approx(5000)
    assert found[0].rows_out == ROWS
    for below, each in pairwise(found):
        assert each.rows_in == pytest.approx(below.rows_out)
