"""Law: filters that are tested before other columns are decoded give the rows of the oracle."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dml.errors import DmlError
from dml.exec.tasks import unit_reader
from dml.io.parquet.parquet import ParquetSource
from dml.testing.draws import Drawn
from dml.testing.strategies import USES, step
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case, resumption, violation

pytestmark = pytest.mark.law


def filtered(number: int, pool: DataPool) -> Drawn | None:
    """A filter over the source, and random operators above it; None over other formats."""
    draw = random.Random(number)
    dataset = pool.dataset(draw)
    if not isinstance(dataset._node, ParquetSource):
        return None
    drawn = Drawn(dataset, dict(dataset.schema), rough=False)
    while drawn.dataset is dataset:
        with suppress(DmlError):  # some filters are refused
            USES["filter"].write(draw, drawn)
    for _ in range(draw.choice([0, 1, 2, 4])):
        step(draw, drawn)
    return drawn


@pytest.mark.sample(4)
@pytest.mark.parametrize("tenth", range(10))
def test_what_is_decoded_late_is_the_same(
    pool: DataPool,
    cache: Path,
    many: Callable[[int, int], int],
    tenth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LEAST_UNITS", "SPARED", "RATIO"):  # whatever it costs
        monkeypatch.setattr(unit_reader, name, 0)
    spared = 0
    spares = unit_reader.Late.spares

    def counted(self: unit_reader.Late, *given: Any) -> bool:
        nonlocal spared
        found = spares(self, *given)
        spared += found
        return found

    monkeypatch.setattr(unit_reader.Late, "spares", counted)
    for number in range(tenth, many(120, 6000), 10):
        drawn = filtered(number, pool)
        if drawn is None:
            continue
        one = dataclasses.replace(case(number, pool), drawn=drawn)
        found = violation(one, cache) or resumption(one, cache)
        assert not found, found
    assert spared
