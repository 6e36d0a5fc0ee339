"""Law: pipelines that run together give the rows of the same pipelines run one by one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import DmlError
from dml.optimize.search import shared_prefixes as choosing
from dml.testing.draws import Drawn
from dml.testing.strategies import step
from dml.testing.strategies_data import DataPool

pytestmark = pytest.mark.law
TINY = 48 << 20


def outcome(make: Callable[[], Any]) -> Any:
    """Tables as text that tells every bit, or the kind of the error."""
    try:
        return [(str(table.schema), repr(table.to_pylist())) for table in make()]
    except DmlError as error:
        return type(error)


def one_by_one(datasets: list[Dataset]) -> list[pa.Table]:
    return [each.to_arrow() for each in datasets]


def parted(draw: random.Random, pool: DataPool) -> list[Dataset]:
    """Pipelines that have a random beginning in common, some of them more than that."""
    drawn = Drawn(pool.dataset(draw), {}, rough=False)
    drawn = dataclasses.replace(drawn, kinds=dict(drawn.dataset.schema))
    for _ in range(draw.choice([0, 1, 2, 3])):
        step(draw, drawn)
    ends: list[Drawn] = [drawn]
    for _ in range(draw.choice([1, 2, 3])):
        begun = draw.choice(ends)
        end = dataclasses.replace(begun, used=list(begun.used), kinds=dict(begun.kinds))
        for _ in range(draw.choice([0, 1, 2, 3])):
            step(draw, end)
        ends.append(end)
    found = [each.dataset for each in ends if not each.dataset._node.endless]
    draw.shuffle(found)
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize("tenth", range(10))
def test_running_together_is_running_one_by_one(
    pool: DataPool, many: Callable[[int, int], int], tenth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "GAIN", 1e9)  # whatever it costs
    shared = 0
    for number in range(tenth, many(50, 4000), 10):
        draw = random.Random(number)
        executor = draw.choice(["sync", "threads"])
        datasets = [
            each.with_options(executor=executor, telemetry_dir="off", memory_limit=TINY)
            for each in parted(draw, pool)
        ]
        if not datasets:
            continue
        shared += "shared 1" in dml.explain_all(datasets)
        wanted = outcome(partial(one_by_one, datasets))
        found = outcome(partial(dml.collect_all, datasets))
        assert found == wanted, (number, dml.explain_all(datasets))
    assert shared
