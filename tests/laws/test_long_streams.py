"""Law: the engine equals the oracle on streams longer than blocks and hash tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.testing.equality import difference
from dml.testing.executions import PLAIN, WRITTEN, RunWay, elements, outcome
from dml.testing.oracle import Oracle

ROWS = 9_500  # more than 8,192 (rows of a block that flows) and 4,096 (an explicit permutation)
WAYS = (WRITTEN, PLAIN, RunWay(threads=2, target_bytes=9000, budget=100_000, prefetch=1))


def numbers() -> Dataset:
    return dml.range(ROWS, atom_rows=1100)


def late(row: dict[str, Any]) -> dict[str, Any]:
    """A half in one row of nine, told apart by a loop that nobody lifts."""
    number = sum(row["id"] for _ in range(1))
    return {"id": number, "z": number if number % 9 else number + 0.5}


def children(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": row["id"], "part": part} for part in range(row["id"] % 3)]


PIPELINES: dict[str, Callable[[], Dataset]] = {
    "ranked": lambda: numbers().shuffle().batch(1000),
    "ranked and filtered": lambda: numbers().shuffle().filter(col("id") % 3 != 0).batch(999),
    "hashed": lambda: numbers().flat_map(children).shuffle(seed=2).batch(1000),
    "settled after a shuffle": lambda: numbers().shuffle().map(late).batch(700),
    "settled after a filter": lambda: numbers().shuffle().filter(col("id") > 50).map(late).batch(9),
    "a window of many": lambda: numbers().shuffle(9000).map(late).skip(8300).batch(100),
    "pieces": lambda: numbers().shuffle(window="atoms", size=3).map(late).batch(3000),
    "one atom": lambda: dml.range(ROWS).skip(10).map(late).batch(4000),
    "one atom with children": lambda: dml.range(ROWS).flat_map(children).batch(5000),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", PIPELINES)
def test_long_streams_are_the_oracles(name: str, cache: Path) -> None:
    node = PIPELINES[name]()._node
    wanted = outcome(Oracle(node).elements())
    assert wanted.elements
    for way in WAYS:
        found = difference(outcome(elements(node, way, cache)), wanted, optimized=False)
        assert not found, (way, found[:300])
