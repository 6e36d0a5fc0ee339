"""Test ``shuffle(window="atoms")``: atoms of the source in random order, a few mixed at a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import PlanError
from dml.testing.equality import difference
from dml.testing.executions import RunWay, elements, outcome
from dml.testing.oracle import Oracle
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
@given(st.lists(st.sampled_from([0, 0, 1, 2]), min_size=12, max_size=40), st.data())
def test_atoms_without_output_are_pieces(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], data: st.DataObject
) -> None:
    """A function whose types are unknown gives them; slices end in any order."""

    def several(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"id": row["id"], "part": part} for part in range(counts[row["id"]])]

    rows = dml.range(len(counts), atom_rows=data.draw(st.integers(1, 2)))
    size = data.draw(st.integers(2, 4))
    ds = rows.flat_map(several).shuffle(window="atoms", size=size, seed=1)
    draws = st.none() | st.integers(0, 1 << 30)
    way = RunWay(
        threads=data.draw(st.sampled_from([0, 1, 4])),
        fuzz=data.draw(draws),
        slices=data.draw(draws),
    )
    wanted = outcome(Oracle(ds._node).elements())
    got = outcome(elements(ds._node, way, tmp_path_factory.getbasetemp()))
    assert not difference(got, wanted, optimized=True)


@pytest.mark.law
def test_a_size_beyond_all_pieces_costs_nothing() -> None:
    assert holds(numbers(12).shuffle(window="atoms", size=1 << 70)) == 12


def test_refusals() -> None:
    with pytest.raises(PlanError, match="permutes pieces of a source"):
        numbers().take(3).shuffle(window="atoms")
    with pytest.raises(PlanError, match="window"):
        numbers().shuffle(window="rows")
