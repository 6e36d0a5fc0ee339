"""Law: a store has no effect on bits, whether it is empty, complete, partial, or resumed."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from dml.cache.store import open_stores
from dml.cache.store.disk import Disk
from dml.cache.store.local_copies import BELOW, LocalCopies
from dml.cache.store.open_stores import Where
from dml.errors import DmlError
from dml.expr.node import Node
from dml.ops.cache.stored import Stored, storable
from dml.testing.draws import Drawn
from dml.testing.equality import difference
from dml.testing.executions import RunOutcome, RunWay, elements, outcome, random_way
from dml.testing.strategies import pipeline
from dml.testing.strategies_data import DataPool
from tests.cache.store.far import PAYS, Far
from tests.laws.cases import Case

TRIES = 3


def stored_case(number: int, pool: DataPool) -> Case | None:
    """A random pipeline with a stored step somewhere, that most do not draw by themselves."""
    draw = random.Random(number)
    drawn = pipeline(draw, pool)
    node = drawn.dataset._node
    places = [n for n in node.walk() if storable(n)]
    if not places:
        return None
    place = draw.choice(places)
    made = above(node, place)
    epoch, seed = draw.choice([0, 1, 5]), draw.choice([0, 3])
    ways = [_stored(draw, number) for _ in range(TRIES)]
    dataset = drawn.dataset._with(made, drawn.dataset._settings)
    return Case(number, Drawn(dataset, drawn.kinds), epoch, seed, ways)


def _stored(draw: random.Random, number: int) -> RunWay:
    """Any way to run over one store, with or without a disk of this machine between."""
    way = dataclasses.replace(random_way(draw), stores=f"store-{number}")
    near = draw.choice(["", f"store-{number}-near"])
    return dataclasses.replace(way, near=near, near_bytes=draw.choice([1, 5000, 1 << 20]))


@pytest.fixture(autouse=True)
def _far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores lie far from every disk of this machine; every other one is loaded, and not mapped."""

    def disk(root: str, below: str) -> Disk:
        return (Far if sum(root.encode()) % 2 else Disk)(root, below)

    def copied(where: Where) -> LocalCopies | None:
        local = where.local
        if local is None or local.folder is None:
            return None
        return LocalCopies(Disk(local.folder, BELOW), local.quota_bytes or 1, lambda: PAYS)

    monkeypatch.setattr(open_stores, "Disk", disk)
    monkeypatch.setattr(open_stores, "_copies", copied)


def above(root: Node, place: Node) -> Node:
    """``root`` with what stands at ``place`` stored."""
    made: dict[Node, Node] = {}
    for node in root.walk():
        above = node.map_inputs(lambda below: made[below])
        made[node] = Stored(above) if node is place else above
    return made[root]


def some_gone(root: Path, draw: random.Random) -> None:
    """Lose some of what is stored, as a disk does that was cleared by hand.

    Threads of a run that is over may still end what they wrote: a file can go by itself.
    """
    files = [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
    for path in sorted(files):
        if draw.random() < 0.3:
            path.unlink(missing_ok=True)


def test_no_store_can_be_seen(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    for number in range(7_000_000, 7_000_000 + many(18, 4000)):
        one = stored_case(number, pool)
        if one is None:
            continue
        wanted, draw = one.wanted(), random.Random(number)
        for turn, way in enumerate(one.ways):
            found = difference(one.got(way, tmp_path), wanted, optimized=way.rewriting)
            assert not found, f"case {number}, run {turn}, {way}\n{one.node}\n{found}"
            for name in (way.stores, way.near):
                if name and draw.random() < 0.5:
                    some_gone(tmp_path / name, draw)
    assert [*tmp_path.glob("*-near/**/*.arrow")], "copies were made"


def test_runs_resumed_anywhere_over_any_store(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    for number in range(8_000_000, 8_000_000 + many(15, 3000)):
        one = stored_case(number, pool)
        if one is None:
            continue
        draw = random.Random(number)
        first_way = one.ways[0]
        whole = one.got(dataclasses.replace(first_way, stores=""), tmp_path)
        place = draw.randint(0, len(whole.elements))
        first = elements(one.node, first_way, tmp_path, epoch=one.epoch, seed=one.seed)
        try:
            before = list(islice(first, place))
            state = json.loads(json.dumps(first.state_dict()))
        except DmlError:  # rows that only the optimized plan never touches
            continue
        finally:
            first.close()
        way = dataclasses.replace(
            one.ways[1], rewriting=first_way.rewriting, without=first_way.without
        )
        rest = outcome(
            elements(one.node, way, tmp_path, seed=one.seed, epoch=one.epoch, state=state)
        )
        got = RunOutcome([*before, *rest.elements], rest.error, rest.text)
        found = difference(got, whole, optimized=way.rewriting)
        assert not found, f"case {number}, stopped at {place} in {first_way}, {way}\n{found}"
