"""Test ``group_by_window``: batches of rows with one key."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import PlanError, SchemaError
from tests.expr.checks import holds, numbers, table


def keys(ds: dml.Dataset, name: str = "x") -> list[list[int]]:
    return [batch[name].tolist() for batch in ds]


@pytest.mark.law
def test_a_window_of_one_key_is_given_when_it_is_full() -> None:
    ds = numbers(11).group_by_window(col("x") % 3, 2)
    assert keys(ds) == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8]]
    assert list(next(iter(ds))) == ["x"]
    assert holds(ds) == 6
    assert holds(numbers(11).group_by_window(col("x") % 3, 2, drop_last=True)) == 5


@pytest.mark.law
def test_the_rest_comes_by_key() -> None:
    words = pa.array(["b", None, "a", "ä", "b", None, "", "a", "b"])
    ds = table({"w": words, "k": pa.array(range(9))}).group_by_window("w", 3)
    assert keys(ds, "k") == [[0, 4, 8], [6], [2, 7], [3], [1, 5]]
    assert holds(ds) == 5
    flags = pa.array([True, False, None, True, False])
    ds = table({"b": flags, "k": pa.array(range(5))}).group_by_window("b", 3).drop("b")
    assert keys(ds, "k") == [[1, 4], [0, 3], [2]]
    assert holds(ds) == 3


@pytest.mark.law
def test_many_keys_and_small_states() -> None:
    ds = numbers(400).group_by_window(col("x") % 130, 3)
    it = iter(ds)
    sizes = [len(json.dumps(it.state_dict())) for _ in it]
    assert max(sizes) < 4096
    assert len(sizes) == 140
    state_at = 130
    whole = keys(ds)
    it = iter(ds)
    for _ in range(state_at):
        next(it)
    again = iter(ds)
    again.load_state_dict(json.loads(json.dumps(it.state_dict())))
    assert [b["x"].tolist() for b in again] == whole[state_at:]


@pytest.mark.law
def test_over_other_operators() -> None:
    ds = numbers(20).shuffle(7).repeat(2).group_by_window(col("x") // 6, 4)
    assert holds(ds.with_columns(y=col("x") + 1).shuffle(3).take(8)) == 8
    mapped = numbers(9).map(lambda r: {"x": r["x"], "k": str(r["x"] % 2)}).group_by_window("k", 2)
    assert keys(mapped) == [[0, 2], [1, 3], [4, 6], [5, 7], [8]]
    assert holds(mapped) == 5


def test_refusals() -> None:
    with pytest.raises(PlanError, match="window_size needs an integer of at least 1"):
        numbers().group_by_window("x", 0)
    with pytest.raises(PlanError, match="group_by_window over batches"):
        numbers().batch(2).group_by_window("x", 2)
    with pytest.raises(SchemaError, match="needs column 'y'"):
        numbers().group_by_window("y", 2)
    with pytest.raises(SchemaError, match="cannot group by"):
        numbers().group_by_window(col("x") / 2, 2)
