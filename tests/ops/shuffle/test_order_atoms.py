"""Test ``randomize_block_order``: atoms of the source in random order, unchanged inside."""

from __future__ import annotations

import pytest

from dml import col
from dml.errors import PlanError
from tests.expr.checks import holds, numbers


@pytest.mark.law
def test_pieces_change_places_and_rows_do_not() -> None:
    ds = numbers(30).randomize_block_order(seed=4)
    order = [row["x"] for row in ds]
    assert sorted(order) == list(range(30))
    assert order != sorted(order)
    for start in range(0, 30, 3):
        assert order[start : start + 3] == list(range(order[start], order[start] + 3))
    assert order[0] % 3 == 0
    assert [row["x"] for row in ds] != order
    assert holds(ds) == 30


def test_it_is_the_order_of_pieces_of_a_shuffle_of_atoms() -> None:
    ours = [row["x"] // 3 for row in numbers(30).randomize_block_order(seed=2)]
    theirs = numbers(30).shuffle(window="atoms", size=1, seed=2)
    assert ours == [row["x"] // 3 for row in theirs]


@pytest.mark.law
def test_filters_may_cross_and_all_ways_agree() -> None:
    ds = numbers(20)
    after = ds.randomize_block_order().filter(col("x") > 3)
    before = ds.filter(col("x") > 3).randomize_block_order()
    assert [row["x"] for row in after] == [row["x"] for row in before]
    holds(after.batch(3))
    holds(ds.randomize_block_order(reshuffle_each_iteration=False).repeat(2).take(30))
    holds(numbers(0).randomize_block_order())


def test_one_order_for_all_epochs() -> None:
    ds = numbers(30).randomize_block_order(reshuffle_each_iteration=False)
    assert [row["x"] for row in ds] == [row["x"] for row in ds]
    assert ds.cardinality() == 30


def test_refusals() -> None:
    with pytest.raises(PlanError, match="randomize_block_order permutes pieces of a source"):
        numbers().take(3).randomize_block_order()
    with pytest.raises(PlanError, match="seed"):
        numbers().randomize_block_order(seed="x")  # type: ignore[arg-type]
