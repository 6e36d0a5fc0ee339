"""Test the rules about order and positions."""

from __future__ import annotations

import pytest

import dml
from dml import col
from dml.ops.shuffle.shuffle_window import ShuffleWindow
from dml.optimize.engine import RuleTrace
from dml.optimize.phases import normalize
from dml.optimize.rules.normal_form import drop_identity_segment
from dml.optimize.rules.order import (
    columns_before_position,
    drop_noop_position,
    drop_overruled_shuffle,
    drop_second_cache,
    filter_before_sort,
    merge_shards,
    merge_skips,
    merge_takes,
    segment_before_keyed_shuffle,
    segment_before_repeat,
    skip_before_take,
    slice_before_batch,
)
from dml.testing.plans import keeps_rows, leaves, rewrites
from tests.optimize.tables import flights

LATE = col("late") > 0
SMALL = (col("id") * 20).cast("int8")


def with_km(ds: dml.Dataset) -> dml.Dataset:
    return ds.with_columns(km=col("miles") * 1.6, r=dml.random(seed=3))


@pytest.mark.law
@pytest.mark.parametrize("verb", ["take", "skip", "shuffle", "batch"])
def test_columns_before_position(verb: str) -> None:
    by = [columns_before_position]
    km = {"km": col("miles") * 1.6}
    above, below = getattr(flights(), verb)(6).with_columns(**km), flights().with_columns(**km)
    rewrites(above, to=getattr(below, verb)(6), by=by)
    keeps_rows(with_km(getattr(flights(), verb)(6)))  # draws keep their keys
    leaves(getattr(flights(), verb)(6).with_columns(s=SMALL), by=by)  # may fail on other rows
    leaves(getattr(flights(), verb)(6).filter(LATE), by=by)  # positions would change


@pytest.mark.law
def test_segment_before_keyed_shuffle() -> None:
    by = [segment_before_keyed_shuffle]
    rewrites(flights().shuffle().filter(LATE), to=flights().filter(LATE).shuffle(), by=by)
    atoms = flights().shuffle(window="atoms", size=2)
    keeps_rows(with_km(atoms.filter(LATE)))
    rewrites(atoms.filter(LATE), to=flights().filter(LATE).shuffle(window="atoms", size=2), by=by)
    leaves(flights().shuffle().with_columns(s=SMALL), by=by)
    leaves(flights().shuffle(5).filter(LATE), by=by)  # windows count what reaches them


@pytest.mark.law
def test_filter_before_sort() -> None:
    by = [filter_before_sort, drop_identity_segment]
    keys, ways = ["late", "id"], [True, False]
    below = flights().filter(LATE).sort(keys, ways)
    rewrites(flights().sort(keys, ways).filter(LATE), to=below, by=by)
    keeps_rows(with_km(flights().sort("late", nulls_last=False)).filter(col("r") > 0.3))
    keeps_rows(flights().sort(col("id") % 3).filter(LATE).select("gate"))
    leaves(flights().sort("late").filter(SMALL > 0), by=by)  # may fail on other rows
    leaves(flights().sort("late").take(3).filter(LATE), by=by)  # positions would change
    leaves(flights().sort("late").with_columns(km=col("miles") * 2), by=by)


@pytest.mark.law
def test_segment_before_repeat() -> None:
    by = [segment_before_repeat]
    rewrites(flights().repeat(3).filter(LATE), to=flights().filter(LATE).repeat(3), by=by)
    rewrites(flights().repeat().filter(LATE), to=flights().filter(LATE).repeat(), by=by)
    leaves(with_km(flights().repeat(2)), by=by)  # every pass draws anew
    leaves(flights().repeat(2).with_columns(s=SMALL), by=by)


@pytest.mark.law
def test_an_endless_repeat_does_not_end_at_a_pass_that_a_filter_empties_by_chance() -> None:
    by = [segment_before_repeat]
    one = flights().shuffle().take(1)
    leaves(one.repeat().filter(col("id") > 15), by=by)
    leaves(flights().filter(dml.random() < 0.1).repeat().filter(col("id") > 15), by=by)
    leaves(flights().shuffle(9).batch(5, drop_last=True).repeat().filter(col("id") > 15), by=by)
    rewrites(one.repeat(4).filter(col("id") > 15), to=one.filter(col("id") > 15).repeat(4), by=by)
    rewrites(
        one.repeat().with_columns(k=col("id") * 2),
        to=one.with_columns(k=col("id") * 2).repeat(),
        by=by,
    )
    first = flights().shuffle().agg(id=col("id").first())
    leaves(first.repeat().filter(col("id") > 15), by=by)
    rows = list(first.repeat().filter(col("id") > 15).take(4))
    assert len(rows) == 4
    until = flights().take_while(col("id") < 18)
    rewrites(until.repeat().filter(col("id") > 15), to=until.filter(col("id") > 15).repeat(), by=by)
    whole = flights().shuffle()
    rewrites(whole.repeat().filter(col("id") > 15), to=whole.filter(col("id") > 15).repeat(), by=by)


@pytest.mark.law
def test_slice_before_batch() -> None:
    by = [slice_before_batch]
    rewrites(flights().batch(4).take(3), to=flights().take(12).batch(4), by=by)
    rewrites(flights().batch(4).skip(3), to=flights().skip(12).batch(4), by=by)
    for n in (0, 5, 6, 7):  # six batches, the last with three rows
        for drop_last in (False, True):
            keeps_rows(flights().batch(4, drop_last=drop_last).take(n))
            keeps_rows(flights().batch(4, drop_last=drop_last).skip(n))
    leaves(flights().batch(4).filter(LATE).take(3), by=by)  # empty batches do not count
    leaves(flights().batch(4).shuffle(2).take(3), by=by)


@pytest.mark.law
def test_skip_before_take() -> None:
    by = [skip_before_take]
    rewrites(flights().take(9).skip(4), to=flights().skip(4).take(5), by=by)
    rewrites(flights().take(4).skip(9), to=flights().skip(9).take(0), by=by)
    leaves(flights().skip(4).take(9), by=by)


@pytest.mark.law
def test_merge_takes() -> None:
    rewrites(flights().take(9).take(4), to=flights().take(4), by=[merge_takes])
    rewrites(flights().take(4).take(9), to=flights().take(4), by=[merge_takes])
    leaves(flights().take(9).filter(LATE).take(4), by=[merge_takes])


@pytest.mark.law
def test_merge_skips() -> None:
    rewrites(flights().skip(9).skip(4), to=flights().skip(13), by=[merge_skips])
    leaves(flights().skip(9).filter(LATE).skip(4), by=[merge_skips])


@pytest.mark.law
def test_drop_noop_position() -> None:
    by = [drop_noop_position]
    rewrites(flights().skip(0), to=flights(), by=by)
    leaves(flights().shuffle(1), by=by)  # a shuffle is where types settle
    leaves(flights().skip(1).take(0), by=by)
    leaves(flights().repeat(1).with_columns(r=dml.random()), by=by)  # a pass makes other row ids


@pytest.mark.law
def test_drop_overruled_shuffle() -> None:
    by = [drop_overruled_shuffle]
    twice = flights().shuffle(5, seed=1).shuffle(seed=2)
    assert not any(
        isinstance(n, ShuffleWindow) for n in normalize(twice._node, RuleTrace()).chain()
    )
    keeps_rows(twice)
    keeps_rows(flights().shuffle(seed=1).filter(LATE).shuffle(seed=2))
    keeps_rows(flights().shuffle(window="atoms", size=2).shuffle())
    leaves(flights().shuffle(seed=1).shuffle(5), by=by)
    leaves(flights().shuffle(5).take(7).shuffle(), by=by)  # which seven is up to the first


@pytest.mark.law
def test_what_moves_keeps_its_place_among_the_random_operators() -> None:
    """Keys are those of the written pipeline, whatever was merged, moved or dropped below."""
    ds = flights().shuffle(4).with_columns(a=dml.random()).shuffle().filter(dml.random() < 0.8)
    ds = ds.repeat(2).shuffle(6).with_columns(b=dml.random()).take(30).shuffle(3)
    keeps_rows(ds)
    children = flights().repeat(2).flat_map(lambda row: [row, row]).filter(LATE)
    keeps_rows(children.repeat(2).with_columns(b=dml.random()).shuffle())


@pytest.mark.law
@pytest.mark.parametrize("n", [0, 1])
def test_nothing_and_one_pass(n: int) -> None:
    keeps_rows(flights().repeat(n).filter(LATE).with_columns(z=1))
    keeps_rows(flights().take(n).repeat(2).filter(LATE))
    keeps_rows(flights().take(n).repeat().filter(col("id") < 9).take(3))


@pytest.mark.law
def test_filters_stay_above_batches() -> None:
    keeps_rows(flights().batch(4).filter(LATE).take(2))
    keeps_rows(flights().batch(4).filter(LATE).skip(1))
    keeps_rows(flights().batch(4).filter(LATE).shuffle(2))
    keeps_rows(with_km(flights().batch(4).filter(LATE)).map(dict))
    leaves(flights().batch(4).filter(LATE), by=[columns_before_position, drop_identity_segment])


def test_drop_second_cache() -> None:
    rewrites(flights().cache().cache(), to=flights().cache(), by=[drop_second_cache])
    leaves(flights().cache().shuffle(5).cache(), by=[drop_second_cache])


@pytest.mark.law
def test_nothing_crosses_a_cache() -> None:
    made = flights().cache().filter(LATE).select("miles").take(3)
    plan = keeps_rows(made)
    assert [type(node).__name__ for node in plan.stream] == ["Cache", "Segment", "Take"]
    assert plan.stage.columns == flights().schema.names


@pytest.mark.law
def test_merge_shards() -> None:
    by = [merge_shards]
    rewrites(flights().shard(3, 1).shard(2, 1), to=flights().shard(6, 4), by=by)
    for index in range(6):
        keeps_rows(flights().shard(2, index % 2).shard(3, index // 2).batch(2))
    leaves(flights().shard(3, 1).filter(LATE).shard(2, 1), by=by)
