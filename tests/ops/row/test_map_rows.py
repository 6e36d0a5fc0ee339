"""Test ``map``: a function from row to row, with Python's semantics."""

from __future__ import annotations

import datetime as dt
import functools
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

from dml.errors import UDFError
from dml.expr.flow import At
from dml.io.source import Source
from dml.ops.row.map_rows import MapRows
from tests.expr.checks import agrees, holds, node_of, numbers, table

if TYPE_CHECKING:
    from dml.ops.row.map_rows import MapRows

SEEN: list[int] = []


def noted(row: dict[str, Any]) -> dict[str, Any]:
    """Not provably pure, so that it is called."""
    SEEN.append(row["x"])
    return {"y": row["x"] * 2, "s": str(row["x"]), "a": np.full(2, row["x"])}


def test_called_once_per_row_in_order() -> None:
    SEEN.clear()
    assert [row["y"] // 2 for row in numbers(7).map(noted)] == SEEN
    assert len(SEEN) == 7
    assert sorted(SEEN) == SEEN


def test_nothing_is_called_before_a_block_is_asked_for() -> None:
    """Or the time of the first rows would be nobody's."""
    SEEN.clear()
    ds = numbers(3)
    source = node_of(ds)
    assert isinstance(source, Source)
    (block,) = source.read(source.unit(0), ("x",), 0)
    at = At(0, 0, None, {}, None, 1 << 20)  # type: ignore[arg-type]
    made = cast("MapRows", node_of(ds.map(noted))).run(block, at)
    assert SEEN == []
    assert sum(each.n for each in made) == len(SEEN) == 3


@pytest.mark.law
def test_rows_batches_and_resuming() -> None:
    assert holds(numbers(7).map(noted)) == 7
    assert holds(numbers(7).map(noted).batch(3)) == 3
    assert holds(numbers(7).shuffle(4).map(noted).map(lambda row: {"z": row["y"]})) == 7
    assert holds(numbers(0).map(noted)) == 0


def test_a_memory_of_dicts_is_not_changed_by_the_next_function() -> None:
    @functools.cache
    def remembered(x: int) -> dict[str, int]:
        return {"y": x}

    def changing(row: dict[str, int]) -> dict[str, int]:
        row["y"] += 1
        return row

    ds = numbers(6).map(lambda row: remembered(row["x"] % 2)).map(changing)
    assert [row["y"] for row in ds] == [1, 2] * 3


def test_the_next_function_sees_columns_in_order_and_plain_dicts() -> None:
    def turned(row: dict[str, int]) -> dict[str, int]:
        x = row["x"]
        return {"a": x, "b": x} if x % 2 else {"b": x, "a": x}

    kinds: set[Any] = set()

    def looking(row: dict[str, int]) -> dict[str, int]:
        kinds.add((type(row), *row))
        return row

    list(numbers(6).map(turned).map(looking))
    assert len(kinds) == 1


def test_delivered_tensors_belong_to_the_caller() -> None:
    ds = table({"x": pa.array([1, 2])}).map(noted)
    for row in ds:
        row["a"][:] = 7


@pytest.mark.parametrize(
    ("values", "row", "what"),
    [
        ([1, 2, "a"], 2, "int, str"),
        ([1, 1 << 70], 1, "cannot hold"),
        ([1, True], 1, "bool, int"),
        ([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], 1, "time zone"),
        ([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)], 1, "date"),
        ([np.zeros(2), np.zeros((2, 2))], 1, "arrays of different shapes"),
    ],
)
def test_values_without_a_type_in_common(values: list[Any], row: int, what: str) -> None:
    box = list(values)
    ds = numbers(len(values)).map(lambda one: {"v": box[one["x"]]})
    run = iter(ds)
    for _ in range(row):
        next(run)
    with pytest.raises(UDFError, match=what) as caught:
        next(run)
    assert caught.value.row == row


def test_times_keep_their_zone() -> None:
    moment = dt.datetime(2020, 1, 1, 5, tzinfo=dt.UTC)
    box = [moment]
    ds = numbers(2).map(lambda _: {"t": box[0]}).map(lambda row: {"t": row["t"], "n": len(box)})
    assert [row["t"] for row in ds] == [moment, moment]
    agrees(ds)


def test_later_atoms_keep_what_the_first_settled() -> None:
    box: list[Any] = [dt.date(2020, 1, 1)] * 64 + [dt.datetime(2020, 1, 1, 5)]
    with pytest.raises(UDFError, match="settled as date32"):
        list(numbers(65).map(lambda row: {"v": box[row["x"]]}))


def test_rows_without_columns() -> None:
    box: list[Any] = [{}, {}, None]
    run = iter(numbers(3).map(lambda row: box[row["x"]]))
    assert [next(run), next(run)] == [{}, {}]
    with pytest.raises(UDFError, match="not a dict"):
        next(run)


def test_stop_iteration_is_an_error_like_any_other() -> None:
    def empty(row: dict[str, Any]) -> dict[str, Any]:
        return {"v": next(iter(range(row["x"], 1)))}

    with pytest.raises(UDFError, match="StopIteration"):
        list(numbers(3).map(empty))
