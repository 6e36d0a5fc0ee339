"""Test the probability of an empty buffer: its formula, and simulated batches ahead of a loop."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.exec.delivery.prefetch_depth import Variation
from dml.verify.simulate.run_model import empty_probability
from tests.exec.delivery.shelves import (
    Seconds,
    bursty,
    drawn,
    even,
    exponential,
    lognormal,
    now_and_then,
    simulated,
)

VECTORS = [
    (1, 0.5, 0.6667),
    (2, 0.5, 0.5714),
    (2, 2.0, 0.1429),
    (1, 2.0, 0.3333),
    (4, 1.0, 0.2),
    (8, 0.9, 0.1632),
    (8, 1.1, 0.0736),
    (0, 0.3, 1.0),
    (0, 3.0, 1.0),
]


@pytest.mark.parametrize(("size", "ratio", "probability"), VECTORS)
def test_the_formula_of_exponential_times(size: int, ratio: float, probability: float) -> None:
    assert round(empty_probability(size, ratio), 4) == probability


@given(
    size=st.integers(0, 64),
    apart=st.one_of(st.floats(-0.999, 5.0), st.floats(-1e-6, 1e-6)).filter(
        lambda a: abs(a) >= 1e-12
    ),
)
def test_no_digits_are_lost_where_rates_are_nearly_equal(size: int, apart: float) -> None:
    ratio = 1.0 + apart
    exact = 1 / sum(Fraction(ratio) ** power for power in range(size + 1))
    assert empty_probability(size, ratio) == pytest.approx(float(exact), rel=1e-9)
    assert empty_probability(size, 1.0) == pytest.approx(1 / (size + 1))


@given(
    size=st.integers(0, 100),
    ratio=st.floats(0, 1e6),
    variation=st.floats(0, 10),
)
def test_a_probability_falls_with_the_buffer_and_rises_with_variation(
    size: int, ratio: float, variation: float
) -> None:
    found = empty_probability(size, ratio, variation)
    assert 0.0 <= found <= 1.0
    assert empty_probability(size + 1, ratio, variation) <= found + 1e-12
    if variation:
        assert empty_probability(size, ratio, variation / 2) <= found + 1e-9


MAKERS: dict[str, Seconds] = {
    "even": even(0.010),
    "noise of 50 %": even(0.010, 0.5),
    "exponential": exponential(0.010),
    "lognormal": lognormal(0.010, 0.5),
    "long tail": lognormal(0.010, 1.0),
    "one slow in ten": bursty(0.010 * 10 / 19, 10, 10),
    "one slow in ten at random": now_and_then(0.010 * 10 / 19, 10, 0.1),
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", MAKERS)
def test_it_agrees_with_simulated_batches_ahead_of_a_loop(name: str, depth: int) -> None:
    """A shelf has one chunk more than its depth: it is made, and has no room yet."""
    for loop_s in (0.005, 0.008, 0.010, 0.0125, 0.020):
        chunks = drawn(MAKERS[name], even(loop_s), 5_000, seed=1)
        makes = Variation()
        for chunk in chunks:
            makes.add(chunk.make_s)
        make_s = makes.total / makes.count
        waited = make_s * empty_probability(depth + 1, loop_s / make_s, makes.squared / 2)
        simulated_s = simulated(chunks, depth).seconds / len(chunks)
        assert loop_s + waited == pytest.approx(simulated_s, rel=0.15)


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=50))
def test_variation_is_that_of_numpy(seconds: list[float]) -> None:
    found = Variation()
    for each in seconds:
        found.add(each)
    wanted = np.var(seconds) / np.mean(seconds) ** 2
    assert math.isclose(found.squared, float(wanted), rel_tol=1e-6, abs_tol=1e-9)
