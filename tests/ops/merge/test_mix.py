"""Test ``mix``: exact shares in every prefix, and both rules for inputs that end."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import PlanError
from dml.ops.merge.mix import whole_weights
from tests.expr.checks import QUIET, holds, numbers


def tagged(n: int, tag: int) -> dml.Dataset:
    return dml.range(tag * 1000, tag * 1000 + n, atom_rows=3).with_options(**QUIET)


def ids(ds: dml.Dataset) -> list[int]:
    return [row["id"] for row in ds.with_options(**QUIET)]


@pytest.mark.law
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5))
def test_every_prefix_has_its_shares_to_within_one(weights: list[float]) -> None:
    inputs = [tagged(200, tag) for tag in range(len(weights))]
    found = [
        value // 1000 for value in ids(inputs[0].mix(*inputs[1:], weights=weights, stop="first"))
    ]
    whole = whole_weights(weights, len(weights))
    counts = [0] * len(weights)
    for t, tag in enumerate(found, 1):
        counts[tag] += 1
        for weight, count in zip(whole, counts, strict=True):
            assert abs(Fraction(weight * t, sum(whole)) - count) < 1
    assert max(counts) == 200


def test_the_rest_goes_on_by_its_shares() -> None:
    ds = tagged(2, 0).mix(tagged(9, 1), tagged(3, 2), weights=[1, 2, 1])
    found = ids(ds)
    assert sorted(found) == [0, 1, *range(1000, 1009), 2000, 2001, 2002]
    assert [v for v in found if v // 1000 == 1] == list(range(1000, 1009))


def test_the_first_end_ends_it() -> None:
    assert ids(tagged(2, 0).mix(tagged(9, 1), stop="first")) == [0, 1000, 1, 1001]
    assert len(ids(tagged(5, 0).repeat().mix(tagged(4, 1), stop="first"))) == 9


@pytest.mark.sample(3)
@pytest.mark.law
@pytest.mark.parametrize("stop", ["all", "first"])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_every_way_of_running_and_resuming(n: int, stop: str) -> None:
    ds, other = numbers(n), numbers(9).shuffle(3, seed=1)
    holds(ds.mix(other, ds.skip(1), weights=[1, 3, 2], stop=stop))
    holds(ds.mix(other, stop=stop).shuffle(4, seed=2).batch(3))
    holds(ds.batch(2).mix(other.batch(3), weights=[0.3, 0.7], stop=stop).repeat(2))
    made: Any = ds.mix(other, stop=stop).map(lambda row: {"y": f"{row['x']}"}, fingerprint="y")
    holds(made)


@pytest.mark.parametrize(
    "wrong", [[1], [1, 0], [1, -2], [1, float("nan")], ["a", 1], 3, [1, 1e-9], [1, float("inf")]]
)
def test_weights_that_are_no_shares(wrong: Any) -> None:
    with pytest.raises(PlanError, match="mix"):
        numbers(3).mix(numbers(3), weights=wrong)


def test_stops_that_mean_nothing() -> None:
    with pytest.raises(PlanError, match="stop='last'"):
        numbers(3).mix(numbers(3), stop="last")


def test_equal_shares_have_one_name() -> None:
    one, two, other = (numbers(3).mix(numbers(4), weights=w) for w in ([1, 2], [2, 4], [2, 1]))
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    with pytest.raises(PlanError, match="weights='12'"):
        numbers(3).mix(numbers(4), weights="12")  # type: ignore[arg-type]
