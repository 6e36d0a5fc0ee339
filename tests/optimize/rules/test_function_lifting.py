"""Test the rules that turn row functions into expressions."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import dml
from dml.ops.row.lifted import LiftedFilter, LiftedMap
from dml.optimize.engine import RuleTrace
from dml.optimize.phases import normalize
from dml.optimize.rules.function_lifting import lift_filter, lift_map
from dml.testing.plans import keeps_rows, leaves
from tests.optimize.tables import flights

Row = dict[str, Any]


def farther(row: Row) -> Row:
    return {"id": row["id"], "far": row["miles"] * 2 + 1}


def far(row: Row) -> bool:
    return bool(row["miles"] > 40)


def told(row: Row) -> Row:
    sys.stdout.flush()
    return row


def kinds(ds: dml.Dataset) -> set[type]:
    return {type(node) for node in normalize(ds._node, RuleTrace()).walk()}


@pytest.mark.law
def test_lift_map() -> None:
    whole = flights().select("id", "miles").cast({"miles": "int64"})
    assert LiftedMap in kinds(whole.map(farther))
    keeps_rows(whole.map(farther))
    keeps_rows(whole.map(farther).shuffle().skip(3).take(9))
    leaves(whole.map(told), by=[lift_map])  # it does something besides
    leaves(whole.map(told).map(farther), by=[lift_map])  # no columns are known there
    leaves(whole.map(farther, num_gpus=1), by=[lift_map])  # it is called where the resources are


@pytest.mark.law
def test_lift_filter() -> None:
    whole = flights().select("id", "miles").cast({"miles": "int64"})
    assert LiftedFilter in kinds(whole.filter(lambda row: row["miles"] > 40))
    keeps_rows(whole.filter(lambda row: row["miles"] > 40).take(5))
    leaves(whole.filter(lambda row: bool(told(row))), by=[lift_filter])
    leaves(whole.map(told).filter(far), by=[lift_filter])
    leaves(whole.filter(far, concurrency=1), by=[lift_filter])
