"""Law: where time cuts the atoms of a slow source into blocks, the rows are those of the oracle."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dml.api.sources.objects import read_datasource
from dml.io.source import Unit
from dml.io.user import user_source
from dml.testing.draws import Drawn
from dml.testing.strategies import step
from dml.testing.strategies_data import DataPool, Handed, columns, table
from tests.laws.cases import case, resumption, violation

pytestmark = pytest.mark.law


def opened(number: int) -> Drawn:
    """Random operators above a source of which few parts state their number of rows."""
    draw = random.Random(number)
    data = table(draw, columns(draw), draw.choice([7, 30, 45]))
    ends = sorted(
        [*(draw.randint(0, data.num_rows) for _ in "ab"[: draw.randint(0, 2)]), len(data)]
    )
    source = Handed(data, ends, [draw.random() < 0.3 for _ in ends], draw.randint(1, 4))
    dataset = read_datasource(source, atom_rows=draw.choice([3, 8, 20, 64]))
    drawn = Drawn(dataset, dict(dataset.schema), rough=False)
    for _ in range(draw.choice([1, 2, 4, 6])):
        step(draw, drawn)
    return drawn


class LateClock:
    """A clock by which rows are late at random; several threads may ask it."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.now, self.lock = draw, 0.0, threading.Lock()

    def __call__(self) -> float:
        with self.lock:
            self.now += self.draw.choice([0.0, 0.0, 1.0])
            return self.now


@pytest.mark.sample(4)
@pytest.mark.parametrize("tenth", range(10))
def test_rows_that_are_cut_by_time_are_the_same(
    cache: Path,
    pool: DataPool,
    many: Callable[[int, int], int],
    tenth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_source, "perf_counter", LateClock(random.Random(tenth)))
    early = 0
    whole = user_source.cut

    def counted(batches: Iterator[object], unit: Unit) -> Iterator[object]:
        nonlocal early
        for found in whole(batches, unit):
            early += found.num_rows < unit.atom_rows
            yield found

    monkeypatch.setattr(user_source, "cut", counted)
    for number in range(tenth, many(100, 6000), 10):
        one = dataclasses.replace(case(number, pool), drawn=opened(number))
        found = violation(one, cache) or resumption(one, cache)
        assert not found, found
    assert early
