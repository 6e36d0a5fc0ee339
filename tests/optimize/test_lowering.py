"""Test lowering: which operators run on blocks, and which on the ordered stream."""

from __future__ import annotations

from typing import Any

import pytest

from dml import col
from dml.errors import InternalError
from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.ops.row.rowwise import Env
from dml.ops.row.segment import Segment
from dml.optimize.explain.physical_text import physical_text
from dml.optimize.lowering import plan_of
from dml.optimize.node_rebuild import segment
from dml.optimize.phases import optimize
from dml.physical.operators import RunChoices
from tests.optimize.tables import flights


def test_row_local_operators_run_on_blocks_up_to_the_first_other_one() -> None:
    late = flights().filter(col("late") > 0).map(dict)
    plan = optimize(late.shuffle(4).filter(col("id") > 3).batch(2).map(dict)._node, 0).plan
    assert len(plan.stage.steps) == 2
    assert len(plan.stream) == 4
    assert plan.batched
    assert plan.operators[0] is plan.stage.source


def kept(row: dict[str, Any]) -> bool:
    return len(str(row)) % 3 > 0


def widened(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "wide": 1}


def test_stages_are_cut_where_needs_change() -> None:
    ds = flights().filter(col("late") > 0).map(widened).filter(kept, num_gpus=1)
    ds = ds.map(widened, num_gpus=1).map(widened, num_gpus=1, concurrency=2).map(widened)
    plan = optimize(ds.shuffle(4).batch(2)._node, 0).plan
    assert [type(step).__name__ for step in plan.stage.steps] == ["Segment", "LiftedMap"]
    assert [[type(step).__name__ for step in link.steps] for link in plan.links] == [
        ["FilterRows", "MapRows"], ["MapRows"], ["LiftedMap"],
    ]  # fmt: skip
    wanted = [Needs(num_gpus=1.0), Needs(num_gpus=1.0, concurrency=2), Needs()]
    assert [link.needs for link in plan.links] == wanted
    assert len(plan.on_blocks) == 7
    assert [type(node).__name__ for node in plan.stream] == ["ShuffleWindow", "Batch"]
    assert plan.operators == (*plan.on_blocks, *plan.stream)


def test_a_first_step_with_needs_leaves_the_first_stage_to_read() -> None:
    plan = optimize(flights().map(widened, num_cpus=2)._node, 0).plan
    assert plan.stage.steps == ()
    assert [type(step).__name__ for step in plan.links[0].steps] == ["MapRows"]
    usual = optimize(flights().map(widened, num_cpus=1)._node, 0).plan
    assert usual.links == ()


def test_what_moves_into_the_source_moves_past_no_stage() -> None:
    ds = flights().filter(col("id") > 3).map(widened, num_cpus=2).filter(col("wide") > 0)
    plan = optimize(ds.select("wide")._node, 0).plan
    assert plan.stage.predicate
    assert plan.stage.columns == flights()._node.schema.names  # the function may read any
    assert len(plan.links) == 2
    taken = optimize(flights().map(widened, num_cpus=2).take(3)._node, 0).plan
    assert taken.stage.source.unit_count == 1


def test_explain_numbers_the_stages_from_the_second_on() -> None:
    ds = flights().filter(col("id") > 3).map(widened, num_cpus=2).flat_map(lambda row: [row])
    text = ds.explain("physical")
    kinds = [line[:10].strip() for line in text.split("\n")]
    assert kinds[:5] == ["deliver", "slices", "slices", "block", "scan"]
    plan = optimize(ds._node, 0).plan
    text = physical_text(plan, {plan: RunChoices(whole_units=True)})
    kinds = [line[:10].strip() for line in text.split("\n")]
    assert kinds[:5] == ["deliver", "block 3", "block 2", "block", "scan"]
    assert "num_cpus=2" in text
    assert "num_cpus" not in ds.explain("normalized")
    assert "in other tasks, on what each gave: MapRows(widened" in ds.explain("graph")


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
        plan_of(wrong, "")


def env_of(node: Node) -> Env:
    return tuple((name, col(name).value) for name in node.schema)


def test_segments_are_typed_when_the_plan_is_made() -> None:
    plan = optimize(flights().with_columns(z=col("id") + 1)._node, 0).plan
    (step,) = plan.stage.steps
    assert isinstance(step, Segment)
    assert step.work.programs.made
