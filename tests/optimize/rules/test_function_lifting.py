"""Test the rules that turn row functions into expressions."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import dml
from dml import col
from dml.ops.row.lifted import LiftedFilter, LiftedMap
from dml.optimize.engine import RuleTrace
from dml.optimize.phases import normalize, optimize
from dml.optimize.rules.function_lifting import filter_before_lifted_map, lift_filter, lift_map
from dml.optimize.rules.normal_form import drop_identity_segment
from dml.testing.plans import keeps_rows, leaves, node_of, rewrites
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


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["id"], "late": row["miles"] * 2, "gate": row["gate"]}


@pytest.mark.law
def test_filter_before_lifted_map() -> None:
    by = [filter_before_lifted_map, lift_map, drop_identity_segment]
    kept, high = flights().filter(col("id") > 3), col("key") > 3
    rewrites(flights().map(doubled).filter(high), to=kept.map(doubled), by=by)
    keeps_rows(
        flights().map(doubled).filter(high & (col("late") > 0) & (col("gate") != "g1")).take(4)
    )
    for left in (
        flights().map(doubled).filter(col("late") > 0),  # made by the function
        flights().map(doubled).filter(dml.random() < 0.5),
        flights().map(doubled, on_error="skip").filter(high),  # losses are counted
        flights().map(unproven, schema={"key": "int64", "n": "int64"}).filter(high),
    ):
        assert by[0].name not in optimize(node_of(left), 0).trace.names()
        keeps_rows(left)


def unproven(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["id"], "n": sum(1 for _ in row)}
