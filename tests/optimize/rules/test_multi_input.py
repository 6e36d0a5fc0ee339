"""Test the rules for operators of several inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dml
from dml import col
from dml.ops.merge.paired import Paired
from dml.optimize.rules.multi_input import (
    columns_before_mix,
    columns_before_zip,
    segment_before_concat,
    take_before_concat,
)
from dml.optimize.rules.normal_form import drop_identity_segment, merge_columns
from dml.physical.plan import Plan
from dml.testing.plans import keeps_rows, leaves, plan_of, rewrites
from tests.optimize.tables import flights, parquet

LATE = col("late") > 0
SMALL = (col("id") * 20).cast("int8")


def other() -> dml.Dataset:
    return flights().skip(4).with_columns(late=col("late") - 1)


def columns_read(plan: Plan) -> list[tuple[str, ...]]:
    return [each.stage.columns for each in plan.all]


@pytest.mark.law
def test_segment_before_concat(tmp_path: Path) -> None:
    by = [segment_before_concat]
    rewrites(
        flights().concat(other()).filter(LATE),
        to=flights().filter(LATE).concat(other().filter(LATE)),
        by=by,
    )
    km = {"km": col("miles") * 1.6}
    rewrites(
        flights().batch(4).concat(other().batch(3)).with_columns(**km),
        to=flights().batch(4).with_columns(**km).concat(other().batch(3).with_columns(**km)),
        by=by,
    )
    three = flights().concat(other(), flights().shuffle()).filter(LATE).select("id")
    keeps_rows(three.with_columns(r=dml.random()).repeat(2).shuffle(5))
    drawn = flights().concat(other()).filter(dml.random() < 0.5)
    leaves(drawn, by=by)  # draws are keyed by the ids that concat makes
    leaves(flights().concat(other()).with_columns(s=SMALL), by=by)
    leaves(flights().concat(other()).take(30).filter(LATE), by=by)
    ds = parquet(tmp_path).concat(parquet(tmp_path)).filter(col("id") > 31).select("name")
    plan = keeps_rows(ds)
    assert columns_read(plan) == [("id", "name")] * 2
    assert all(each.stage.predicate for each in plan.all)


@pytest.mark.law
def test_columns_before_mix() -> None:
    by = [columns_before_mix, drop_identity_segment, merge_columns]
    km = {"km": col("miles") * 1.6}
    verbs: list[Callable[[dml.Dataset, dml.Dataset], dml.Dataset]] = [
        lambda one, two: one.mix(two, weights=[2, 1]),
        lambda one, two: one.interleave(two, block_length=3),
    ]
    for verb in verbs:
        whole, select = verb(flights(), other()), ("id", "late")
        narrow = verb(flights().select(*select), other().select(*select))
        rewrites(whole.filter(LATE).select("id"), to=narrow.filter(LATE).select("id"), by=by)
        made = verb(flights().with_columns(**km), other().with_columns(**km))
        rewrites(whole.with_columns(**km), to=made, by=by)
        leaves(whole.filter(LATE), by=by[:1])  # turns count rows
        leaves(whole.with_columns(r=dml.random()), by=by[:1])
        plan = keeps_rows(whole.filter(dml.random() < 0.5).select("id").batch(3))
        assert columns_read(plan) == [("id",)] * 2
        keeps_rows(whole.with_columns(one=1).select("one").filter(dml.random() < 0.5))
        keeps_rows(whole.select("id").with_columns(s=SMALL))


@pytest.mark.law
def test_columns_before_zip() -> None:
    by = [columns_before_zip, drop_identity_segment, merge_columns]
    right = other().select("id", "gate").rename({"id": "a", "gate": "b"})
    zipped = flights().zip(right)
    rewrites(
        zipped.select("late", "a"),
        to=flights().select("late").zip(right.select("a")).select("late", "a"),
        by=by,
    )
    leaves(zipped.filter(LATE), by=by[:1])  # it would put other rows beside each other
    leaves(zipped.with_columns(z=col("id") + 1), by=by[:1])
    assert columns_read(keeps_rows(zipped.filter(LATE).select("b"))) == [("late",), ("gate",)]
    for names in (["late"], ["a"]):
        keeps_rows(zipped.select(*names))
        keeps_rows(zipped.select(*names).filter(dml.random() < 0.5))


@pytest.mark.law
def test_take_before_concat(tmp_path: Path) -> None:
    by = [take_before_concat]
    rewrites(
        flights().concat(other()).take(5),
        to=flights().take(5).concat(other().take(5)).take(5),
        by=by,
    )
    rewrites(
        flights().take(3).concat(other()).take(5),
        to=flights().take(3).concat(other().take(5)).take(5),
        by=by,
    )
    leaves(flights().take(3).concat(other().take(5)).take(5), by=by)
    leaves(flights().concat(other()).skip(1).take(5), by=by)
    for n in (0, 1, 22, 23, 24, 40, 99):
        keeps_rows(flights().concat(other()).take(n).batch(4))
        keeps_rows(flights().batch(4).concat(other().batch(3)).take(n))
    plan = plan_of(parquet(tmp_path).concat(parquet(tmp_path)).take(5))
    assert [each.stage.source.unit_count for each in plan.all] == [1, 1]


def paired(ds: dml.Dataset) -> int:
    """How many sides became one."""
    plan = keeps_rows(ds)
    return sum(each.sides for each in plan.operators if isinstance(each, Paired))


@pytest.mark.law
def test_zip_of_one_input() -> None:
    near = flights().filter(LATE)
    sides = near.select(m=col("miles") * 2), near.select(n=dml.random())
    assert paired(near.zip(*sides)) == 3
    assert paired(flights().zip(flights().select(z=col("id"))).shuffle().take(4)) == 2
    for other in (near.select(z=col("id")), flights().skip(1).select(z=col("id"))):
        assert not paired(flights().zip(other))
    assert not paired(flights().zip(flights().map(lambda row: {"z": str(row)})))
