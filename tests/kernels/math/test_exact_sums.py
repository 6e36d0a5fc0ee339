"""Test exact sums against fractions: every bit, in any order, at every scale."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dml.kernels.math.exact_sums import ExactSums, sums_by_run

DRAW = np.random.default_rng(3)
CASES: dict[str, np.ndarray] = {
    "usual": DRAW.normal(size=500),
    "every scale": DRAW.normal(size=300) * 10.0 ** DRAW.integers(-300, 150, 300),
    "cancelling": np.array([1e16, 1.0, -1e16, 2.0**-40]),
    "subnormal": np.array([5e-324, 1e-310, -5e-324, 0.0, -0.0]),
    "largest": np.array([1.7e308, -1.7e308, 1.7e308, 1e300]),
    "equal": np.full(10, 0.1),
    "f4": DRAW.normal(size=99).astype("f4"),
    "f2": DRAW.normal(size=99).astype("f2"),
    "i8": DRAW.integers(-(2**63), 2**63 - 1, 500),
    "i1": np.array([-128, 127, 3], "i1"),
    "u8": DRAW.integers(0, 2**64 - 1, 500, dtype=np.uint64),
    "bool": np.array([True, False, True]),
}


def added(values: np.ndarray, pieces: int) -> ExactSums:
    sums = ExactSums(values.dtype)
    for piece in np.array_split(values, pieces):
        sums.add(piece)
    return sums


def wanted(values: np.ndarray) -> tuple[Fraction, Fraction, Fraction]:
    """Sum, mean and variance."""
    exact = [Fraction(value) for value in values.tolist()]
    mean = sum(exact, Fraction()) / len(exact)
    spread = sum(((each - mean) ** 2 for each in exact), Fraction())
    return sum(exact, Fraction()), mean, spread / (len(exact) - 1)


@pytest.mark.parametrize("name", CASES)
def test_figures_are_the_exact_ones_rounded_once(name: str) -> None:
    values = CASES[name]
    total, mean, variance = wanted(values)
    for pieces in (1, 2, len(values)):
        sums = added(values, pieces)
        assert sums.total == (float(total) if sums.floats else total)
        assert sums.mean == float(mean)
        if variance and math.isfinite(found := sums.deviation(1) or 0.0):
            # no other float is nearer to the root
            ends = (Fraction(math.nextafter(found, way)) for way in (0.0, math.inf))
            low, high = ((end + Fraction(found)) / 2 for end in ends)
            assert low**2 <= variance <= high**2
        else:
            assert sums.deviation(1) == (math.inf if variance else 0.0)


def test_no_order_changes_a_bit() -> None:
    values = CASES["every scale"]
    first = added(values, 1)
    for seed in range(5):
        other = added(np.random.default_rng(seed).permutation(values), seed + 2)
        assert (other.sum, other.squares) == (first.sum, first.squares)


def test_more_values_than_are_added_at_once() -> None:
    values = np.full(20_001, -(2**63))
    sums = added(values, 1)
    assert (sums.sum, sums.squares) == (-20_001 * 2**63, 20_001 * 2**126)
    floats = added(np.full(20_001, math.nextafter(2.0, 0)), 1)
    assert floats.total == float(20_001 * Fraction(math.nextafter(2.0, 0)))
    assert floats.deviation(1) == 0.0


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1.0, math.inf], math.inf),
        ([-math.inf, 5.0], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_what_is_not_finite_stays_so(values: list[float], total: float, pieces: int) -> None:
    sums = added(np.array(values), pieces)
    assert repr(sums.total) == repr(sums.mean) == repr(total)
    assert repr(sums.deviation(1)) == "nan"


@pytest.mark.parametrize(("dtype", "zero"), [("f8", "0.0"), ("i8", "0")])
def test_of_few_values_there_is_less_to_say(dtype: Any, zero: str) -> None:
    sums = ExactSums(np.dtype(dtype))
    assert (repr(sums.total), sums.mean, sums.deviation(1)) == (zero, None, None)
    sums.add(np.array([3], dtype))
    assert (sums.total, sums.mean, sums.deviation(1)) == (3, 3.0, None)


def test_a_sum_that_no_float_holds_is_infinite() -> None:
    sums = added(np.full(3, -1.7e308), 1)
    assert (sums.total, sums.mean) == (-math.inf, -1.7e308)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("each", [1, 3, 400])
def test_sums_of_runs_are_those_of_each_alone(name: str, each: int) -> None:
    values = CASES[name]
    valid = np.arange(len(values)) % 3 != 1
    starts = np.arange(0, len(values), each)
    for present in (None, valid):
        for found, start in zip(
            sums_by_run(values, present, starts, squared=True), starts.tolist(), strict=True
        ):
            alone = ExactSums(values.dtype)
            run = slice(start, start + each)
            alone.add(values[run] if present is None else values[run][present[run]])
            assert (found.n, found.sum, found.squares) == (alone.n, alone.sum, alone.squares)


def test_runs_of_what_is_not_finite() -> None:
    values = np.array([1.0, math.inf, -math.inf, 2.0, math.nan, math.inf])
    found = sums_by_run(values, None, np.array([0, 1, 2, 3, 5]), squared=True)
    assert repr([each.total for each in found]) == "[1.0, inf, -inf, nan, inf]"
    assert found[0].join(found[1]).total == math.inf
    assert math.isnan(found[1].join(found[2]).variance(0) or 0.0)
