"""Test learned costs: decay, merging, and lookup of the nearest block shape."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.events import OperatorTotals
from dml.profile import HALF_LIFE_S, NOISE, TURNS, CostKey, Learned, Profile, work_s

observed = st.builds(
    Learned.once,
    st.floats(1e-9, 1e3),
    st.floats(0, 1e8),
    st.floats(0.5, 10),
)


def close(one: Learned, two: Learned) -> bool:
    pairs = zip(
        (one.weight, one.mean, one.spread, one.at),
        (two.weight, two.mean, two.spread, two.at),
        strict=True,
    )
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for a, b in pairs)


@given(observed, observed)
def test_merging_is_commutative(one: Learned, two: Learned) -> None:
    assert close(one.merge(two), two.merge(one))


@given(observed, observed, observed)
def test_merging_is_associative(one: Learned, two: Learned, three: Learned) -> None:
    assert close(one.merge(two).merge(three), one.merge(two.merge(three)))


def test_mean_and_sigma_are_those_of_the_logarithms() -> None:
    learned = Learned.once(1.0, 0.0).merge(Learned.once(math.e**2, 0.0))
    assert learned.mean == pytest.approx(1.0)
    assert learned.typical == pytest.approx(math.e)
    assert learned.sigma == pytest.approx(math.sqrt(1.0 + NOISE / 2))


def test_an_old_observation_counts_half_after_a_half_life() -> None:
    old, new = Learned.once(1.0, 0.0), Learned.once(math.e, HALF_LIFE_S)
    assert old.merge(new).mean == pytest.approx(2 / 3)
    assert old.as_of(HALF_LIFE_S).weight == pytest.approx(0.5)
    assert old.as_of(-1.0) is old


def test_knowledge_that_has_faded_away_is_no_error() -> None:
    gone = Learned.once(1.0, 0.0).as_of(1e12)
    assert gone.weight == 0
    assert gone.sigma == math.inf
    assert gone.merge(gone) == gone


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_is_positive(cost: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Learned.once(cost, 0.0)


def test_keys_are_powers_of_two() -> None:
    assert CostKey.of("f", "h", 4096, 100.0) == CostKey("f", "h", 12, 7)
    assert CostKey.of("f", "h", 0, 0.1) == CostKey("f", "h", 0, 0)


def test_lookup_takes_the_nearest_shape_of_the_same_machine() -> None:
    small, large, other = (
        CostKey("f", "h", 4, 3),
        CostKey("f", "h", 20, 3),
        CostKey("f", "x", 18, 3),
    )
    costs = {
        key: Learned.once(cost, 0.0) for key, cost in ((small, 1.0), (large, 2.0), (other, 3.0))
    }
    profile = Profile(costs)
    assert profile.lookup(small) is costs[small]
    assert profile.lookup(CostKey("f", "h", 18, 3)) is costs[large]
    assert profile.lookup(CostKey("g", "h", 18, 3)) is None
    assert Profile().lookup(small) is None


def test_profiles_merge_key_by_key() -> None:
    key, own = CostKey("f", "h", 1, 1), CostKey("g", "h", 1, 1)
    one = Profile({key: Learned.once(1.0, 0.0)})
    two = Profile({key: Learned.once(1.0, 0.0), own: Learned.once(2.0, 0.0)})
    both = one.merge(two)
    assert both.costs[key].weight == 2
    assert both.costs[own] == two.costs[own]
    assert one.costs.keys() == {key}


def test_waiting_for_a_turn_is_no_work_and_waiting_for_data_is() -> None:
    assert work_s(OperatorTotals(seconds=3.0, cpu_s=1.0)) == 1.0
    assert work_s(OperatorTotals(seconds=3.0)) == 3.0  # not measured
    assert work_s(OperatorTotals(seconds=3.0, cpu_s=4.0)) == 3.0  # the two clocks differ
    for waits in (OperatorTotals(medium="remote"), OperatorTotals(lifted="no: it has a loop")):
        assert work_s(dataclasses.replace(waits, seconds=3.0, cpu_s=1.0)) == 1.0
        assert work_s(dataclasses.replace(waits, seconds=60.0, cpu_s=1.0)) == 60.0 - TURNS
        assert work_s(dataclasses.replace(waits, seconds=60.0, cpu_s=0.0)) == 60.0
