"""Law: row ids equal those of the oracle, and are unique, in every composition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dml.errors import DmlError
from dml.testing.executions import ids
from dml.testing.oracle import Oracle
from dml.testing.strategies_data import DataPool
from tests.laws.cases import Case, case


def oracle_ids(one: Case) -> list[tuple[int, int]] | None:
    try:
        return list(Oracle(one.node, epoch=one.epoch, seed=one.seed).ids())
    except DmlError:
        return None


def test_ids_are_the_oracles_and_unique(
    pool: DataPool, cache: Path, many: Callable[[int, int], int]
) -> None:
    seen = 0
    for number in range(2_000_000, 2_000_000 + many(36, 3000)):
        one = case(number, pool)
        wanted = oracle_ids(one)
        if wanted is None:
            continue
        assert len(set(wanted)) == len(wanted), one.node
        for way in one.ways:
            got = ids(one.node, way, cache, epoch=one.epoch, seed=one.seed)
            assert got == wanted, (number, way)
        seen += len(wanted)
    assert seen > many(300, 20_000)
