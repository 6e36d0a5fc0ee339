"""Test ``take``: the first elements, and no work for others."""

from __future__ import annotations

import pytest

from dml.errors import PlanError
from tests.expr.checks import holds, numbers, resumes


@pytest.mark.law
@pytest.mark.parametrize(("n", "kept"), [(0, 0), (1, 1), (3, 3), (4, 4), (10, 10), (99, 10)])
def test_rows(n: int, kept: int) -> None:
    assert holds(numbers().take(n)) == kept


@pytest.mark.law
@pytest.mark.parametrize(("n", "kept"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_batches(n: int, kept: int) -> None:
    assert holds(numbers().batch(4).take(n)) == kept


@pytest.mark.law
def test_of_nothing_and_twice() -> None:
    assert holds(numbers(0).take(3)) == 0
    assert holds(numbers().take(5).take(7)) == 5
    assert holds(numbers().take(0).repeat()) == 0


@pytest.mark.law
def test_counts_beyond_any_machine_word() -> None:
    huge = 1 << 70
    assert resumes(numbers().skip(huge)) == 0
    assert resumes(numbers().take(huge).batch(huge)) == 1
    assert resumes(numbers().shuffle(huge).repeat(huge).take(12)) == 12


def test_rows_beyond_are_not_called() -> None:
    seen: list[int] = []

    def noted(row: dict[str, int]) -> dict[str, int]:
        seen.append(row["x"])
        return row

    ds = numbers().map(noted).take(2)
    assert [row["x"] for row in ds] == [0, 1]
    assert max(seen) < 3  # the atom at hand, and no other


@pytest.mark.parametrize("n", [-1, 1.0, True, "3", None])
def test_refuses_what_does_not_count(n: object) -> None:
    with pytest.raises(PlanError, match="take needs an integer"):
        numbers().take(n)  # type: ignore[arg-type]
