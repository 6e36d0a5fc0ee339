"""Test the segment operator: filters and columns computed in one pass."""

from __future__ import annotations

import pytest

import dml
from dml import col
from dml.ops.row.segment import Segment
from dml.optimize.phases import optimize
from tests.expr.checks import holds, node_of, numbers


@pytest.mark.law
def test_a_run_of_filters_and_columns_is_one_segment() -> None:
    ds = (
        numbers(12)
        .with_columns(y=col("x") * 2)
        .filter(col("y") > 4)
        .with_columns(z=col("y") + col("x"), u=dml.random())
        .filter(col("u") < 0.9)
        .select("z", "u")
    )
    plan = optimize(node_of(ds), 0).plan
    (segment,) = [step for step in plan.stage.steps if isinstance(step, Segment)]
    assert segment.reads == {"x"}
    assert segment.draws
    assert segment.total
    assert holds(ds) > 0


def test_a_strict_cast_is_not_total() -> None:
    ds = numbers(3).with_columns(y=col("x").cast("int8"))
    plan = optimize(node_of(ds), 0).plan
    assert not any(step.total for step in plan.stage.steps if isinstance(step, Segment))
    assert holds(ds) == 3
