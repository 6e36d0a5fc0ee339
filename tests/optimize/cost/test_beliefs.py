"""Test beliefs about costs: how they are combined, and when a decision based on them is safe."""

from __future__ import annotations

import math
from functools import reduce

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dml.optimize.cost.beliefs import (
    HISTORY,
    MARGIN,
    PRIOR,
    SIGMA_PRIOR,
    SIGMA_SAMPLE,
    Z80,
    Belief,
    combined,
    no_regret,
    total,
)
from dml.profile import NOISE, Learned

costs = st.floats(1e-10, 1e2)
beliefs = st.builds(Belief, st.floats(-20, 5), st.floats(0.01, 3), st.sampled_from(["p", "s", "h"]))


@pytest.mark.law
@given(
    st.lists(beliefs, min_size=1, max_size=5).flatmap(
        lambda b: st.tuples(st.just(b), st.permutations(b))
    )
)
def test_the_order_of_beliefs_cannot_be_seen(both: tuple[list[Belief], list[Belief]]) -> None:
    one, two = combined(both[0]), combined(both[1])
    assert (one.mean, one.sigma, one.source) == (two.mean, two.sigma, two.source)


@pytest.mark.law
@given(st.lists(beliefs, min_size=1, max_size=4), beliefs)
def test_precisions_add_up(some: list[Belief], more: Belief) -> None:
    before, after = combined(some), combined([*some, more])
    assert after.sigma < before.sigma
    assert after.sigma**-2 == pytest.approx(before.sigma**-2 + more.sigma**-2)


@given(st.lists(beliefs, min_size=1, max_size=4))
def test_what_is_combined_lies_between(some: list[Belief]) -> None:
    mean = combined(some).mean
    low, high = min(b.mean for b in some), max(b.mean for b in some)
    assert low - 1e-9 <= mean <= high + 1e-9


@given(beliefs)
def test_one_belief_is_itself(one: Belief) -> None:
    found = combined([one])
    assert found.mean == pytest.approx(one.mean)
    assert found.sigma == pytest.approx(one.sigma)


def test_the_spreads_are_those_of_the_contract() -> None:
    seen = Learned.once(2.0, 0.0).merge(Learned.once(2.0 * math.e, 0.0))
    assert Belief.prior(1.0).sigma == SIGMA_PRIOR == math.log(3)
    assert Belief.sampled(1.0).sigma == SIGMA_SAMPLE == math.log(1.5)
    assert Belief.learned(seen).sigma == pytest.approx(math.sqrt(0.25 / 2 * 2 + NOISE / 2))


def test_a_sure_or_an_empty_belief_does_not_divide_by_nothing() -> None:
    sure = Belief(1.0, 0.0, HISTORY)
    assert combined([sure, Belief.prior(9.0)]) == sure
    nothing = Belief(0.0, math.inf, PRIOR)
    assert combined([nothing, nothing]) == nothing
    assert combined([nothing, Belief.prior(9.0)]).mean == pytest.approx(math.log(9))


@given(costs, st.integers(1, 30), st.floats(1.0, 1e3))
def test_one_slow_run_moves_the_mean_by_a_factor(cost: float, runs: int, slow: float) -> None:
    usual = reduce(Learned.merge, [Learned.once(cost, 0.0)] * runs)
    after = usual.merge(Learned.once(cost * slow, 0.0))
    assert after.typical == pytest.approx(cost * slow ** (1 / (runs + 1)), rel=1e-6)
    assert after.sigma >= usual.sigma or slow < 1.5


@given(costs, costs)
def test_history_overrules_a_table(guess: float, cost: float) -> None:
    learned = Belief.learned(Learned.once(cost, 0.0))
    found = combined([Belief.prior(guess), learned])
    assert found.source == HISTORY
    assert abs(found.mean - learned.mean) <= abs(found.mean - math.log(guess)) / 10 + 1e-9
    assert Belief.learned(Learned.once(cost, 0.0), apart=20).sigma > SIGMA_PRIOR


@given(st.lists(beliefs, min_size=1, max_size=5))
def test_a_sum_is_less_uncertain_than_its_worst_part(parts: list[Belief]) -> None:
    whole = total(parts)
    assert whole.typical == pytest.approx(math.fsum(part.typical for part in parts))
    assert whole.sigma <= max(part.sigma for part in parts) + 1e-9


def test_a_sum_of_nothing_is_nothing() -> None:
    assert total([]).typical < 1e-9


@given(beliefs, beliefs)
def test_no_regret_wins_in_the_middle_and_does_not_lose_beyond(one: Belief, two: Belief) -> None:
    assert not no_regret(one, one)
    assert not (no_regret(one, two) and no_regret(two, one))
    if no_regret(one, two):
        assert two.typical < one.typical * (1 - MARGIN)
        assert two.mean + Z80 * two.sigma <= one.mean + Z80 * one.sigma + 1e-9


@pytest.mark.law
@given(beliefs, st.floats(1.06, 10))
def test_what_is_as_sure_and_cheaper_is_taken(usual: Belief, factor: float) -> None:
    assume(factor > 1.07)
    assert no_regret(usual, usual.times(1 / factor))
    assert not no_regret(usual, usual.times(1 / 1.04))


def test_a_guess_does_not_beat_what_is_known() -> None:
    known = Belief.learned(Learned.once(1.0, 0.0))
    assert not no_regret(known, Belief.prior(0.5))
    assert no_regret(Belief.prior(1.0), Belief.learned(Learned.once(0.5, 0.0)))


@pytest.mark.parametrize(
    ("sigma", "text"),
    [(math.log(1.08), "+-8%"), (math.log(1.5), "+-50%"), (math.log(3), "x/3"), (1e9, "x/inf")],
)
def test_spreads_are_for_people(sigma: float, text: str) -> None:
    shown = Belief(0.0, sigma, HISTORY).spread()
    assert shown == text or (text == "x/inf" and shown.startswith("x/2688"))
