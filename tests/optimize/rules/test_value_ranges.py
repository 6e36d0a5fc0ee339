"""Test that checks which cannot fail for any row are dropped, and no others."""

from __future__ import annotations

from typing import Any

import pytest

import dml
from dml.ops.row.lifted import LiftedNode
from dml.optimize.phases import optimize
from dml.optimize.rules.value_ranges import drop_needless_checks
from dml.testing.plans import keeps_rows, leaves

Row = dict[str, Any]


def checked(ds: dml.Dataset) -> list[bool]:
    """For each function that is computed, whether anything is checked."""
    chosen = optimize(ds._node, 0).chosen
    return [bool(node.checks) for node in chosen.chain() if isinstance(node, LiftedNode)]


def twice(row: Row) -> Row:
    return {"x": row["id"] * 2 + 1}


def third(row: Row) -> bool:
    return bool(row["x"] % 3 == 0)


@pytest.mark.law
def test_drop_needless_checks() -> None:
    ds = dml.range(1000).map(twice).filter(third)
    assert checked(ds) == [False, False]
    assert checked(dml.range(1000).shuffle(seed=1).take(90).map(twice).filter(third)) == [False] * 2
    keeps_rows(ds)
    leaves(dml.range(2**62 - 9, 2**62).map(twice), by=[drop_needless_checks])
    leaves(dml.range(9).map(lambda row: {"x": 1 // (row["id"] - 4)}), by=[drop_needless_checks])
    leaves(dml.from_dict({"id": [1, None]}).map(twice), by=[drop_needless_checks])


@pytest.mark.parametrize("start", [-(2**62), 2**62 - 3])
def test_at_the_edge_of_64_bits(start: int) -> None:
    ds = dml.range(start, start + 3).map(lambda row: {"x": row["id"] * 2})
    assert checked(ds) == [False]
    assert [row["x"] for row in ds.iter_rows()] == [2 * start, 2 * start + 2, 2 * start + 4]
    assert checked(dml.range(start - 1, start + 5).map(lambda row: {"x": row["id"] * 2})) == [True]


def test_the_rule_has_a_switch() -> None:
    ds = dml.range(99).map(twice)
    off = optimize(ds._node, 0, without=frozenset({"drop_needless_checks"}))
    on = optimize(ds._node, 0)
    assert [node.checks for node in off.chosen.chain() if isinstance(node, LiftedNode)] != [()]
    assert on.plan.name == off.plan.name
