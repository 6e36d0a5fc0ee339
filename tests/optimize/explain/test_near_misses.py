"""Test near misses: operators that a reader expects to move, and why they did not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dml
from dml import col
from dml.optimize.phases import optimize
from dml.optimize.rules.normal_form import MOST_DEPTH
from tests.optimize.tables import flights, parquet

LATE = col("late") > 0
SMALL = (col("id") * 20).cast("int8")


def same(row: dict[str, object]) -> dict[str, object]:
    sys.stdout.flush()
    return row


def deep() -> dml.Dataset:
    ds = flights()
    for i in range(MOST_DEPTH):
        ds = ds.with_columns(id=col("id") + i)
    return ds


CASES = {
    "take": (flights().take(3).filter(LATE), "filter not moved below Take(3)", "positions"),
    "skip": (flights().skip(3).filter(LATE), "filter not moved below Skip(3)", "positions"),
    "window": (flights().shuffle(3).filter(LATE), "filter not moved below ShuffleW", "windows"),
    "batch": (flights().batch(3).filter(LATE), "filter not moved below Batch(3)", "other rows"),
    "passes": (
        flights().repeat(2).with_columns(r=dml.random()), "columns not moved below R", "every pass",
    ),
    "endless": (
        flights().shuffle().take(1).repeat().filter(LATE), "filter not moved below R", "empty pass",
    ),
    "cast": (flights().take(3).with_columns(s=SMALL), "columns not moved below T", "may fail"),
    "function": (
        flights().map(same, schema=flights().schema).filter(LATE), "below MapRows(", "nothing is",
    ),
    "unknown": (flights().map(same).filter(LATE), "Filter((late > 0)) not merged", "schema={...}"),
    "long": (deep(), "columns not moved below Segment", "too long"),
    "after filter": (flights().filter(LATE).take(3), "Take(3) not moved below S", "rows that pass"),
    "after shuffle": (flights().shuffle(4).take(3), "Take(3) not moved below S", "shuffled ones"),
    "counted": (flights().repeat(2).shuffle(), "not done by reading", "one to one"),
    "sliced": (flights().take(9).shuffle(), "not done by reading", "Take(9) lies between"),
    "resources": (
        flights().map(lambda row: {"id": row["id"]}, num_cpus=2), "not computed as", "are that it",
    ),
    "called": (flights().map(same).shuffle(), "not done by reading", "(same) must be called"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_near_miss_is_told(case: str) -> None:
    ds, what, why = CASES[case]
    found = optimize(ds._node, 0).trace.refused
    assert any(what in each.what and why in each.why for each in found), found
    assert f"refused: {found[0].what}\n  {found[0].why}" in ds.explain("rules")


def test_what_does_not_skip_units_is_told(tmp_path: Path) -> None:
    high = col("id") > 3
    for part, why in ((SMALL > 0, "it may fail"), (dml.random() < 0.5, "it draws")):
        found = optimize(parquet(tmp_path).filter(part & high)._node, 0).trace.refused
        assert [each.why for each in found] == [
            why,
            "it is tried after a part that draws or may fail",
        ]
    (only,) = optimize(parquet(tmp_path).shuffle()._node, 0).trace.refused
    assert "cannot read single rows" in only.why


def test_what_was_done_is_not_refused() -> None:
    ds = flights().with_columns(z=col("id") + 1).filter(LATE).shuffle().repeat(2).batch(3)
    assert optimize(ds._node, 0).trace.refused == []
