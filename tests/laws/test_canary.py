"""Law: the check of stored rows never rejects deterministic functions."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dml.cache.rows import canary
from dml.cache.rows.canary import Odd
from dml.testing.equality import difference
from dml.testing.strategies_data import DataPool
from tests.laws.test_stored import some_gone, stored_case
from tests.laws.test_stored_columns import family


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """What came of the checks, of which there is one whenever an entry is used."""
    found = Counter[str]()
    look = canary._difference

    def counted(*given: object) -> Odd | None:
        odd = look(*given)  # type: ignore[arg-type]
        found["right" if odd is None else odd.what] += 1
        return odd

    monkeypatch.setattr(canary, "ONE_OF", 1)
    monkeypatch.setattr(canary, "BUDGET_S", 60.0)
    monkeypatch.setattr(canary, "_difference", counted)
    made = canary.StoredSample.odd

    def compared(*given: object) -> Odd | None:
        found["compared"] += 1
        return made(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(canary.StoredSample, "odd", compared)
    yield found
    assert {*found} <= {"right", "compared"}
    assert found["compared"] > 50


def test_no_check_can_be_seen(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int], checks: Counter[str]
) -> None:
    for number in range(7_500_000, 7_500_000 + many(12, 4000)):
        one = stored_case(number, pool)
        if one is None:
            continue
        wanted, draw = one.wanted(), random.Random(number)
        for turn, way in enumerate(one.ways):
            found = difference(one.got(way, tmp_path), wanted, optimized=way.rewriting)
            assert not found, f"case {number}, run {turn}, {way}\n{one.node}\n{found}"
            if draw.random() < 0.3:
                some_gone(tmp_path / f"store-{number}", draw)


def test_no_check_of_what_others_stored_can_be_seen(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int], checks: Counter[str]
) -> None:
    for number in range(9_700_000, 9_700_000 + many(12, 2000)):
        for one in family(number, pool):
            way = one.ways[0]
            found = difference(one.got(way, tmp_path), one.wanted(), optimized=way.rewriting)
            assert not found, f"case {number}, {one.number}, {way}\n{one.node}\n{found}"


def test_no_check_in_other_processes_can_be_seen(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    for number in range(7_700_000, 7_700_000 + many(4, 200)):
        one = stored_case(number, pool)
        if one is None:
            continue
        wanted = one.wanted()
        for way in one.ways[:2]:
            apart = dataclasses.replace(way, stores=f"store-{number}", workers=2, threads=0)
            found = difference(one.got(apart, tmp_path), wanted, optimized=way.rewriting)
            assert not found, f"case {number}, {apart}\n{one.node}\n{found}"
