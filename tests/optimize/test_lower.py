"""This file tests lowering: what runs on blocks, what sees the stream."""

from __future__ import annotations

import pytest

from dml import col
from dml.errors import InternalError
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.rowwise import Env
from dml.optimize.lower import described, plan_of
from dml.optimize.phases import optimize
from dml.optimize.rebuild import segment
from tests.optimize.tables import flights


def test_row_local_operators_run_on_blocks_up_to_the_first_other_one() -> None:
    late = flights().filter(col("late") > 0).map(dict)
    plan = optimize(late.shuffle(4).filter(col("id") > 3).batch(2).map(dict)._node, 0).plan
    steps, stream = described(plan)["steps"], described(plan)["stream"]
    assert len(steps) == 2  # type: ignore[arg-type]
    assert len(stream) == 4  # type: ignore[arg-type]
    assert plan.batched
    assert plan.operators[0] is plan.stage.source


def test_batches_are_never_cut_into_blocks() -> None:
    plan = optimize(flights().batch(2).filter(col("id") > 3)._node, 0).plan
    assert plan.stage.steps == ()


def test_unoptimized_is_as_written() -> None:
    ds = flights().with_columns(z=col("id") + 1).skip(2).filter(col("z") > 3).select("z")
    stations = optimize(ds._node, 0, rewriting=False)
    assert stations.chosen is ds._node
    assert list(stations.plan.operators) == ds._node.chain()
    assert stations.plan.stage.columns == ds._node.chain()[0].schema.names


def test_a_type_that_a_rewriting_changed_is_found_before_anything_runs() -> None:
    node = flights().with_columns(z=col("id") + 1)._node
    wrong = segment(node.inputs[0], (), (*env_of(node.inputs[0]), ("z", col("late").value)), node)
    with pytest.raises(InternalError, match="changed a type"):
        plan_of(wrong, "", "", optimized=True)


def env_of(node: Node) -> Env:
    return tuple((name, col(name).value) for name in node.schema)


def test_segments_are_typed_when_the_plan_is_made() -> None:
    plan = optimize(flights().with_columns(z=col("id") + 1)._node, 0).plan
    (step,) = plan.stage.steps
    assert isinstance(step, Segment)
    assert step.work.programs.made
