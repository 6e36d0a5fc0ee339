"""Test rules over sorted rows, over groups, and over rows that become several or none."""

from __future__ import annotations

from pathlib import Path

import pytest

import dml
from dml import col
from dml.optimize.rules.grouping import (
    drop_overruled_sort,
    filter_before_explode,
    filter_before_groups,
    merge_batches,
    merge_sorts,
    segment_before_part,
)
from dml.optimize.rules.normal_form import (
    drop_identity_segment,
    filter_before_columns,
    merge_columns,
)
from dml.optimize.rules.order import filter_before_sort
from dml.testing.plans import keeps_rows, leaves, plan_of, rewrites
from tests.optimize.tables import flights, parquet

LATE, GATE = col("late") > 0, col("gate") != "g1"
SMALL = (col("id") * 20).cast("int8")


def lists() -> dml.Dataset:
    return dml.from_dict(
        {
            "id": [1, 5, 7, 9, 11],
            "l": [[1, 2], [], [3], None, [4, 5, 6]],
            "k": [["a", "b"], [None], ["c"], [], ["d", "e", "f"]],
            "m": [1.5, None, 3.0, 4.0, -0.0],
        },
        atom_rows=2,
    )


@pytest.mark.law
def test_filter_before_groups(tmp_path: Path) -> None:
    by = [filter_before_groups, filter_before_sort, filter_before_columns, drop_identity_segment]

    def counted(ds: dml.Dataset) -> dml.Dataset:
        return ds.group_by("gate", "miles").agg(n=col("id").sum(), l=col("late").max())

    fits = GATE & (col("miles") > 20)
    rewrites(
        counted(flights()).filter(fits), to=counted(flights().filter(fits)), by=[*by, merge_columns]
    )
    by = by[:1]
    keeps_rows(counted(flights()).filter(fits & (col("n") > 3)).with_columns(r=dml.random()))
    leaves(counted(flights()).filter(col("n") > 3), by=by)  # known only when all are counted
    leaves(counted(flights()).filter(col("miles") != col("n")), by=by)
    floats = flights().with_columns(late=col("late") * 0)  # 0.0 and -0.0, and NaN
    leaves(floats.group_by("late").len().filter(1 / col("late") > 0), by=by)
    plan = keeps_rows(parquet(tmp_path).group_by("id").len().filter(col("id") > 31))
    assert plan.stage.predicate


@pytest.mark.law
def test_filter_before_groups_needs_runs_that_are_groups() -> None:
    by = [filter_before_groups]
    first = flights().drop_duplicates(["gate"])
    keeps_rows(first.filter(GATE))
    keeps_rows(first.filter(GATE & (col("id") > 1)).select("id"))
    leaves(first.filter(col("id") > 1), by=by)  # another row would be the first


@pytest.mark.law
def test_filter_before_explode() -> None:
    by = [filter_before_explode, drop_identity_segment]
    high, some = col("id") > 1, col("l").is_not_null()
    rewrites(lists().explode("l").filter(high), to=lists().filter(high).explode("l"), by=by)
    mixed = lists().explode("l", "k").filter(high & (col("m") < 9)).filter(some)
    keeps_rows(mixed.with_columns(r=dml.random()))
    leaves(lists().explode("l").filter(some), by=by)  # of one element, not of the list
    leaves(lists().explode("l").filter(dml.random() < 0.5), by=by)
    leaves(lists().explode("l").filter(SMALL > 0), by=by)


@pytest.mark.law
def test_explode_reads_what_is_read_above_it(tmp_path: Path) -> None:
    path = tmp_path / "lists.parquet"
    lists().write_parquet(str(path))
    ds = dml.read_parquet(str(path)).explode("l")
    assert keeps_rows(ds.select("l")).stage.columns == ("l",)
    assert keeps_rows(ds.filter(col("m") > 0).select("id")).stage.columns == ("id", "l", "m")
    assert keeps_rows(ds).stage.columns == ("id", "l", "k", "m")


@pytest.mark.law
@pytest.mark.parametrize("part", [0, 1])
def test_segment_before_part(part: int, tmp_path: Path) -> None:
    by = [segment_before_part]

    def side(ds: dml.Dataset) -> dml.Dataset:
        return ds.split([0.7, 0.3], seed=5)[part]

    rewrites(side(flights()).filter(LATE), to=side(flights().filter(LATE)), by=by)
    keeps_rows(side(flights()).filter(dml.random() < 0.7).with_columns(r=dml.random()).shuffle())
    leaves(side(flights()).with_columns(s=SMALL), by=by)
    leaves(side(flights()).take(9).filter(LATE), by=by)
    plan = keeps_rows(side(parquet(tmp_path)).filter(col("id") > 31).select("name"))
    assert plan.stage.predicate
    assert plan.stage.columns == ("id", "name")


def test_columns_that_nothing_reads_do_not_reach_a_part(tmp_path: Path) -> None:
    kept, _ = parquet(tmp_path).split([0.7, 0.3], seed=5)
    assert keeps_rows(kept.take(9).select("x")).stage.columns == ("x",)


@pytest.mark.law
def test_merge_sorts() -> None:
    by = [merge_sorts]
    rewrites(
        flights().sort(["late", "id"], [True, False]).sort("gate"),
        to=flights().sort(["gate", "late", "id"], [False, True, False]),
        by=by,
    )
    keeps_rows(flights().sort("late").sort(["gate", "late"], [True, True]).take(9))
    leaves(flights().sort("late").sort("gate", nulls_last=False), by=by)
    leaves(flights().sort("late").take(9).sort("gate"), by=by)


@pytest.mark.law
def test_drop_overruled_sort() -> None:
    by = [drop_overruled_sort]
    rewrites(flights().sort("late").shuffle(), to=flights().shuffle(), by=by)
    keeps_rows(flights().flat_map(lambda row: [row, row]).sort("id").shuffle(seed=4))
    keeps_rows(flights().take(9).sort("late").shuffle().with_columns(r=dml.random()))
    leaves(flights().sort("late").take(9).shuffle(), by=by)  # which nine is up to the sort
    leaves(flights().sort("late").shuffle(4), by=by)  # windows mix neighbours


@pytest.mark.law
def test_merge_batches() -> None:
    by = [merge_batches]
    rewrites(flights().batch(4).unbatch().batch(3), to=flights().batch(3), by=by)
    for last in (False, True):
        keeps_rows(flights().batch(4).unbatch().batch(3, drop_last=last).take(5))
    leaves(flights().batch(4, drop_last=True).unbatch().batch(3), by=by)
    leaves(flights().batch(4).unbatch().shuffle(), by=by)


def test_the_plan_of_rows_that_were_split_apart_and_sorted() -> None:
    ds = lists().explode("l").sort("l").sort("id").filter(col("id") > 5).shuffle().select("id")
    assert [type(node).__name__ for node in plan_of(ds).stream] == ["ShuffleAll"]
    keeps_rows(ds)
