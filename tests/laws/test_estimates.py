"""Law: every pipeline that can be drawn has one plausible estimate for each operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from dml.optimize.cost.estimate import Estimate, estimates
from dml.optimize.phases import optimize
from dml.optimize.work_names import work_names
from dml.profile import Profile
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case


def sound(one: Estimate) -> bool:
    """True if the figures are some that a run could show."""
    seconds = one.seconds
    counts = one.rows_in >= 0 and one.rows_out >= 0 and one.bytes_out >= 0
    return counts and (seconds is None or 0 < seconds.typical < math.inf)


@pytest.mark.parametrize("rewriting", [True, False])
def test_every_pipeline_has_estimates(
    pool: DataPool, many: Callable[[int, int], int], rewriting: bool
) -> None:
    for number in range(many(150, 5000)):
        one = case(number, pool)
        stations = optimize(one.node, one.seed, rewriting=rewriting)
        found = estimates(stations.plan, work_names(stations.plan), Profile())
        operators = [node for plan in stations.plan.all for node in plan.operators]
        assert [each.title for each in found] == [node.title() for node in operators], number
        assert [each.ordinal for each in found] == list(range(len(found))), number
        assert not [each for each in found if not sound(each)], number
