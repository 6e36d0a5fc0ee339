"""Test nodes: equality by digest, places in the user's code, replacement of inputs."""

from __future__ import annotations

from typing import Any

import pytest

import dml
from dml import col
from dml.errors import InternalError, SchemaError
from dml.expr.node import tree
from dml.ops.row.with_columns import WithColumns
from dml.ops.slice.take import Take
from tests.expr.checks import node_of, numbers

BASE = numbers(6)


def test_equality_is_what_was_written() -> None:
    assert node_of(BASE.take(3)) == node_of(BASE.take(3))
    assert node_of(BASE.take(3)) != node_of(BASE.take(4))
    assert node_of(BASE.take(3)) != node_of(BASE.skip(3))
    assert len({node_of(BASE.take(3)), node_of(BASE.take(3))}) == 1
    assert node_of(BASE.shuffle(2).shuffle(2)).digest != node_of(BASE.shuffle(2)).digest


def test_places_are_counted_as_written() -> None:
    ds = BASE.shuffle(3).filter(dml.random() < 1).repeat(2).flat_map(lambda row: [row])
    node = node_of(ds.with_columns(u=dml.random()))
    assert node.ordinal == 2
    assert node.level == 2
    assert node_of(BASE.with_columns(y=1)).ordinal == 0


def test_replacing_keeps_place_line_and_draws() -> None:
    """Draws are keyed by the place as written, also where types were derived from a new input."""
    node = node_of(BASE.shuffle(3).with_columns(u=dml.random()))
    assert isinstance(node, WithColumns)
    moved = node.replace(input=node_of(BASE))
    assert (moved.ordinal, moved.level, moved.where) == (1, 0, node.where)
    assert moved.env(moved.input.schema) == node.env(node.input.schema)
    assert moved.digest != node.digest
    fresh = WithColumns(node_of(BASE), node.values)
    assert fresh.ordinal == 0
    assert fresh.digest != moved.digest  # another key, another value


def test_replacing_checks_again() -> None:
    node = node_of(BASE.with_columns(y=col("x") + 1))
    with pytest.raises(SchemaError, match="needs column 'x'"):
        node.replace(input=node_of(BASE.rename(x="z")))
    with pytest.raises(InternalError, match="has no field"):
        node.replace(inptu=node_of(BASE))
    with pytest.raises(AttributeError):
        node.input = node_of(BASE)  # type: ignore[attr-defined]


def test_mapping_inputs_keeps_what_did_not_change() -> None:
    node = node_of(BASE.take(3))
    assert node.map_inputs(lambda child: child) is node
    swapped = node.map_inputs(lambda _: node_of(BASE.skip(1)))
    assert isinstance(swapped, Take)
    assert swapped.inputs == (node_of(BASE.skip(1)),)


def test_walks_and_chains() -> None:
    node = node_of(BASE.skip(1).take(3))
    assert [type(step).__name__ for step in node.chain()] == ["Memory", "Skip", "Take"]
    assert list(node.walk()) == node.chain()
    long: Any = BASE
    for _ in range(2000):
        long = long.skip(0)
    assert len(node_of(long).chain()) == 2001  # no recursion


def test_errors_know_operator_and_line() -> None:
    with pytest.raises(SchemaError) as caught:
        BASE.select("z")
    assert caught.value.at.startswith("Select('z'), written in test_node.py:")


def test_text() -> None:
    lines = tree(node_of(BASE.skip(1).take(3))).split("\n")
    assert lines[:2] == ["Take(3)  -> x: int64", "Skip(1)"]
