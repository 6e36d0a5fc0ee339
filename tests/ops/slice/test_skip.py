"""Test ``skip``: all but the first elements."""

from __future__ import annotations

import pytest

from dml import col
from dml.errors import PlanError
from tests.expr.checks import holds, numbers


@pytest.mark.law
@pytest.mark.parametrize(("n", "kept"), [(0, 10), (1, 9), (3, 7), (9, 1), (10, 0), (99, 0)])
def test_rows(n: int, kept: int) -> None:
    assert holds(numbers().skip(n)) == kept


@pytest.mark.law
def test_batches_after_filters_and_over_nothing() -> None:
    assert holds(numbers().batch(4).skip(2)) == 1
    assert holds(numbers().filter(col("x") > 2).skip(3).take(3)) == 3
    assert holds(numbers(0).skip(2)) == 0


@pytest.mark.law
def test_each_pass_skips_again() -> None:
    ds = numbers().skip(8).repeat(2)
    assert [row["x"] for row in ds] == [8, 9, 8, 9]
    assert holds(ds) == 4


def test_refuses_a_negative_number() -> None:
    with pytest.raises(PlanError, match="skip needs an integer"):
        numbers().skip(-1)
