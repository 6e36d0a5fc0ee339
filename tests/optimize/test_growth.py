"""Test that optimization time grows no faster than the number of operators."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import dml
from dml import col
from dml.expr.node import Node
from dml.optimize import phases
from dml.optimize.phases import optimize
from dml.optimize.rule import Rule
from dml.testing.plans import node_of
from tests.optimize.tables import flights

Shape = Callable[[int], dml.Dataset]
# Twice the operators may cost so many times as much; quadratic would be four times.
LINEAR = 2.3


def mixed(n: int) -> dml.Dataset:
    """What people write, over and over."""
    ds = flights()
    for i in range(n // 4):
        ds = ds.with_columns(z=col("id") + i).filter(col("late") > -i).take(1000 - i)
        ds = ds.shuffle(4, seed=i) if i % 3 else ds.select("id", "late", "miles", "gate")
    return ds.batch(4)


def dependent(n: int) -> dml.Dataset:
    """Every column computed from the one before."""
    ds = flights()
    for i in range(n):
        ds = ds.with_columns(late=col("late") * 0.5 + i)
    return ds


def wide(n: int) -> dml.Dataset:
    """Filters and columns over forty columns."""
    ds = flights().with_columns(**{f"c{i}": col("id") + i for i in range(40)})
    for i in range(n // 2):
        ds = ds.with_columns(**{f"c{i % 40}": col("late") + i}).filter(col(f"c{i * 7 % 40}") > i)
    return ds


def several(n: int) -> dml.Dataset:
    """Inputs beside inputs, with filters and slices above all of them."""
    others = [flights().filter(col("id") > i).take(50 + i) for i in range(n // 2)]
    return others[0].concat(*others[1:]).filter(col("late") > 0).select("id").take(9)


SHAPES: dict[str, Shape] = {
    "mixed": mixed,
    "dependent": dependent,
    "wide": wide,
    "several": several,
}


def attempts(node: Node, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a rule is tried on a node."""
    tried = 0

    def counting(rule: Rule) -> Rule:
        def rewrite(each: Node) -> Node | None:
            nonlocal tried
            tried += 1
            return rule.rewrite(each)

        return dataclasses.replace(rule, rewrite=rewrite)

    with monkeypatch.context() as patched:
        for name in ("SHAPES", "VALUES", "CHOICES"):
            patched.setattr(phases, name, tuple(map(counting, getattr(phases, name))))
        optimize(node, 0)
    return tried


def calls(node: Node) -> int:
    """How many calls of Python functions optimising makes."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        optimize(node, 0)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.law
@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_with_the_operators(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (node_of(SHAPES[shape](n)) for n in (300, 600))
    assert attempts(large, monkeypatch) < LINEAR * attempts(small, monkeypatch)
    assert calls(large) < LINEAR * calls(small)


def test_rules_are_tried_where_they_may_fit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that says what it stands over costs nothing elsewhere."""
    node = node_of(mixed(200))
    assert attempts(node, monkeypatch) < 8 * 200
