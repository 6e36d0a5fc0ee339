"""Test parts of random splits: disjoint, complete, and the same in every run."""

from __future__ import annotations

from itertools import chain

import pytest

import dml
from dml import Dataset, col
from dml.errors import PlanError
from tests.expr.checks import holds, numbers


def values(ds: Dataset) -> list[int]:
    return [row["x"] for row in ds]


@pytest.mark.law
@pytest.mark.parametrize("fractions", [[0.7, 0.2, 0.1], [0.1] * 10, [1], [0, 1, 0], [0.5, 0.5]])
def test_every_row_is_in_one_part(fractions: list[float]) -> None:
    parts = [values(part) for part in numbers(200).split(fractions, seed=3)]
    assert sorted(chain(*parts)) == list(range(200))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - 200 * fraction) < 30
        assert part == sorted(part)


@pytest.mark.law
def test_rows_batches_and_resuming() -> None:
    train, test = numbers(20).train_test_split(0.3)
    assert holds(train) + holds(test) == 20
    assert holds(train.shuffle().batch(3)) == -(-len(values(train)) // 3)
    batches = numbers(20).batch(3).split([0.5, 0.5], seed=1)
    assert sum(len(batch["x"]) for part in batches for batch in part) == 20
    assert holds(batches[0]) > 0


def test_a_row_stays_in_its_part() -> None:
    """In any epoch, under any shuffle, whatever draws before it, and when rows are added."""
    ds = numbers(100)
    wanted = values(ds.split([0.8, 0.2], seed=1)[1])
    assert values(ds.split([0.8, 0.2], seed=1)[1].epoch(3)) == wanted
    assert sorted(values(ds.shuffle().split([0.8, 0.2], seed=1)[1])) == wanted
    drawn = ds.with_columns(u=dml.random()).split([0.8, 0.2], seed=1)[1]
    assert values(drawn) == wanted
    more = numbers(300).split([0.8, 0.2], seed=1)[1]
    assert [x for x in values(more) if x < 100] == wanted
    assert values(ds.split([0.8, 0.2], seed=2)[1]) != wanted


def test_the_default_seed_is_that_of_the_run_and_part_of_the_name() -> None:
    train, _ = numbers(100).train_test_split(0.5)
    other = train.with_options(seed=9)
    assert values(train) != values(other)
    assert train.fingerprint() != other.fingerprint()
    explicit, _ = numbers(100).train_test_split(0.5, seed=9)
    assert values(explicit) == values(other)


@pytest.mark.law
def test_a_split_of_a_part_draws_anew() -> None:
    train, _ = numbers(400).split([0.5, 0.5], seed=1)
    first, second = train.split([0.5, 0.5], seed=1)
    assert abs(len(values(first)) - len(values(second))) < 60
    assert sorted(values(first) + values(second)) == values(train)


def test_draws_of_a_split_are_not_those_of_random() -> None:
    train, _ = numbers(400).split([0.5, 0.5], seed=0)
    low = len(values(train.filter(dml.random(seed=0) < 0.5)))
    assert 0.3 < low / len(values(train)) < 0.7


@pytest.mark.law
def test_sample() -> None:
    ds = numbers(200)
    assert 60 < len(values(ds.sample(0.5, seed=1))) < 140
    assert values(ds.sample(0.5, seed=1)) == values(ds.filter(dml.random(seed=1) < 0.5))
    assert values(ds.sample(0.5).epoch(1)) != values(ds.sample(0.5).epoch(0))
    assert (values(ds.sample(0)), len(values(ds.random_sample(1)))) == ([], 200)
    assert holds(numbers(20).sample(0.4).batch(2)) > 0


@pytest.mark.parametrize("fractions", [[], [0.5], [0.5, 0.6], [-0.5, 1.5], [0.5, "0.5"], [True]])
def test_refuses_fractions_that_make_no_whole(fractions: list[float]) -> None:
    with pytest.raises(PlanError, match="split cannot divide"):
        numbers().split(fractions)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, True, "0.5", None, float("nan")])
def test_refuses_what_is_no_fraction(fraction: float) -> None:
    for verb in (numbers().sample, numbers().train_test_split):
        with pytest.raises(PlanError, match="needs a fraction"):
            verb(fraction)
    with pytest.raises(PlanError, match="seed"):
        numbers().split([0.5, 0.5], seed=0.5)  # type: ignore[arg-type]


def test_filters_cross_nothing_that_they_would_change() -> None:
    train, _ = numbers(30).train_test_split(0.5, seed=4)
    assert values(train.filter(col("x") > 10)) == [x for x in values(train) if x > 10]
