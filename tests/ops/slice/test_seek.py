"""Test seeking: a skip that starts to read where its rows begin."""

from __future__ import annotations

import pytest

from dml.ops.slice.seek import Seek
from dml.optimize.phases import optimize
from dml.testing.executions import PLAIN, WRITTEN, elements
from tests.expr.checks import UNUSED, node_of, numbers


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_plans_seek_and_states_are_those_of_skip(n: int) -> None:
    ds = numbers().skip(n)
    plan = optimize(node_of(ds), 0).plan
    assert any(isinstance(step, Seek) for step in plan.stream)
    run = elements(node_of(ds), PLAIN, UNUSED)
    assert next(run)["x"] == n
    state = run.state_dict()
    written = elements(node_of(ds), WRITTEN, UNUSED)
    position = state["position"]
    assert written.state_dict()["position"] is None
    rest = elements(node_of(ds), PLAIN, UNUSED, state=state)
    assert [row["x"] for row in rest] == list(range(n + 1, 10))
    assert position is not None
