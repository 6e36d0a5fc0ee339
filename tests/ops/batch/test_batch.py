"""Test ``batch``: consecutive rows as one element."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import PlanError
from tests.expr.checks import holds, numbers, table


@pytest.mark.law
@pytest.mark.parametrize(("n", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (9, [5])])
def test_the_last_batch_may_be_short(n: int, sizes: list[int]) -> None:
    ds = numbers(5).batch(n)
    assert [len(batch["x"]) for batch in ds] == sizes
    assert holds(ds) == len(sizes)


@pytest.mark.law
def test_drop_last() -> None:
    assert holds(numbers(7).batch(3, drop_last=True)) == 2
    assert holds(numbers(6).batch(3, drop_last=True)) == 2
    assert holds(numbers(2).batch(3, drop_last=True)) == 0
    assert holds(numbers(0).batch(3)) == 0


@pytest.mark.law
def test_batches_cross_atoms_and_passes() -> None:
    ds = numbers(4).repeat(2).batch(3)
    assert [batch["x"].tolist() for batch in ds] == [[0, 1, 2], [3, 0, 1], [2, 3]]
    assert holds(ds) == 3


@pytest.mark.law
def test_expressions_stay_by_row_and_empty_batches_vanish() -> None:
    ds = numbers(9).batch(3).filter((col("x") < 2) | (col("x") > 6)).with_columns(y=col("x") * 2)
    assert [batch["y"].tolist() for batch in ds] == [[0, 2], [14, 16]]
    assert holds(ds) == 2


@pytest.mark.law
def test_draws_after_batch_are_by_row() -> None:
    ds = numbers(9).batch(4).with_columns(u=dml.random())
    assert holds(ds) == 3


def test_kinds_of_columns() -> None:
    columns = {"s": pa.array(["a", None, "c"]), "l": pa.array([[1, 2], [], None])}
    assert holds(table(columns).batch(2)) == 2


def test_refusals() -> None:
    with pytest.raises(PlanError, match="batch needs an integer of at least 1"):
        numbers().batch(0)
    with pytest.raises(PlanError, match="batch over batches"):
        numbers().batch(2).batch(2)
