"""Test ``repeat``: consecutive passes, and ends at every boundary."""

from __future__ import annotations

import pytest

import dml
from dml import col
from dml.errors import PlanError
from tests.expr.checks import holds, node_of, numbers, resumes


@pytest.mark.law
@pytest.mark.parametrize("n", [0, 1, 3])
def test_passes(n: int) -> None:
    assert holds(numbers(4).repeat(n)) == 4 * n
    assert holds(numbers(4).batch(3).repeat(n)) == 2 * n


@pytest.mark.law
@pytest.mark.parametrize("batched", [False, True])
def test_without_end_goes_on_from_the_end_of_a_pass(batched: bool) -> None:
    """A pass resumed where it ends gives nothing more, and is not an empty input."""
    rows = numbers(4)
    assert resumes((rows.batch(2) if batched else rows).repeat().take(9)) == 9
    assert resumes(numbers(4).repeat().batch(2).take(5)) == 5
    assert resumes(numbers(4).repeat().shuffle(3).take(13)) == 13


def test_over_nothing_ends() -> None:
    assert holds(numbers(0).repeat()) == 0
    assert holds(numbers(4).filter(col("x") > 9).repeat().batch(2)) == 0
    assert holds(numbers(0).repeat(3)) == 0


@pytest.mark.law
def test_each_pass_is_an_epoch_upstream() -> None:
    ds = numbers(8).shuffle(seed=1).repeat(2)
    order = [row["x"] for row in ds]
    assert order[:8] != order[8:]
    assert sorted(order[:8]) == sorted(order[8:]) == list(range(8))
    second = [row["x"] for row in numbers(8).shuffle(seed=1).epoch(3)]
    assert [row["x"] for row in ds.epoch(1)][8:] == second
    assert holds(ds) == 16


@pytest.mark.law
def test_nested_passes_have_rows_of_their_own() -> None:
    ds = numbers(3).repeat(2).repeat(2).with_columns(u=dml.random())
    assert len({row["u"] for row in ds}) == 12
    assert holds(ds) == 12
    assert node_of(ds).level == 2


def test_refuses_a_negative_number() -> None:
    with pytest.raises(PlanError, match="repeat needs an integer") as caught:
        numbers().repeat(-1)
    assert ".repeat() for no end" in caught.value.try_
