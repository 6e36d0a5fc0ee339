"""Test the rule engine: it terminates, detects broken promises, and traces every step."""

from __future__ import annotations

import pytest

from dml import col
from dml.errors import InternalError
from dml.expr.node import Node
from dml.ops.row.segment import Segment
from dml.ops.slice.skip import Skip
from dml.ops.slice.take import Take
from dml.optimize.engine import Engine, RuleTrace
from dml.optimize.phases import SHAPES, normalize
from dml.optimize.rule import rule
from dml.optimize.rules.order import columns_before_position, merge_takes
from tests.optimize.tables import flights


@rule(Take, source="a mistake")
def drop_a_column(node: Node) -> Node | None:
    """take is something else."""
    match node:
        case Take(input=given):
            return Segment(given, (), (("id", col("id").value),))
    return None


@rule(Take, source="a mistake")
def ever_more(node: Node) -> Node | None:
    """take(n) is take(n + 1)."""
    match node:
        case Take():
            return node.replace(n=node.n + 1)
    return None


@rule(Skip, source="a test")
def never(node: Node) -> Node | None:
    """Nothing."""
    return None


def test_a_rule_that_changes_the_schema_is_named() -> None:
    with pytest.raises(InternalError, match="drop_a_column changed the schema"):
        Engine([drop_a_column], RuleTrace()).rewrite(flights().take(3)._node)


def test_a_rule_that_does_not_settle_is_named() -> None:
    with pytest.raises(InternalError, match="ever_more does not settle"):
        Engine([ever_more], RuleTrace()).rewrite(flights().take(3)._node)


def test_what_no_rule_changes_is_the_same_object() -> None:
    node = flights().skip(3).take(4)._node
    assert Engine([never], RuleTrace()).rewrite(node) is node


def test_the_trace_tells_every_step() -> None:
    ticks = iter(range(100))
    trace = RuleTrace(lambda: next(ticks) / 1e6)
    Engine([merge_takes], trace).rewrite(flights().take(9).take(4).take(6)._node)
    assert trace.names() == ["merge_takes", "merge_takes"]
    assert [entry.after.title() for entry in trace.applied] == ["Take(4)", "Take(4)"]
    assert all(entry.micros == pytest.approx(1) for entry in trace.applied)


def test_the_order_of_rules_does_not_matter() -> None:
    ds = flights().take(20).with_columns(z=col("id") + 1).filter(col("z") > 3).shuffle(3).skip(2)
    ds = ds.with_columns(w=col("z") * 2).repeat(2).filter(col("w") > 9).select("w").batch(2).take(2)
    forwards = Engine(SHAPES, RuleTrace()).rewrite(ds._node)
    backwards = Engine(SHAPES[::-1], RuleTrace()).rewrite(ds._node)
    assert forwards == backwards


@pytest.mark.law
@pytest.mark.parametrize("n", [300, 1000])
def test_long_chains_do_not_recurse(n: int) -> None:
    ds = flights()
    for i in range(n):
        ds = ds.shuffle(3, seed=i)
    moved = Engine([*SHAPES], RuleTrace()).rewrite(ds.with_columns(z=col("id") + 1)._node)
    assert isinstance(moved.chain()[1], Segment)
    alternating = flights()
    for _ in range(n // 2):
        alternating = alternating.map(dict).take(9)
    assert len(normalize(alternating.batch(3)._node, RuleTrace()).chain()) > n // 2


def test_a_rewritten_node_knows_its_line() -> None:
    ds = flights().take(5).with_columns(z=col("id") + 1)
    made = Engine([*SHAPES, columns_before_position], RuleTrace()).rewrite(ds._node)
    assert all("test_engine.py" in node.where for node in made.chain()[1:])
