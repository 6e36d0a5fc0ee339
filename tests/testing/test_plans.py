"""Test that the assertions about rules detect wrong rules."""

from __future__ import annotations

import pytest

from dml import col
from dml.expr.node import Node
from dml.ops.row.segment import Segment
from dml.ops.slice.take import Take
from dml.optimize.node_rebuild import moved
from dml.optimize.rule import rule
from dml.optimize.rules.order import merge_takes
from dml.testing.plans import leaves, rewrites
from tests.optimize.tables import flights

LATE = col("late") > 0


@rule(Segment, source="Ray, PR 66143")
def filter_before_take(node: Node) -> Node | None:
    """Wrong: other rows are taken."""
    match node:
        case Segment(input=Take() as lower):
            return moved(lower, moved(node, lower.inputs[0], node), node)
    return None


def test_a_rule_that_changes_rows_is_caught() -> None:
    wrong = [filter_before_take]
    with pytest.raises(AssertionError, match="rewritten: "):
        rewrites(flights().take(5).filter(LATE), to=flights().filter(LATE).take(5), by=wrong)


def test_a_rule_that_makes_something_else_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"Take\(4\)"):
        rewrites(flights().take(9).take(4), to=flights().take(5), by=[merge_takes])


def test_a_rule_that_stays_silent_is_caught() -> None:
    with pytest.raises(AssertionError, match="merge_takes did not fire"):
        rewrites(flights().take(9), to=flights().take(9), by=[merge_takes])


def test_a_rule_that_should_leave_is_caught() -> None:
    with pytest.raises(AssertionError, match="merge_takes fired"):
        leaves(flights().take(9).take(4), by=[merge_takes])
