"""Test that rebuilt nodes keep valid attributes of their originals, and no outdated ones."""

from __future__ import annotations

import pytest

from dml import col, random
from dml.expr.columns.computation import ComputedSegment
from dml.ops.batch.batch import Batch
from dml.ops.row.segment import Segment
from dml.optimize.node_rebuild import moved, over
from dml.optimize.phases import optimize
from tests.optimize.tables import flights


def test_places_as_written_are_kept() -> None:
    ds = flights().with_columns(a=random()).shuffle(3).repeat(2).shuffle(4)
    node = ds._node
    bare = over(node, lambda _: flights().with_columns(a=random())._node)
    assert (bare.ordinal, bare.level, bare.where) == (node.ordinal, node.level, node.where)
    assert bare.digest != node.digest
    assert (bare.ordinal, bare.level) == (2, 1)


def test_an_unchanged_input_gives_the_same_object() -> None:
    node = flights().take(3)._node
    assert over(node, lambda below: below) is node


def test_an_input_of_another_schema_is_checked_like_a_new_one() -> None:
    node = flights().take(3)._node
    assert over(node, lambda _: flights().drop("gate")._node).schema.names == (
        "id",
        "late",
        "miles",
    )


def test_what_moves_below_batch_is_about_rows() -> None:
    node = flights().batch(4).with_columns(z=col("id") + 1)._node
    batch = node.inputs[0]
    assert isinstance(batch, Batch)
    below = Segment(batch.input, (), (("id", col("id").value),))
    assert not below.batched
    assert moved(batch, below, below).batched
    assert not moved(Segment(batch, (), below.env), batch.input, below).batched


def test_copies_of_a_node_keep_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are typed once; planning again and again would cost as much as all other planning."""
    ds = flights()
    for number in range(12):
        ds = ds.with_columns(**{f"c{number}": col("id") + number})
    for number in range(4):
        ds = ds.filter(col("id") > number)
    node = ds.select("id", "c3").batch(4)._node
    made: list[object] = []
    usual = ComputedSegment.__init__

    def counted(self: ComputedSegment, *arguments: object) -> None:
        made.append(self)
        usual(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ComputedSegment, "__init__", counted)
    optimize(node, 0)
    assert len(made) <= 2
