"""Test ``shuffle(window="atoms")``: atoms of the source in random order, a few mixed at a time."""

from __future__ import annotations

import pytest

from dml import col
from dml.errors import PlanError
from tests.expr.checks import holds, numbers


@pytest.mark.law
@pytest.mark.parametrize("size", [1, 2, 16])
def test_pieces_stay_together(size: int) -> None:
    ds = numbers(12).shuffle(window="atoms", size=size, seed=4)
    order = [row["x"] for row in ds]
    assert sorted(order) == list(range(12))
    for start in range(0, 12, 3 * size):
        pieces = {x // 3 for x in order[start : start + 3 * size]}
        assert len(pieces) == min(size, 4)
    assert holds(ds) == 12


@pytest.mark.law
def test_filters_may_cross() -> None:
    def kept(ds: object) -> list[int]:
        return [row["x"] for row in ds]  # type: ignore[attr-defined]

    after = numbers(12).shuffle(window="atoms", size=2).filter(col("x") > 3)
    before = numbers(12).filter(col("x") > 3).shuffle(window="atoms", size=2)
    assert kept(after) == kept(before)
    assert holds(after.batch(3)) == 3
    assert holds(numbers(12).filter(col("x") > 99).shuffle(window="atoms")) == 0


@pytest.mark.law
def test_a_size_beyond_all_pieces_costs_nothing() -> None:
    assert holds(numbers(12).shuffle(window="atoms", size=1 << 70)) == 12


def test_refusals() -> None:
    with pytest.raises(PlanError, match="permutes pieces of a source"):
        numbers().take(3).shuffle(window="atoms")
    with pytest.raises(PlanError, match="window"):
        numbers().shuffle(window="rows")
