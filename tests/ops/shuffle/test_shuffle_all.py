"""Test ``shuffle()``: by a permutation of ranks in one source, else by hashes of row ids."""

from __future__ import annotations

import pytest

from dml import col
from dml.errors import PlanError
from dml.ops.shuffle.shuffle_all import ShuffleAll
from tests.expr.checks import TINY, holds, node_of, numbers, resumes


def ranked(node: object) -> bool:
    assert isinstance(node, ShuffleAll)
    return node.ranked_source is not None


@pytest.mark.law
def test_rank_where_rows_descend_one_to_one() -> None:
    plain = numbers(12).shuffle(seed=2)
    kept = numbers(12).filter(col("x") % 2 == 0).shuffle(seed=2)
    assert ranked(node_of(plain))
    assert ranked(node_of(kept))
    order = [row["x"] for row in plain]
    assert [x for x in order if x % 2 == 0] == [row["x"] for row in kept]  # one permutation
    assert holds(plain) == 12
    assert holds(kept) == 6


@pytest.mark.law
def test_hash_where_they_do_not() -> None:
    many = numbers(5).flat_map(lambda row: [{"x": row["x"]}, {"x": -row["x"]}]).shuffle(seed=2)
    again = numbers(5).repeat(2).shuffle(seed=2)
    assert not ranked(node_of(many))
    assert not ranked(node_of(again))
    assert holds(many) == 10
    assert holds(again) == 10


@pytest.mark.law
def test_spilled_runs_merge_to_the_same_order() -> None:
    assert resumes(numbers(40).repeat(2).shuffle(seed=1).batch(7), TINY) == 12


@pytest.mark.law
def test_over_nothing_and_after_shuffle() -> None:
    assert holds(numbers(0).shuffle()) == 0
    assert holds(numbers(9).shuffle(4).shuffle()) == 9
    assert holds(numbers(9).shuffle().take(4)) == 4


def test_refuses_batches() -> None:
    with pytest.raises(PlanError, match="a full shuffle of batches"):
        numbers().batch(2).shuffle()
