"""The tree of operators runs every operator of a plan in one place, whatever the run chooses."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import dml
from dml import Dataset, col
from dml.expr.node import Node
from dml.optimize.explain.physical_text import tree_of
from dml.optimize.phases import optimize
from dml.physical.lanes import takes_long
from dml.physical.operators import (
    ClusterExchange,
    Coalesce,
    LateScan,
    Merge,
    Ordered,
    PhysicalOperator,
    RunChoices,
    SharedStream,
    SliceSteps,
    SourceScan,
    TaskSteps,
    UnitCache,
    UnitLookup,
)
from dml.physical.plan import Plan
from dml.testing.strategies import pipeline
from dml.testing.strategies_data import DataPool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> DataPool:
    return DataPool(tmp_path_factory.mktemp("pool"), size=4)


def drawn_choices(draw: random.Random) -> RunChoices:
    some = iter(lambda: draw.random() < 0.5, None)
    return RunChoices(
        sliced=next(some),
        whole_units=next(some),
        looks=next(some),
        free=next(some),
        samples=draw.choice([0, 3]),
    )


def tree(ds: Dataset, choices: RunChoices | None = None) -> PhysicalOperator:
    plan = optimize(ds._node, 0).plan
    return tree_of(plan, dict.fromkeys(plan.all, choices or RunChoices()))


def ordered_nodes(top: PhysicalOperator) -> list[Node]:
    """The operators on the first input, source first."""
    return [node for each in reversed(list(top.chain())) for node in each.nodes]


def trees(plan: Plan, top: PhysicalOperator) -> Iterator[tuple[Plan, PhysicalOperator]]:
    yield plan, top
    for each in top.chain():
        for below, other in zip(_beside(plan, each), each.inputs[1:], strict=True):
            yield from trees(below, other)


def _beside(plan: Plan, operator: PhysicalOperator) -> tuple[Plan, ...]:
    number = operator.first - len(plan.on_blocks)
    return plan.beside[number] if len(operator.inputs) > 1 else ()


@pytest.mark.law
@pytest.mark.parametrize("number", range(150))
def test_every_operator_runs_once_in_its_order(number: int, pool: DataPool) -> None:
    draw = random.Random(number)
    plan = optimize(pipeline(draw, pool).dataset._node, 0).plan
    choices = drawn_choices(draw)
    found = list(trees(plan, tree_of(plan, dict.fromkeys(plan.all, choices))))
    assert len(found) == len({each for each, _ in found}) == len(list(plan.all))
    for each, below in found:
        assert ordered_nodes(below) == list(each.operators)
        ordinals = [op.first + n for op in below.chain() for n in reversed(range(len(op.nodes)))]
        assert ordinals == list(reversed(range(len(each.operators))))
        slices = [op for op in below.chain() if isinstance(op, SliceSteps)]
        assert not slices or any(takes_long(node) for op in slices for node in op.nodes)
        staged = [op for op in slices if op.first < len(each.on_blocks)]
        assert not (staged and choices.whole_units)


def f(row: dict[str, int]) -> dict[str, int]:
    return {"x": row["id"] + len(str(row))}


def kinds(top: PhysicalOperator) -> list[type[PhysicalOperator]]:
    return [type(each) for each in top.chain()]


def test_choices_of_the_run_shape_the_tree() -> None:
    rows = dml.range(100)
    assert kinds(tree(rows.map(f).batch(4)))[:2] == [Ordered, SliceSteps]
    units = RunChoices(whole_units=True)
    assert kinds(tree(rows.map(f).batch(4), units))[:2] == [Ordered, TaskSteps]
    batches = rows.batch(4).map(f)
    assert kinds(tree(batches))[0] is SliceSteps
    assert kinds(tree(batches, RunChoices(sliced=False)))[0] is Ordered
    assert kinds(tree(rows.sort("id").batch(4), RunChoices(exchanged=1)))[1] is ClusterExchange
    assert kinds(tree(rows.zip(dml.from_dict({"n": [1, 2]}))))[0] is Merge
    shared = frozenset({rows.cache()._node.digest})
    assert kinds(tree(rows.cache().batch(2), RunChoices(shared=shared)))[1] is SharedStream


def test_units_are_read_together_where_batches_are_cut() -> None:
    kept = dml.range(100).map(lambda row: {"y": row["id"] % 3})
    some = dml.range(100).filter(col("id") > 3)
    for ds, units in ((kept, 2), (some, 4)):
        (found,) = (each for each in tree(ds.batch(4)).chain() if isinstance(each, Coalesce))
        assert found.units == units
        assert Coalesce not in kinds(tree(ds))
        assert Coalesce not in kinds(tree(ds.map(f).batch(4)))
        assert Coalesce not in kinds(tree(ds.batch(4), RunChoices(samples=3)))


def test_a_cache_of_units_is_an_operator_of_its_own() -> None:
    rows = dml.range(100).filter(col("id") > 3)
    kept = rows.cache("disk").with_columns(y=col("id") + 1)
    assert kinds(tree(kept)) == [TaskSteps, UnitCache, TaskSteps, SourceScan]
    assert kinds(tree(kept.cache("disk").cache("disk")))[:3] == [UnitCache, UnitCache, TaskSteps]
    assert UnitCache not in kinds(tree(rows.shuffle(9).cache("disk")))


def test_rows_that_others_may_have_are_looked_up_above_the_last_cache_of_units() -> None:
    rows, looks = dml.range(100).filter(col("id") > 3), RunChoices(looks=True)
    above = rows.cache("disk").with_columns(y=col("id") + 1)
    found = [UnitLookup, UnitCache, TaskSteps, SourceScan]
    assert kinds(tree(above.shuffle(9).cache("disk"), looks))[2:] == found
    assert UnitLookup not in kinds(tree(rows.cache("disk").batch(4), looks))
    whole = tree(dml.range(100).shuffle().with_columns(y=col("id") + 1).cache(), looks)
    (scan,) = (each for each in whole.chain() if isinstance(each, SourceScan))
    assert scan.stage.order is not None
    assert UnitLookup not in kinds(whole)


def test_a_filter_over_a_file_is_a_late_scan(tmp_path: object) -> None:
    dml.range(100).with_columns(y=col("id") + 1).write_parquet(str(tmp_path))
    ds = dml.read_parquet(str(tmp_path)).filter(col("y") > 3)
    assert kinds(tree(ds))[-1] is LateScan
