"""Test ``filter`` by a function of the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dml.errors import UDFError
from tests.expr.checks import holds, numbers


@pytest.mark.law
@pytest.mark.parametrize(
    ("verdict", "kept"),
    [("False", 5), ("", 0), ([], 0), ([0], 5), (None, 0), (np.True_, 5), (2, 5), (0.0, 0)],
)
def test_python_says_what_is_true(verdict: object, kept: int) -> None:
    box = [verdict]
    assert holds(numbers(5).filter(lambda _: box[0])) == kept


@pytest.mark.law
def test_rows_and_resuming() -> None:
    found: dict[str, Any] = {}

    def odd(row: dict[str, int]) -> bool:
        found["last"] = row["x"]
        return row["x"] % 2 == 1

    assert holds(numbers(10).filter(odd)) == 5
    assert holds(numbers(10).filter(odd).batch(2)) == 3
    assert holds(numbers(0).filter(odd)) == 0


def test_what_is_neither_true_nor_false_is_the_functions_error() -> None:
    arrays = {3: np.array([1, 2])}
    run = iter(numbers(6).filter(lambda row: arrays.get(row["x"], 1)))
    assert [next(run)["x"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UDFError, match="truth value of an array") as caught:
        next(run)
    assert caught.value.row == 3
