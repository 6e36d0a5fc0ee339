"""Test the list of optimizer phases: in order, each rule listed once and described."""

from __future__ import annotations

from dml import col, lit
from dml.optimize.engine import RuleTrace
from dml.optimize.phases import CHOICES, NORMAL, SHAPES, VALUES, normalize, optimize
from tests.optimize.tables import flights


def test_every_rule_has_a_law_and_a_source() -> None:
    rules = (*NORMAL, *CHOICES)
    assert len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.law.endswith("."), rule.name
        assert rule.source
        assert rule.kinds


def test_the_normal_form_absorbs_laws_and_choices_do_not() -> None:
    assert all(rule.absorbed for rule in (*SHAPES, *VALUES))
    assert not any(rule.absorbed for rule in CHOICES)


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
