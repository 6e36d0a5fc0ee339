"""Law: ``autocache()`` changes no bits, wherever it is and whatever it decides."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.expr.node import Node
from dml.ops.cache.autocache import AutoStored, varying
from dml.ops.cache.cache import AUTO, Anchor, Cache
from dml.ops.cache.stored import storable
from dml.testing.draws import Drawn
from dml.testing.equality import difference
from dml.testing.executions import outcome, random_way
from dml.testing.oracle import Oracle
from dml.testing.strategies import pipeline
from dml.testing.strategies_data import DataPool
from tests.laws.cases import Case
from tests.laws.test_stored import some_gone


def hinted_case(number: int, pool: DataPool) -> Case | None:
    """A random pipeline with one to three ``autocache()``s wherever one may stand."""
    draw = random.Random(number)
    drawn = pipeline(draw, pool)
    node = drawn.dataset._node
    may = [each for each in node.walk() if storable(each) or varying(each) is None]
    if not may:
        return None
    made = _hinted(draw, node, draw.sample(may, min(len(may), draw.randint(1, 3))))
    epoch, seed = draw.choice([0, 1, 5]), draw.choice([0, 3])
    store = f"auto-{number}"
    ways = [dataclasses.replace(random_way(draw), stores=each) for each in ("", store, store)]
    dataset = drawn.dataset._with(made, drawn.dataset._settings)
    return Case(number, Drawn(dataset, drawn.kinds), epoch, seed, ways)


def _hinted(draw: random.Random, root: Node, places: list[Node]) -> Node:
    made: dict[Node, Node] = {}
    for node in root.walk():
        above = node.map_inputs(lambda below: made[below])
        made[node] = _hint(draw, above) if node in places else above
    return made[root]


def _hint(draw: random.Random, node: Node) -> Node:
    drawing = varying(node)
    if storable(node):
        reuse = draw.choice([1, 2, 3] if drawing is not None else [None, None, 2])
        return AutoStored(node, reuse=reuse)
    return node if drawing is not None else Cache(node, AUTO, Anchor())


def test_nothing_that_is_decided_can_be_seen(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    hints = 0
    for number in range(9_000_000, 9_000_000 + many(18, 4000)):
        one = hinted_case(number, pool)
        if one is None:
            continue
        hints += any(each.decides for each in one.node.walk())
        wanted, draw = one.wanted(), random.Random(number)
        compute, put, get = one.ways
        for mode, way in (("compute", compute), ("put", put), ("get", get)):
            found = difference(one.got(way, tmp_path), wanted, optimized=way.rewriting)
            assert not found, f"case {number}, {mode}, {way}\n{one.node}\n{found}"
        some_gone(tmp_path / f"auto-{number}", draw)
        way = dataclasses.replace(get, filled=False)
        found = difference(one.got(way, tmp_path), wanted, optimized=way.rewriting)
        assert not found, f"case {number}, what is there, {way}\n{one.node}\n{found}"
    assert hints > 12


COLUMNS = {"x": [*range(40)]}


def drawn_anew(reuse: int) -> Dataset:
    ds = dml.from_dict(COLUMNS, atom_rows=7).with_columns(r=dml.random(seed=1))
    return ds.autocache(reuse=reuse).with_columns(s=dml.random(seed=2))


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 12))
def test_a_draw_serves_so_many_epochs(outer: int, inner: int, epoch: int) -> None:
    ds = drawn_anew(outer)._with(AutoStored(drawn_anew(outer)._node, reuse=inner), dml.Settings())
    rows = ds.epoch(epoch).to_arrow().to_pylist()
    below = dml.from_dict(COLUMNS, atom_rows=7).with_columns(r=dml.random(seed=1))
    kept = below.epoch(epoch // inner // outer).to_arrow().to_pylist()
    assert [row["r"] for row in rows] == [row["r"] for row in kept]
    wanted = outcome(Oracle(ds._node, epoch=epoch, seed=0).elements())
    assert not difference(outcome(iter(rows)), wanted, optimized=True)
