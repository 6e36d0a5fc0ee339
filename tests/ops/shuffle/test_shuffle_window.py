"""Test ``shuffle(n)``: windows of the input, each in random order."""

from __future__ import annotations

import pytest

from dml import col
from dml.errors import PlanError
from tests.expr.checks import holds, numbers


@pytest.mark.law
@pytest.mark.parametrize("n", [1, 2, 4, 5, 10, 64])
def test_windows(n: int) -> None:
    ds = numbers().shuffle(n, seed=3)
    order = [row["x"] for row in ds]
    for start in range(0, 10, n):
        assert sorted(order[start : start + n]) == list(range(start, min(10, start + n)))
    assert holds(ds) == 10


@pytest.mark.law
def test_windows_hold_what_reaches_them() -> None:
    ds = numbers(30).filter(col("x") % 3 == 0).shuffle(4)
    assert holds(ds) == 10
    assert holds(numbers(9).shuffle(4).filter(col("x") > 3).batch(2)) == 3


@pytest.mark.law
def test_windows_of_batches() -> None:
    assert holds(numbers(10).batch(3).shuffle(2)) == 4


def test_over_nothing() -> None:
    assert holds(numbers(0).shuffle(4)) == 0


def test_epochs_differ_unless_told() -> None:
    fresh, same = numbers(16).shuffle(16), numbers(16).shuffle(16, reshuffle_each_iteration=False)
    assert [r["x"] for r in fresh.epoch(0)] != [r["x"] for r in fresh.epoch(1)]
    assert [r["x"] for r in same.epoch(0)] == [r["x"] for r in same.epoch(1)]


def test_refusals() -> None:
    with pytest.raises(PlanError, match="buffer_size"):
        numbers().shuffle(0)
    with pytest.raises(PlanError, match="seed must be an integer"):
        numbers().shuffle(4, seed=1.5)  # type: ignore[arg-type]
