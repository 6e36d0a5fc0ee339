"""Test the list of optimizer phases: in order, each rule listed once and described."""

from __future__ import annotations

from dml import col, lit
from dml.optimize import phases
from dml.optimize.engine import RuleTrace
from dml.optimize.phases import RULE_SETS, normalize, optimize
from dml.optimize.rule import Rule
from dml.optimize.rules.families import NAMED
from tests.optimize.tables import flights

RULES = [rule for rule in NAMED.values() if isinstance(rule, Rule)]


def test_every_rule_has_a_law_and_a_source() -> None:
    for rule in RULES:
        assert rule.law.endswith("."), rule.name
        assert rule.source
        assert rule.kinds


def test_the_normal_form_absorbs_laws_and_choices_do_not() -> None:
    laws = {*phases.SHAPES, *phases.VALUES}.union(*(loaded().shapes for _, loaded in RULE_SETS))
    assert {rule for rule in RULES if rule.absorbed} == laws


def test_a_normal_form_is_its_own() -> None:
    ds = flights().filter(lit(1) < 2).with_columns(z=col("id") + 1).take(5).cast({"z": "float64"})
    once = normalize(ds._node, RuleTrace())
    again = RuleTrace()
    assert normalize(once, again) is once
    assert again.applied == []


def test_what_the_second_half_finds_lets_the_first_move_on() -> None:
    ds = flights().take(5).cast({"miles": "int32"}).filter(lit(1) < 2).take(9)
    assert [type(node).__name__ for node in normalize(ds._node, RuleTrace()).chain()] == [
        "Memory",
        "Segment",
        "Take",
    ]


def test_written_and_chosen_are_both_kept() -> None:
    ds = flights().take(99)
    stations = optimize(ds._node, 0)
    assert stations.written is ds._node
    assert len(stations.chosen.chain()) == 1
    assert len(stations.normalized.chain()) == 2
