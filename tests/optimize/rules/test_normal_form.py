"""Test the rules that form segments (filters and columns in one operator)."""

from __future__ import annotations

import numpy as np
import pytest

import dml
from dml import col
from dml.ops.row.segment import Segment
from dml.optimize.engine import RuleTrace
from dml.optimize.phases import normalize
from dml.optimize.rules.normal_form import (
    MOST_DEPTH,
    MOST_PARTS,
    columns_as_segment,
    drop_identity_segment,
    filter_as_segment,
    filter_before_columns,
    merge_columns,
)
from dml.testing.plans import keeps_rows, leaves, rewrites
from tests.optimize.tables import flights


def nothing_declared(row: dict[str, object]) -> dict[str, object]:
    return dict(row, more=repr(row["gate"]))


@pytest.mark.law
def test_columns_as_segment() -> None:
    by = [columns_as_segment]
    rewrites(flights().drop("gate"), to=flights().select("id", "late", "miles"), by=by)
    rewrites(
        flights().fill_null({"late": 0.0}),
        to=flights().with_columns(late=col("late").fill_null(0.0)),
        by=by,
    )
    leaves(flights().map(nothing_declared).select("id"), by=by)  # no columns are known there


@pytest.mark.law
def test_filter_as_segment() -> None:
    both = (col("late") > 0) & (col("miles") < 50)
    parts = predicate_of(flights().filter(both & (col("late") > 0)))
    assert len(parts) == 2  # each part once, tried one by one
    assert len(predicate_of(flights().filter((col("late") > 0) | (col("miles") < 50)))) == 1
    rewrites(flights().where(both), to=flights().filter(both), by=[filter_as_segment])
    leaves(flights().map(nothing_declared).filter(col("id") > 3), by=[filter_as_segment])


def predicate_of(ds: dml.Dataset) -> tuple[object, ...]:
    segment = normalize(ds._node, RuleTrace())
    assert isinstance(segment, Segment)
    return segment.predicate


@pytest.mark.law
def test_bits_of_integers_are_no_conjunction() -> None:
    assert len(predicate_of(flights().filter((col("id") & 3) == 1))) == 1
    keeps_rows(flights().filter((col("id") & 3) == 1))


@pytest.mark.law
def test_merge_columns() -> None:
    rewrites(
        flights().with_columns(km=col("miles") * 2).with_columns(far=col("km") > 100).drop("km"),
        to=flights().with_columns(far=col("miles") * 2 > 100),
        by=[merge_columns],
    )
    leaves(flights().with_columns(a=col("id") + 1).take(9).drop("gate"), by=[merge_columns])


@pytest.mark.law
def test_a_literal_column_keeps_its_type_when_merged() -> None:
    """int8 + column of int64 is int64; int8 + bare literal would be int8 and wrap."""
    ds = flights().with_columns(base=100)
    keeps_rows(ds.filter(col("miles") + col("base") > 150))
    keeps_rows(ds.with_columns(sum=col("miles") + col("base")))
    single = dml.from_numpy({"x": np.arange(5, dtype=np.float32)}).with_columns(k=3, h=0.1)
    keeps_rows(single.with_columns(y=col("x") * col("k"), z=col("x") * col("h")))


@pytest.mark.law
def test_draws_are_the_same_however_columns_are_merged() -> None:
    ds = flights().with_columns(a=dml.random(), b=dml.random())
    ds = ds.filter(dml.random() < 0.7).with_columns(c=col("a") - col("b"), d=dml.random())
    keeps_rows(ds.select("d", "c", "a"))


def test_filter_before_columns() -> None:
    rewrites(
        flights().with_columns(km=col("miles") * 1.6).filter(col("km") > 30),
        to=flights().filter(col("miles") * 1.6 > 30).with_columns(km=col("miles") * 1.6),
        by=[filter_before_columns, merge_columns],
    )
    leaves(
        flights().take(10).filter(col("miles") > 30), by=[filter_before_columns]
    )  # would take other rows


@pytest.mark.law
def test_a_filter_spares_a_cast_but_is_not_spared_one() -> None:
    narrow = flights().with_columns(small=(col("id") * 20).cast("int8"))
    plan = keeps_rows(narrow.filter(col("id") < 5))
    assert [type(step).__name__ for step in plan.stage.steps] == ["Segment"]
    # the guard comes first, as it was written
    keeps_rows(flights().filter(col("id") < 5).filter((col("id") * 20).cast("int8") > 3))


@pytest.mark.law
def test_drop_identity_segment() -> None:
    by = [drop_identity_segment]
    rewrites(flights().select("id", "late", "miles", "gate"), to=flights(), by=by)
    leaves(flights().select("late", "id", "miles", "gate"), by=by)  # another order of columns
    leaves(flights().rename({"id": "late", "late": "id"}), by=by)  # the same names, exchanged


@pytest.mark.law
@pytest.mark.parametrize("n", [MOST_DEPTH + 10, 1000])
def test_long_chains_become_programs_of_bounded_depth(n: int) -> None:
    ds = flights()
    for i in range(n):
        ds = ds.with_columns(id=col("id") + i)
    steps = normalize(ds._node, RuleTrace()).chain()[1:]
    assert 1 < len(steps) <= n
    assert all(v.depth <= MOST_DEPTH for s in steps if isinstance(s, Segment) for _, v in s.env)
    assert ds.take_rows(1)[0]["id"] == n * (n - 1) // 2


def test_many_filters_become_predicates_of_bounded_width() -> None:
    ds = flights()
    for i in range(2 * MOST_PARTS):
        ds = ds.filter(col("id") > i / 100)
    steps = normalize(ds._node, RuleTrace()).chain()[1:]
    assert all(len(s.predicate) <= MOST_PARTS for s in steps if isinstance(s, Segment))
    assert len(ds.take_rows(99)) == ROWS_LEFT


ROWS_LEFT = 21


def test_a_value_used_twice_at_every_step_is_computed_once() -> None:
    ds = dml.range(3)
    for _ in range(60):
        ds = ds.with_columns(id=col("id") + col("id"))
    assert [row["id"] for row in ds] == [0, 2**60, 2**61]
