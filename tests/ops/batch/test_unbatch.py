"""Test ``unbatch``: batches become rows again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dml
from dml import col
from dml.errors import PlanError
from dml.testing.executions import PLAIN, ids
from tests.expr.checks import UNUSED, holds, node_of, numbers


@pytest.mark.law
@pytest.mark.parametrize("n", [1, 3, 4, 10, 99])
def test_it_undoes_batch(n: int) -> None:
    ds = numbers()
    again = ds.batch(n).unbatch()
    assert list(again) == list(ds)
    assert ids(node_of(again), PLAIN, UNUSED) == ids(node_of(ds), PLAIN, UNUSED)
    assert holds(again) == 10


@pytest.mark.law
def test_what_was_done_to_batches_stays() -> None:
    ds = numbers().batch(4, drop_last=True).shuffle(2).filter(col("x") > 2).unbatch()
    assert sorted(row["x"] for row in ds) == [3, 4, 5, 6, 7]
    assert holds(ds.with_columns(u=dml.random())) == 5


@pytest.mark.law
def test_batches_that_a_function_made() -> None:
    def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": np.repeat(batch["x"], len(batch["x"]) - 1)}

    ds = numbers().batch(3).map(doubled).unbatch()
    assert [row["x"] for row in ds][:6] == [0, 0, 1, 1, 2, 2]
    assert holds(ds.with_columns(u=dml.random()).shuffle()) == 18


@pytest.mark.law
def test_a_batch_is_where_types_settle() -> None:
    def late(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": None if row["x"] < 5 else row["x"]}

    def later(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": None if row["x"] < 64 else row["x"]}

    assert holds(numbers().batch(6).unbatch().random_map(lambda row, _: late(row))) == 10
    first = numbers(70).batch(5).unbatch().random_map(lambda row, _: later(row))
    with pytest.raises(dml.errors.UDFError):
        list(first)


@pytest.mark.law
def test_rebatch() -> None:
    ds = numbers().batch(4).rebatch(3)
    assert [batch["x"].tolist() for batch in ds] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert holds(ds) == 4
    assert holds(numbers().batch(4).rebatch(3, drop_last=True)) == 3


@pytest.mark.law
def test_an_error_comes_after_the_batches_before_it() -> None:
    ds = numbers().batch(4).with_columns(y=col("x").cast("bool")).filter(col("x") < 9).unbatch()
    assert holds(ds) == 9
    failing = numbers().with_columns(y=(col("x") * 20).cast("int8")).batch(4).unbatch()
    assert len(failing.take_rows(4)) == 4
    with pytest.raises(dml.errors.CastError):
        failing.take_rows(5)


def test_refuses_rows() -> None:
    with pytest.raises(PlanError, match="unbatch without batch"):
        numbers().unbatch()
    with pytest.raises(PlanError, match="unbatch without batch"):
        numbers().rebatch(2)
