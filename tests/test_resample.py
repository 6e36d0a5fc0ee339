"""Test ``rejection_resample``: target shares of classes, by a draw for each row."""

from __future__ import annotations

import collections
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.api.verbs.resampling import accepted, shares_of
from dml.errors import PlanError, SchemaError, UDFError
from tests.expr.checks import agrees, holds, node_of, table

CLASSES = [0] * 50 + [1] * 30 + [2] * 20


def classed(n: int = 100) -> dml.Dataset:
    """Rows of the classes 0, 1 and 2 in the ratio 5 : 3 : 2, mixed."""
    labels = [CLASSES[i * 37 % 100] for i in range(n)]
    return table({"x": pa.array(range(n)), "k": pa.array(labels, pa.int8())}, atom_rows=997)


def found(ds: dml.Dataset) -> collections.Counter[Any]:
    return collections.Counter(ds.to_arrow()["k"].to_pylist())


def test_the_shares_converge_and_the_rarest_by_the_target_is_kept_whole() -> None:
    n = 20_000
    counts = found(classed(n).rejection_resample("k", [0.2, 0.3, 0.5], seed=3))
    assert counts[2] == n * 0.2
    for label, wanted in enumerate([0.2, 0.3, 0.5]):
        share = wanted * counts.total()
        assert abs(counts[label] - share) < 5 * math.sqrt(share)


def test_draws_are_those_of_rows() -> None:
    ds = classed(500)
    whole = ds.rejection_resample("k", [0.2, 0.3, 0.5], seed=3)
    ids = set(whole.to_arrow()["x"].to_pylist())
    assert set(whole.shuffle(seed=1).to_arrow()["x"].to_pylist()) == ids
    some = ds.filter(col("x") % 3 == 0).rejection_resample(
        "k", [0.2, 0.3, 0.5], [0.5, 0.3, 0.2], seed=3
    )
    assert set(some.to_arrow()["x"].to_pylist()) == {x for x in ids if x % 3 == 0}
    assert set(whole.epoch(1).to_arrow()["x"].to_pylist()) != ids


def test_counting_is_exact_and_no_epoch() -> None:
    ds = classed()
    counted = ds.rejection_resample("k", [1, 1, 1])
    assert node_of(counted) == node_of(ds.rejection_resample("k", [2, 2, 2], [50, 30, 20]))
    told = ds.rejection_resample("k", {0: 1, 1: 1, 2: 1}, {2: 0.2, 0: 0.5, 1: 0.3})
    assert found(told)[2] == 20
    shuffled = ds.shuffle()
    shuffled.rejection_resample("k", [1, 1, 1])
    assert next(iter(shuffled)) == next(iter(classed().shuffle()))


@pytest.mark.law
def test_every_way_of_running_and_resuming() -> None:
    made = classed(60).rejection_resample("k", [0.2, 0.3, 0.5], [0.5, 0.3, 0.2])
    holds(made)
    holds(made.shuffle(5).repeat(2).batch(4))


@pytest.mark.law
def test_classes_of_every_kind() -> None:
    texts = table({"k": pa.array(["a", "b", None, "a"] * 50)})
    assert set(found(texts.rejection_resample("k", {"a": 1, None: 1}))) == {"a", None}
    assert found(texts.rejection_resample("k", {"a": 1, None: 1}))[None] == 50
    assert set(found(texts.rejection_resample("k", {"b": 1.0}))) == {"b"}
    halves = classed().rejection_resample(col("x") % 2 == 0, {True: 1, False: 3})
    odd = sum(x % 2 for x in halves.to_arrow()["x"].to_pylist())
    assert odd == 50
    many = table({"k": pa.array(range(3000), pa.int64())}, atom_rows=1000)
    assert len(list(many.rejection_resample("k", [1] * 3000))) == 3000


@pytest.mark.law
@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 100), min_size=1),
    st.data(),
)
def test_what_is_kept_has_the_target_shares(counts: dict[int, int], data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from(sorted(counts)), min_size=1, unique=True))
    target = shares_of({name: data.draw(st.integers(1, 50)) for name in some}, "target_dist")
    keep = accepted(target, shares_of(counts, "initial_dist"))
    assert max(keep.values()) == 1
    expected = {name: counts[name] * keep[name] for name in some}
    whole = sum(expected.values())
    assert all(math.isclose(expected[name] / whole, target[name]) for name in some)


@pytest.mark.parametrize(
    "wrong", [3, [], {}, [0, 0], [-1, 2], ["a"], [float("nan")], [float("inf")], {"a": True}, "ab"]
)
def test_shares_that_are_none(wrong: Any) -> None:
    with pytest.raises(PlanError, match="rejection_resample with target_dist=") as seen:
        classed().rejection_resample("k", wrong, [1, 1])
    assert "test_resample.py" in str(seen.value)


def test_what_is_refused() -> None:
    with pytest.raises(PlanError, match=r"cannot give the class 3 a share of 0\.5"):
        classed().rejection_resample("k", {0: 1, 3: 1})
    with pytest.raises(PlanError, match="rejection_resample after batch"):
        classed().batch(2).rejection_resample("k", [1, 1])
    with pytest.raises(SchemaError, match="needs a column, an expression or a function, got 3"):
        classed().rejection_resample(3, [1, 1])  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="a column, an expression or a function"):
        classed().rejection_resample(dict, [1, 1])
    with pytest.raises(SchemaError, match="needs column 'label'"):
        classed().rejection_resample("label", [1, 1])
    with pytest.raises(SchemaError, match="without a common type"):
        classed().rejection_resample("k", {"a": 1}, {"a": 1})
    with pytest.raises(PlanError, match="rejection_resample without initial_dist"):
        classed().repeat().rejection_resample("k", [1, 1, 1])
    endless = classed().repeat().rejection_resample("k", [1, 1, 1], [5, 3, 2])
    assert endless.take(3).count() == 3


def third(row: dict[str, Any]) -> str:
    return "abc"[row["x"] % 3]


@pytest.mark.law
def test_classes_by_a_function() -> None:
    ds = classed(3000)
    made = ds.rejection_resample(third, {"a": 1, "b": 2})
    assert made.schema == ds.schema
    counts = collections.Counter(x % 3 for x in made.to_arrow()["x"].to_pylist())
    assert counts[1] == 1000
    assert abs(counts[0] - 500) < 100
    assert not counts[2]
    told = ds.rejection_resample(third, {"a": 1, "b": 2}, {"a": 5, "b": 5, "c": 5})
    assert node_of(told) == node_of(made)
    small = classed(40).rejection_resample(third, {"a": 1, "b": 2}, {"a": 1, "b": 1}, seed=3)
    holds(small)
    holds(small.shuffle(4).repeat(2).batch(3))


def test_a_function_that_fails_stands_at_its_row() -> None:
    ds = classed(9)
    failing = ds.rejection_resample(lambda row: 1 // (row["x"] - 4), {0: 1, -1: 1}, {0: 1, -1: 1})
    with pytest.raises(UDFError, match="raised ZeroDivisionError") as found:
        list(failing)
    assert found.value.row == 4
    unhashable = ds.rejection_resample(lambda row: [row["x"]], {0: 1}, {0: 1})
    with pytest.raises(UDFError, match="raised TypeError"):
        list(unhashable)
    agrees(failing)
    agrees(unhashable)
