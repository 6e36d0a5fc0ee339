"""Test ``random_map``: functions of a row and of random numbers keyed by the row."""

from __future__ import annotations

from typing import Any

import pytest

from dml import col
from dml.errors import PlanError, UDFError
from tests.expr.checks import holds, numbers


def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"x": row["x"], "u": rng.random(), "n": int(rng.integers(10))}


@pytest.mark.law
def test_rows_batches_and_resuming() -> None:
    assert holds(numbers(7).random_map(drawn)) == 7
    assert holds(numbers(7).random_map(drawn, seed=3).batch(3)) == 3
    assert holds(numbers(0).random_map(drawn)) == 0


def test_numbers_follow_the_row() -> None:
    plain = {row["x"]: row["u"] for row in numbers(8).random_map(drawn)}
    mixed = numbers(8).random_map(drawn).shuffle(4).filter(col("x") > 2)
    assert {row["x"]: row["u"] for row in mixed} == {x: u for x, u in plain.items() if x > 2}
    assert len(set(plain.values())) == 8


def test_stop_iteration_ends_no_stream() -> None:
    def empty(row: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"v": row["x"] if row["x"] < 2 else next(iter(()))}

    run = iter(numbers(5).random_map(empty))
    assert [next(run)["v"], next(run)["v"]] == [0, 1]
    with pytest.raises(UDFError, match="StopIteration"):
        next(run)


class Drawing:
    """Adds a number that it was constructed with to a draw."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def __call__(self, row: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {**drawn(row, rng), "v": self.shift + row["x"]}


@pytest.mark.law
@pytest.mark.parametrize("asked", [{}, {"num_cpus": 2}, {"concurrency": 1}])
def test_a_class_is_constructed_from_its_arguments(asked: dict[str, Any]) -> None:
    ds = numbers(7).random_map(Drawing, fn_constructor_args=(0.5,), **asked)
    assert holds(ds) == 7
    assert [row["v"] for row in ds] == [x + 0.5 for x in range(7)]
    plain = numbers(7).random_map(drawn)
    assert [row["u"] for row in ds.epoch(0)] == [row["u"] for row in plain]


def test_refuses_a_seed_that_is_none() -> None:
    with pytest.raises(PlanError, match="seed must be an integer"):
        numbers().random_map(drawn, seed="x")  # type: ignore[arg-type]
