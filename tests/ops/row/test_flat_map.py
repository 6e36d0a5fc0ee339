"""Test ``flat_map``: from a row to any number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dml
from dml.errors import UDFError
from dml.ops.row.flat_map import OUT_ROWS
from tests.expr.checks import holds, numbers


def copies(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for i in range(row["x"] % 3):
        yield {"x": row["x"], "i": i}


@pytest.mark.law
def test_rows_batches_and_resuming() -> None:
    assert holds(numbers(8).flat_map(copies)) == 7
    assert holds(numbers(8).flat_map(copies).batch(2)) == 4
    assert holds(numbers(8).shuffle(3).flat_map(copies).take(5)) == 5
    assert holds(numbers(8).flat_map(lambda _: [])) == 0
    assert holds(numbers(0).flat_map(copies)) == 0


@pytest.mark.law
def test_children_have_ids_of_their_own() -> None:
    ds = numbers(8).flat_map(copies).with_columns(u=dml.random()).flat_map(lambda r: [r, r.copy()])
    ds = ds.with_columns(v=dml.random())
    rows = list(ds)
    assert len({row["v"] for row in rows}) == len(rows) == 14
    assert holds(ds) == 14


def test_many_children_come_in_blocks() -> None:
    many = OUT_ROWS + 5
    ds = numbers(2).flat_map(lambda _: ({"i": i} for i in range(many)))
    assert [row["i"] for row in ds] == list(range(many)) * 2


def test_an_error_comes_after_the_children_before_it() -> None:
    def failing(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"x": row["x"]}
        if row["x"] == 1:
            raise LookupError("no such word")

    run = iter(numbers(3).flat_map(failing))
    assert [next(run)["x"], next(run)["x"]] == [0, 1]
    with pytest.raises(UDFError, match="no such word") as caught:
        next(run)
    assert caught.value.row == 1


def test_one_dict_filled_again_is_many_rows() -> None:
    def same(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for row["i"] in range(2):
            yield row

    rows = list(numbers(2).flat_map(same))
    assert [(row["x"], row["i"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
