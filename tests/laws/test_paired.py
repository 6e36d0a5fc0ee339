"""Law: zips of one input with itself give the rows of the oracle."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dml.errors import DmlError
from dml.optimize.phases import optimize
from dml.testing.draws import Draw, Drawn
from dml.testing.strategies import USES, step
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case, resumption, violation

pytestmark = pytest.mark.law


def zipped(draw: Draw, pool: DataPool) -> Drawn:
    """Two or three sides that compute columns of the same rows, and random operators above."""
    drawn = Drawn(pool.dataset(draw), {}, rough=False)
    drawn = dataclasses.replace(drawn, kinds=dict(drawn.dataset.schema))
    if draw.random() < 0.6:
        with suppress(DmlError):  # some filters are refused
            USES["filter"].write(draw, drawn)
    sides = [drawn.dataset]
    kinds = dict(drawn.kinds)
    for letter in "pq"[: draw.choice([1, 2])]:
        made = {f"{letter}{i}": drawn.expressions(draw).any() for i in (0, 1)}
        with suppress(DmlError):
            believed = drawn.believed(made)
            sides.append(drawn.dataset.select(**made))
            kinds |= {name: believed[name] for name in made}
    draw.shuffle(sides)
    drawn.then(sides[0].zip(*sides[1:]), kinds)
    for _ in range(draw.choice([0, 1, 2, 3])):
        step(draw, drawn)
    return drawn


@pytest.mark.sample(4)
@pytest.mark.parametrize("tenth", range(10))
def test_sides_that_are_one_input_are_read_once(
    pool: DataPool, cache: Path, many: Callable[[int, int], int], tenth: int
) -> None:
    fired = 0
    for number in range(tenth, many(40, 6000), 10):
        one = case(number, pool)
        one = dataclasses.replace(one, drawn=zipped(random.Random(number), pool))
        fired += "zip_of_one_input" in optimize(one.node, 0).trace.names()
        found = violation(one, cache) or resumption(one, cache)
        assert not found, found
    assert fired
