"""Law: columns that other pipelines stored have no effect on bits."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

import dml
from dml import col
from dml.errors import DmlError
from dml.ops.cache.stored import Stored, storable
from dml.testing.draws import Drawn
from dml.testing.equality import difference
from dml.testing.executions import RunOutcome, elements, outcome, random_way
from dml.testing.strategies import deliverable, pipeline
from dml.testing.strategies_data import DataPool
from tests.laws.cases import Case
from tests.laws.test_stored import some_gone

MEMBERS = 6


@dml.udf(return_dtype="float64")
def length(value: Any) -> float:
    return len(str(value)) / 2.0


@dml.udf(return_dtype="string")
def spelled(value: Any) -> str:
    return str(value)[:5]


def marked(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "mark": len(row)}


class Menu:
    """What pipelines over one prefix choose from: filters, columns, numbers to compare with."""

    def __init__(self, draw: random.Random, prefix: Drawn) -> None:
        made = prefix.expressions(draw)
        self.draw, self.prefix = draw, prefix
        self.filters = [made.boolean(2) for _ in range(3)]
        numbers = [n for n, kind in prefix.kinds.items() if pa.types.is_integer(kind)]
        for name in numbers[:2]:
            self.filters += [col(name) > bound for bound in draw.sample(range(-5, 60), 3)]
        self.columns = {f"c{n}": made.any(2) for n in range(4)}
        some = draw.choice([*prefix.kinds])
        self.columns |= {"u": length(col(some)), "s": spelled(col(some))}
        self.columns |= {"r": dml.random(seed=draw.choice([None, 4]))}

    def pipeline(self) -> dml.Dataset:
        """A pipeline of some of it, in any order, that stores its rows."""
        draw, ds = self.draw, self.prefix.dataset
        names = [*self.prefix.kinds]
        for _ in range(draw.randint(1, 4)):
            turn = draw.random()
            if turn < 0.1 and storable(ds._node):
                ds = ds._with(Stored(ds._node), ds._settings)
            elif turn < 0.4:
                ds = ds.filter(draw.choice(self.filters))
            elif turn < 0.9:
                chosen = draw.sample(sorted(self.columns), draw.randint(1, 3))
                ds = ds.with_columns(**{name: self.columns[name] for name in chosen})
                names += [name for name in chosen if name not in names]
            else:
                ds = ds.map(marked)
                names += ["mark"] if "mark" not in names else []
        if draw.random() < 0.7:
            ds = ds.select(*draw.sample(names, draw.randint(1, len(names))))
        if draw.random() < 0.3 and ds.schema.known:
            ds = ds.rename({next(iter(ds.schema)): "renamed"})
        return ds


def family(number: int, pool: DataPool) -> Iterator[Case]:
    """Pipelines that have much in common, each with ways to run it, over one store."""
    draw = random.Random(number)
    prefix = pipeline(draw, pool)
    while not storable(prefix.dataset._node) or not prefix.dataset.schema.known:
        below = prefix.dataset._node.inputs
        if not below:
            return
        prefix.dataset = prefix.dataset._with(below[0], prefix.dataset._settings)
        prefix.kinds = dict(prefix.dataset.schema)
    menu, epoch, seed = Menu(draw, prefix), draw.choice([0, 5]), draw.choice([0, 3])
    for turn in range(MEMBERS):
        try:
            ds = menu.pipeline()
        except DmlError:  # of types that do not go together
            continue
        way = dataclasses.replace(random_way(draw), stores=f"store-{number}")
        node = Stored(ds._node) if draw.random() < 0.8 else ds._node
        drawn = Drawn(ds._with(node, ds._settings), dict(ds.schema))
        deliverable(drawn)
        yield Case(number * MEMBERS + turn, drawn, epoch, seed, [way])


def test_runs_resumed_anywhere_over_what_others_stored(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    for number in range(9_500_000, 9_500_000 + many(5, 1500)):
        draw = random.Random(number)
        for one in family(number, pool):
            way, whole = one.ways[0], one.got(dataclasses.replace(one.ways[0], stores=""), tmp_path)
            place = draw.randint(0, len(whole.elements))
            first = elements(one.node, way, tmp_path, epoch=one.epoch, seed=one.seed)
            try:
                before = list(islice(first, place))
                state = json.loads(json.dumps(first.state_dict()))
            except DmlError:  # rows that only the optimized plan never touches
                continue
            finally:
                first.close()
            rest = outcome(
                elements(one.node, way, tmp_path, seed=one.seed, epoch=one.epoch, state=state)
            )
            got = RunOutcome([*before, *rest.elements], rest.error, rest.text)
            found = difference(got, whole, optimized=way.rewriting)
            assert not found, f"case {number}, {one.number}, stopped at {place}, {way}\n{found}"


def test_what_others_stored_cannot_be_seen(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    for number in range(9_000_000, 9_000_000 + many(13, 3000)):
        draw = random.Random(number)
        for one in family(number, pool):
            way = one.ways[0]
            found = difference(one.got(way, tmp_path), one.wanted(), optimized=way.rewriting)
            assert not found, f"case {number}, {one.number}, {way}\n{one.node}\n{found}"
            if draw.random() < 0.4:
                some_gone(tmp_path / f"store-{number}", draw)
